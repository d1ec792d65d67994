// The fast blocks: a row depends on its own sequence alone, whatever runs beside it and on however
// many threads, on every instruction set, in every precision.
#include "model/cpu_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/reference.h"
#include "tests/model/bit_promises.h"
#include "tests/model/side.h"

namespace quads::testing {
namespace {

struct Case {
  std::string name;
  std::string precision;
  double ratio = 0.0;
  RacGranularity granularity = RacGranularity::kChannel;
  QuantizeScope scope;
};

std::vector<Case> cases() {
  const QuantizeScope experts;
  const QuantizeScope linears{.what = QuantizeScope::What::kLinears};
  QuantizeScope middle = linears;
  middle.high_precision_first_layers = 1;
  middle.high_precision_last_layers = 1;
  const auto channel = RacGranularity::kChannel, block = RacGranularity::kBlock;
  return {{"bf16", "bf16", 0, channel, experts},
          {"fp8_linears", "fp8", 0, channel, linears},
          {"w8a16", "w8a16", 0, channel, experts},
          {"w4a16_linears", "w4a16", 0, channel, linears},
          {"w16a4", "w16a4", 0, channel, experts},
          {"nvfp4", "nvfp4", 0, channel, experts},
          {"nvfp4_middle_layer", "nvfp4", 0, channel, middle},
          {"rac50_channels", "nvfp4-rac", 0.5, channel, experts},
          {"rac25_blocks_linears", "nvfp4-rac", 0.25, block, linears},
          {"rac100_linears", "nvfp4-rac", 1.0, channel, linears}};
}

Side::Options options_of(const Case& c) {
  Side::Options options;
  options.precision =
      parse_precision(c.precision, {.ratio = c.ratio, .granularity = c.granularity});
  options.scope = c.scope;
  return options;
}

class EachPrecision : public ::testing::TestWithParam<Case> {
 protected:
  EachPrecision() : parameters_(moe_config()) { randomise(parameters_, 3); }
  Parameters parameters_;
};

INSTANTIATE_TEST_SUITE_P(Precision, EachPrecision, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(EachPrecision, ASequenceAloneHasTheBitsItHasAmongOthers) {
  expect_alone_as_among_others(parameters_, options_of(GetParam()), {37, 1, 16, 90, 17});
}

TEST_P(EachPrecision, ThreadsAndInstructionSetsGiveTheSameBits) {
  expect_same_bits_everywhere(parameters_, options_of(GetParam()), {1, 2, 3});
}

TEST_P(EachPrecision, RefreshingAnotherModelAndBackRestoresTheBits) {
  Parameters other(moe_config());
  randomise(other, 4);
  const std::vector<Bf16> a(parameters_.values(),
                            parameters_.values() + parameters_.layout().total);
  Side side(parameters_, options_of(GetParam()));
  const auto sequences = random_sequences({19}, 43, 4);
  WholeSequences packed(side, sequences);
  const std::vector<float> first = run_logits(side, packed);
  std::copy_n(other.values(), a.size(), parameters_.values());
  side.refresh();
  EXPECT_NE(run_logits(side, packed), first);
  std::ranges::copy(a, parameters_.values());
  side.refresh();
  EXPECT_EQ(run_logits(side, packed), first);
}

TEST_P(EachPrecision, RoutingRecordedAndReplayedGivesTheSameBits) {
  Side side(parameters_, options_of(GetParam()));
  WholeSequences packed(side, random_sequences({40, 25}, 43, 5));
  std::vector<int32_t> routing(static_cast<size_t>(3 * packed.rows() * 2), -1);
  packed.batch().record_routing = routing.data();
  const std::vector<float> recorded = run_logits(side, packed);
  packed.batch().record_routing = nullptr;
  packed.batch().replay_routing = routing.data();
  EXPECT_EQ(run_logits(side, packed), recorded);
  // And it is the routing that is used, not the router's choice again.
  for (int32_t& expert : routing) expert = expert < 0 ? expert : (expert + 1) % 6;
  EXPECT_NE(run_logits(side, packed), recorded);
}

class CpuBlocksTest : public ::testing::Test {
 protected:
  CpuBlocksTest() : parameters_(moe_config()) { randomise(parameters_, 3); }
  Side::Options precision(const char* name, double ratio = 0.0) {
    Side::Options options;
    options.precision = parse_precision(name, {.ratio = ratio});
    return options;
  }
  std::vector<float> logits(const Side::Options& options, const RacMasks& masks = {}) {
    Side::Options with_masks = options;
    with_masks.masks = masks;
    Side side(parameters_, with_masks);
    WholeSequences packed(side, random_sequences({30}, 43, 6));
    return run_logits(side, packed);
  }
  Parameters parameters_;
};

// Quantised precisions are compared with the scalar quantisers (quantised_block_test) and with
// autograd models of the same rounding (tests/oracle): their distance from FP32 says little.
TEST_F(CpuBlocksTest, Bf16LogitsFollowTheReference) {
  Side side(parameters_, precision("bf16"));
  const auto sequences = random_sequences({60}, 43, 3);
  WholeSequences packed(side, sequences);
  const std::vector<float> rounded = run_logits(side, packed);
  const std::vector<float> exact = reference_logits(parameters_, sequences[0]);
  double error = 0.0, signal = 0.0;
  for (size_t i = 0; i < exact.size(); ++i) {
    error += std::pow(rounded[i] - exact[i], 2);
    signal += std::pow(exact[i], 2);
  }
  // 2^-9 an operand, four products a block and six blocks like a random walk: 0.01; routers that
  // turn in a few rows add as much again.
  EXPECT_LT(std::sqrt(error / signal), 0.02);
  EXPECT_GT(error, 0.0);
}

TEST_F(CpuBlocksTest, EveryMaskedChannelChangesTheResult) {
  Side side(parameters_, precision("nvfp4-rac", 0.5));
  const RacMasks masks = side.masks;
  const std::vector<float> expected = logits(precision("nvfp4-rac", 0.5), masks);
  for (const Site site : {Site::kFfnIn, Site::kFfnMid}) {
    for (const size_t channel : {size_t{0}, size_t{15}, size_t{16}, size_t{63}}) {
      RacMasks flipped = masks;
      flipped.at(2, site)[channel] ^= 1;
      EXPECT_NE(logits(precision("nvfp4-rac", 0.5), flipped), expected) << channel;
    }
  }
}

TEST_F(CpuBlocksTest, AnEmptyCompensationMaskIsPlainNvfp4) {
  Side side(parameters_, precision("nvfp4-rac", 0.5));
  RacMasks none = side.masks;
  for (auto& mask : none.masks) std::ranges::fill(mask, uint8_t{0});
  EXPECT_EQ(logits(precision("nvfp4-rac", 0.5), none), logits(precision("nvfp4")));
}

TEST_F(CpuBlocksTest, CompensationBringsLogitsNearerToUnquantisedActivations) {
  const std::vector<float> target = logits(precision("w4a16"));
  const auto distance = [&](const std::vector<float>& x) {
    double sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) sum += std::pow(x[i] - target[i], 2);
    return std::sqrt(sum);
  };
  const double none = distance(logits(precision("nvfp4")));
  Side side(parameters_, precision("nvfp4-rac", 1.0));
  EXPECT_LT(distance(logits(precision("nvfp4-rac", 1.0), full_masks(side.model.sites()))),
            0.5 * none);
}

TEST_F(CpuBlocksTest, MasksOfTheWrongSizeAreRefusedWithTheSite) {
  Side side(parameters_, precision("nvfp4-rac", 0.5));
  RacMasks bad = side.masks;
  bad.at(2, Site::kFfnIn).pop_back();
  try {
    side.model.refresh(side.runtime.context(), bad);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("layer 2, site 2 has 63 channels, not 64"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(side.model.refresh(side.runtime.context(), {}), Error);
}

TEST_F(CpuBlocksTest, ANonFiniteWeightIsNamedWithRowAndColumn) {
  Side side(parameters_, precision("nvfp4"));
  const int64_t index = parameters_.layout().layers[2].gate_up[4];
  const Parameter& p = parameters_.layout().at(index);
  parameters_.values()[p.offset + (64 + 5) * 64 + 7] = to_bf16(INFINITY);  // up's row 5
  try {
    side.refresh();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what())
                  .find("model.layers.2.mlp.experts.4.up_proj.weight, row 5, column 7"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(CpuBlocksTest, ATokenOutsideTheVocabularyIsAnError) {
  Side side(parameters_, precision("bf16"));
  WholeSequences packed(side, {{1, 43}});
  EXPECT_THROW(run_logits(side, packed), Error);
  EXPECT_THROW(reference_logits(parameters_, std::vector<int32_t>{1, -1}), Error);
}

TEST_F(CpuBlocksTest, SharedTensorsAreHeldOnceAndGiveTheSameBits) {
  Side bf16(parameters_, precision("bf16"));
  kernels::CpuRuntime& runtime = bf16.runtime;
  PackedModel quantised(parameters_, {precision("w4a16").precision, {}, false, &bf16.model});
  quantised.refresh(runtime.context(), {});
  EXPECT_EQ(quantised.head().weight.tiles, bf16.model.head().weight.tiles);
  EXPECT_EQ(quantised.packed_bytes(), quantised.quantised_bytes());
  EXPECT_LE(static_cast<double>(quantised.quantised_bytes()),
            0.30 * static_cast<double>(quantised.quantised_bytes_as_bf16()));
  CpuBlocks blocks(runtime.context(), quantised);
  WholeSequences packed(bf16, random_sequences({30}, 43, 6));
  std::vector<float> x(static_cast<size_t>(packed.rows() * blocks.hidden()));
  forward_layers(blocks, packed.batch(), x.data(), nullptr);
  Side own(parameters_, precision("w4a16"));
  EXPECT_EQ(x, run_layers(own, packed.batch()));
}

TEST_F(CpuBlocksTest, LogProbsAndEntropiesAreThoseOfTheLogits) {
  Side side(parameters_, precision("bf16"));
  WholeSequences packed(side, random_sequences({50}, 43, 7));
  const std::vector<float> x = run_layers(side, packed.batch());
  const std::vector<float> logits = run_logits(side, packed);
  constexpr float kInvTemperature = 1.0F / 0.7F;
  const Targets targets = packed.targets(kInvTemperature);
  std::vector<float> logp(50), entropy(50);
  side.blocks.head_forward(targets, x.data(), packed.rows(), logp.data(), entropy.data());
  for (size_t r = 0; r < 50; ++r) {
    double sum = 0.0, mean = 0.0;
    for (size_t v = 0; v < 43; ++v) sum += std::exp(double{logits[r * 43 + v]} * kInvTemperature);
    for (size_t v = 0; v < 43; ++v) {
      const double z = double{logits[r * 43 + v]} * kInvTemperature;
      mean += std::exp(z) / sum * z;
    }
    const double z = double{logits[r * 43 + static_cast<size_t>(targets.tokens[r])]};
    EXPECT_NEAR(logp[r], z * kInvTemperature - std::log(sum), 1e-5);
    EXPECT_NEAR(entropy[r], std::log(sum) - mean, 1e-5);
  }
}

TEST_F(CpuBlocksTest, ResidualSumsDoNotDependOnThreadsAndLeaveOutRowsThatDoNotCount) {
  const auto sequences = random_sequences({40, 33}, 43, 8);
  const auto totals = [&](int threads, const std::vector<std::vector<int32_t>>& list,
                          const uint8_t* counted) {
    Side::Options options = precision("nvfp4-rac", 0.5);
    options.threads = threads;
    Side side(parameters_, options);
    WholeSequences packed(side, list);
    ResidualSums sums(side.model.sites(), threads);
    packed.batch().residual_sums = &sums;
    packed.batch().counted = counted;
    run_layers(side, packed.batch());
    return sums.totals();
  };
  std::vector<uint8_t> second_only(73, 0);
  std::fill(second_only.begin() + 40, second_only.end(), uint8_t{1});
  const auto all = totals(1, sequences, nullptr);
  EXPECT_EQ(all, totals(2, sequences, nullptr));
  const auto second = totals(1, {sequences[1]}, nullptr);
  EXPECT_EQ(second, totals(2, sequences, second_only.data()));
  EXPECT_NE(all, second);
  // Sites of the experts only: two sparse layers of three.
  for (size_t i = 0; i < all.size(); ++i) {
    const auto site = static_cast<Site>(i % kSites);
    const bool of_experts = site == Site::kFfnIn || site == Site::kFfnMid;
    EXPECT_EQ(!all[i].empty(), i / kSites != 1 && of_experts) << i;
  }
}

}  // namespace
}  // namespace quads::testing
