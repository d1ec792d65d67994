// The families of models besides Qwen3: what their blocks do differently (biases, the norm over all
// heads, shared experts) holds the same promises. The formulas are compared with transformers in
// tests/oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "model/reference.h"
#include "tests/model/bit_promises.h"
#include "tests/model/side.h"

namespace quads::testing {
namespace {

struct Family {
  const char* name;
  ModelConfig (*config)();
};

struct Case {
  Family family;
  const char* precision;
  double ratio;
  QuantizeScope::What what;
};

constexpr auto kExperts = QuantizeScope::What::kExperts;
constexpr auto kLinears = QuantizeScope::What::kLinears;

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Family& family : {Family{"qwen2_moe", qwen2_moe_config}, Family{"olmoe", olmoe_config},
                               Family{"mixtral", mixtral_config}}) {
    all.push_back({family, "bf16", 0, kExperts});
    all.push_back({family, "nvfp4-rac", 0.5, kExperts});
    all.push_back({family, "nvfp4-rac", 0.5, kLinears});
    all.push_back({family, "w4a16", 0, kLinears});
  }
  return all;
}

class EachFamily : public ::testing::TestWithParam<Case> {
 protected:
  EachFamily() : parameters_(GetParam().family.config()) { randomise(parameters_, 3); }
  Side::Options options() const {
    return {.precision = parse_precision(GetParam().precision, {.ratio = GetParam().ratio}),
            .scope = {.what = GetParam().what}};
  }
  Parameters parameters_;
};

INSTANTIATE_TEST_SUITE_P(Family, EachFamily, ::testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = fmt::format("{}_{}_{}", info.param.family.name, info.param.precision,
                                 quantize_name(info.param.what));
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST_P(EachFamily, ASequenceAloneHasTheBitsItHasAmongOthers) {
  expect_alone_as_among_others(parameters_, options(), {37, 1, 16, 90});
}

TEST_P(EachFamily, ThreadsAndInstructionSetsGiveTheSameBits) {
  expect_same_bits_everywhere(parameters_, options(), {1, 3});
}

TEST_P(EachFamily, ResidualsAreCountedOnceARowWhateverTheThreads) {
  if (GetParam().ratio == 0) GTEST_SKIP() << "nothing is compensated";
  const auto totals = [&](int threads) {
    Side::Options with = options();
    with.threads = threads;
    Side side(parameters_, with);
    WholeSequences packed(side, random_sequences({40, 33}, 43, 8));
    ResidualSums sums(side.model.sites(), threads);
    packed.batch().residual_sums = &sums;
    run_layers(side, packed.batch());
    return sums.totals();
  };
  const auto one = totals(1);
  EXPECT_EQ(one, totals(2));
  const ModelConfig& config = parameters_.config();
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const auto& shared =
        one[static_cast<size_t>(l * kSites) + static_cast<size_t>(Site::kSharedMid)];
    const bool expected = GetParam().what == kLinears && config.has_shared_expert(l);
    EXPECT_EQ(std::ssize(shared), expected ? config.shared_expert_intermediate_size : 0) << l;
    EXPECT_TRUE(!expected || *std::ranges::max_element(shared) > 0) << l;
  }
}

TEST(SharedExpert, IsQuantisedWithAllLinearsAndNotWithTheExperts) {
  Parameters parameters(qwen2_moe_config());
  randomise(parameters, 3);
  const auto format = [&](QuantizeScope::What what, int64_t expert) {
    Side side(parameters, {.precision = parse_precision("nvfp4", {}), .scope = {.what = what}});
    return side.model.ffn(0).down[expert].format;
  };
  EXPECT_EQ(format(kExperts, 0), kernels::WeightFormat::kNvfp4);
  EXPECT_EQ(format(kExperts, 6), kernels::WeightFormat::kBf16);
  EXPECT_EQ(format(kLinears, 6), kernels::WeightFormat::kNvfp4);
}

TEST(SharedExpert, EveryMaskedChannelOfItChangesTheResult) {
  Parameters parameters(qwen2_moe_config());
  randomise(parameters, 3);
  Side::Options options{.precision = parse_precision("nvfp4-rac", {.ratio = 0.5}),
                        .scope = {.what = kLinears}};
  const auto logits = [&] {
    Side side(parameters, options);
    options.masks = side.masks;
    WholeSequences packed(side, random_sequences({30}, 43, 6));
    return run_logits(side, packed);
  };
  const std::vector<float> expected = logits();
  for (const size_t channel : {0, 15, 16, 95}) {
    options.masks.at(2, Site::kSharedMid)[channel] ^= 1;
    EXPECT_NE(logits(), expected) << channel;
    options.masks.at(2, Site::kSharedMid)[channel] ^= 1;
  }
  EXPECT_EQ(logits(), expected);
}

TEST(Families, Bf16LogitsFollowTheReference) {
  for (const auto make_config : {qwen2_moe_config, olmoe_config, mixtral_config}) {
    ModelConfig config = make_config();
    config.num_experts_per_tok = config.num_experts;  // no router turns by a rounding
    Parameters parameters(config);
    randomise(parameters, 3);
    Side side(parameters, {});
    const auto sequences = random_sequences({60}, 43, 3);
    WholeSequences packed(side, sequences);
    const std::vector<float> rounded = run_logits(side, packed);
    const std::vector<float> exact = reference_logits(parameters, sequences[0]);
    double error = 0.0, signal = 0.0;
    for (size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(rounded[i] - exact[i], 2);
      signal += std::pow(exact[i], 2);
    }
    // 2^-9 an operand, four products a block and six blocks like a random walk: 0.01. Without a
    // norm of queries and keys the scores are several times larger, and their errors with them.
    const double bound = config.qk_norm() == QkNorm::kNone ? 0.04 : 0.015;
    EXPECT_LT(std::sqrt(error / signal), bound) << architecture_name(config.architecture);
    EXPECT_GT(error, 0.0);
  }
}

}  // namespace
}  // namespace quads::testing
