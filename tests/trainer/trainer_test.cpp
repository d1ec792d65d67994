// The trainer at work: packing, log-probs, golden first losses, learning, updates that must not
// happen.
#include "trainer/trainer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>

#include "tests/model/side.h"
#include "tests/trainer/pattern.h"

namespace quads::testing {
namespace {

TEST(Pack, FillsTheBudgetInOrderAndGivesALongSequenceItsOwnRange) {
  const auto tokens = random_sequences({11, 11, 12, 50, 6, 6}, 43, 1);  // a row fewer each
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(pack(whole(tokens), 20), (Ranges{{0, 2}, {2, 3}, {3, 4}, {4, 6}}));
  EXPECT_EQ(pack(whole(tokens), 1000), (Ranges{{0, 6}}));
  EXPECT_EQ(pack(whole(tokens), 1), (Ranges{{0, 1}, {1, 2}, {2, 3}, {3, 4}, {4, 5}, {5, 6}}));
  EXPECT_EQ(pack({}, 20), Ranges{});
}

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() : parameters_(moe_config()) { randomise(parameters_, 3); }

  std::vector<float> logprobs(const Side::Options& options, int64_t max_tokens,
                              std::vector<float>* entropies = nullptr) {
    Side side(parameters_, options);
    Trainer trainer(side.runtime.context(), parameters_, side.model, side.blocks, [] {},
                    {.temperature = 0.8F, .max_tokens = max_tokens});
    const auto tokens = random_sequences({30, 5, 64, 17}, 43, 2);
    return trainer.logprobs(whole(tokens), entropies);
  }
  Parameters parameters_;
};

TEST_F(TrainerTest, LogProbsAndEntropiesDoNotDependOnPacking) {
  std::vector<float> entropies, entropies_apart;
  const std::vector<float> packed = logprobs({}, 2048, &entropies);
  EXPECT_EQ(packed.size(), size_t{29 + 4 + 63 + 16});
  EXPECT_EQ(logprobs({}, 1, &entropies_apart), packed);
  EXPECT_EQ(entropies_apart, entropies);
  EXPECT_EQ(entropies.size(), packed.size());
}

TEST_F(TrainerTest, UpdatesSeeTheSameLogProbsAsEvaluation) {
  Side side(parameters_, {.with_transposes = true});
  Trainer trainer(side.runtime.context(), parameters_, side.model, side.blocks, [] {}, {});
  const auto tokens = random_sequences({30, 5, 64, 17}, 43, 2);
  const std::vector<TrainSequence> sequences = whole(tokens);
  std::vector<float> seen, entropies;
  trainer.accumulate(sequences, [&](const MicroBatch& micro, std::span<float>) {
    seen.assign(micro.logprobs.begin(), micro.logprobs.end());
    entropies.assign(micro.entropies.begin(), micro.entropies.end());
  });
  std::vector<float> expected_entropies;
  EXPECT_EQ(trainer.logprobs(sequences, &expected_entropies), seen);
  EXPECT_EQ(expected_entropies, entropies);
}

uint64_t hash_of(const std::vector<float>& values) {
  uint64_t hash = 0xCBF29CE484222325U;  // FNV-1a over words
  for (const float v : values) hash = (hash ^ std::bit_cast<uint32_t>(v)) * 0x100000001B3U;
  return hash;
}

// The bits of a first forward on a seeded model, the same on every instruction set and machine.
// With QUADS_UPDATE_GOLDEN=1 in the environment the file is written instead.
TEST_F(TrainerTest, FirstLogProbsAreTheGoldenOnesOnEveryInstructionSet) {
  const std::string path =
      std::string(QUADS_SOURCE_DIR) + "/tests/trainer/golden/first_logprobs.txt";
  std::map<std::string, uint64_t> golden;
  std::ifstream in(path);
  std::string key;
  for (uint64_t value = 0; in >> key >> std::hex >> value;) golden[key] = value;
  const char* update = std::getenv("QUADS_UPDATE_GOLDEN");
  const bool updating = update != nullptr && std::string_view(update) == "1";
  std::map<std::string, uint64_t> hashes;
  for (const auto isa :
       {kernels::Isa::kPortable, kernels::Isa::kAvx2, kernels::Isa::kAvx512, kernels::Isa::kAmx}) {
    if (!kernels::isa_available(isa)) continue;
    for (const char* name : {"bf16", "fp8", "w4a16", "nvfp4", "nvfp4-rac"}) {
      Side::Options options;
      options.precision = parse_precision(name, {.ratio = 0.5});
      options.scope.what = QuantizeScope::What::kLinears;
      options.isa = isa;
      const uint64_t hash = hash_of(logprobs(options, 2048));
      hashes[name] = hash;
      if (!updating) {
        EXPECT_EQ(hash, golden[name]) << name << " on " << kernels::isa_name(isa);
      }
    }
  }
  if (updating) {
    std::ofstream out(path);
    for (const auto& [name, hash] : hashes) out << name << ' ' << std::hex << hash << '\n';
    ASSERT_TRUE(out.good()) << path;
  }
}

TEST_F(TrainerTest, ANonFiniteGradientChangesNothingAndIsForgotten) {
  Side side(parameters_, {.with_transposes = true});
  int refreshed = 0;
  Trainer trainer(side.runtime.context(), parameters_, side.model, side.blocks,
                  [&] { ++refreshed; }, {});
  const int64_t total = parameters_.layout().total;
  const std::vector<Bf16> values(parameters_.values(), parameters_.values() + total);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    trainer.optimizer().grads()[total / 2] = bad;
    const Optimizer::Result result = trainer.update(1e-3F);
    EXPECT_FALSE(result.applied);
    EXPECT_FALSE(std::isfinite(result.grad_norm));
    EXPECT_TRUE(std::equal(values.begin(), values.end(), parameters_.values()));
    EXPECT_EQ(trainer.optimizer().updates(), 0);
    EXPECT_EQ(refreshed, 0);
    EXPECT_EQ(trainer.optimizer().grads()[total / 2], 0.0F);
  }
  trainer.optimizer().grads()[parameters_.layout().at(0).offset] = 1.0F;
  EXPECT_TRUE(trainer.update(1e-3F).applied);
  EXPECT_EQ(refreshed, 1);
}

TEST_F(TrainerTest, PublishingRestoresTheParametersFromTheMasters) {
  kernels::CpuRuntime runtime(kernels::best_isa(), 1);
  CpuOptimizer optimizer(runtime.context(), parameters_, {});
  const int64_t total = parameters_.layout().total;
  const std::vector<Bf16> values(parameters_.values(), parameters_.values() + total);
  std::fill_n(parameters_.values(), total, Bf16{0});
  optimizer.publish();
  EXPECT_TRUE(std::equal(values.begin(), values.end(), parameters_.values()));
}

class Learning : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Precision, Learning,
                         ::testing::Values("bf16", "w4a16", "nvfp4", "nvfp4-rac"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(Learning, FiftyStepsOnAPatternMoreThanHalveTheLoss) {
  ModelConfig config = moe_config();
  config.initializer_range = 0.05;
  Parameters parameters(config);
  parameters.initialise(1);
  Side side(parameters, {.precision = parse_precision(GetParam(), {.ratio = 0.5}),
                         .threads = 2,
                         .with_transposes = true});
  Trainer trainer(side.runtime.context(), parameters, side.model, side.blocks,
                  [&] { side.refresh(); }, {});
  const std::vector<double> losses = learn_pattern(trainer, 50);
  EXPECT_NEAR(losses.front(), std::log(43.0), 0.5);
  EXPECT_LT(losses.back(), losses.front() / 2);
}

}  // namespace
}  // namespace quads::testing
