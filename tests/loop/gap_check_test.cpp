// The gap sees everything: a trainer that replays a rollout gets its bits, and the smallest change
// on the trainer's side (a bit of one weight code, a bit of a mask, a unit in the last place of a
// norm) makes a difference.
#include <gtest/gtest.h>

#include "rl/gap.h"
#include "tests/model/side.h"
#include "tests/rollout/testing.h"
#include "trainer/trainer.h"

namespace quads::testing {
namespace {

// Half of the channels are compensated, so that there are masks to change.
const Precision kHalf = {Format::kNvfp4, Format::kNvfp4, {.ratio = 0.5}};

std::vector<Sample> sample(TestModel& model) {
  Engine engine(model.backend, {});
  GenerateOptions generate;
  generate.seed = 5;
  generate.max_new_tokens = 12;
  generate.record_routing = true;
  return engine.generate(make_requests(2), generate);
}

// The largest difference of any token's log-prob.
double largest_gap(const std::vector<Sample>& samples, Parameters& parameters, Side& side) {
  Trainer trainer(side.runtime.context(), parameters, side.model, side.blocks, [] {}, {});
  std::vector<std::vector<int32_t>> tokens;
  std::vector<TrainSequence> sequences;
  std::vector<float> logprobs;
  tokens.reserve(samples.size());
  for (const Sample& sample : samples) {
    std::vector<int32_t>& all = tokens.emplace_back(sample.prompt);
    all.insert(all.end(), sample.response.begin(), sample.response.end());
    sequences.push_back({.tokens = all, .prompt_length = std::ssize(sample.prompt), .routing = {}});
    logprobs.insert(logprobs.end(), sample.logprobs.begin(), sample.logprobs.end());
  }
  return gap_metrics(logprobs, trainer.logprobs(sequences)).max;
}

class GapCheck : public ::testing::Test {
 protected:
  GapCheck() : rollout_(kHalf), trainer_(rollout_.parameters, {.precision = kHalf, .threads = 2}) {
    trainer_.masks = rollout_.masks;
    trainer_.refresh();
    samples_ = sample(rollout_);
  }

  double gap() { return largest_gap(samples_, rollout_.parameters, trainer_); }

  // An expert of the first layer that some token went through.
  int32_t used_expert() const { return samples_[0].routing[0]; }

  TestModel rollout_;
  Side trainer_;
  std::vector<Sample> samples_;
};

TEST_F(GapCheck, IsExactlyZeroWhenNothingWasChanged) { EXPECT_EQ(gap(), 0.0); }

TEST_F(GapCheck, SeesABitOfOneWeightCode) {
  const kernels::MoeBlock& ffn = trainer_.model.ffn(0);
  for (const kernels::PackedMatrix* matrices : {ffn.gate_up, ffn.down}) {
    uint8_t& codes = matrices[used_expert()].tiles[0];
    for (const uint8_t bit : {0x01, 0x80}) {  // the last bit of one code, the sign of its neighbour
      codes ^= bit;
      EXPECT_GT(gap(), 0.0) << "bit " << int{bit};
      codes ^= bit;
    }
  }
  EXPECT_EQ(gap(), 0.0);
}

TEST_F(GapCheck, SeesABitOfOneBlockScale) {
  uint8_t& scale = trainer_.model.ffn(0).down[used_expert()].scales[0];
  scale ^= 1;
  EXPECT_GT(gap(), 0.0);
  scale ^= 1;
  EXPECT_EQ(gap(), 0.0);
}

TEST_F(GapCheck, SeesABitOfOneMask) {
  for (const Site site : {Site::kFfnIn, Site::kFfnMid}) {
    for (const size_t channel : {size_t{0}, size_t{17}}) {
      trainer_.masks = rollout_.masks;
      trainer_.masks.at(0, site)[channel] ^= 1;
      trainer_.refresh();
      EXPECT_GT(gap(), 0.0) << "site " << static_cast<int>(site) << " channel " << channel;
    }
  }
  trainer_.masks = rollout_.masks;
  trainer_.refresh();
  EXPECT_EQ(gap(), 0.0);
}

// Every family, unquantised, compensated by half, and compensated wholly as quads-aligned is.
using FamilyCase = std::tuple<ModelConfig (*)(), Precision, QuantizeScope::What>;
class EachFamily : public ::testing::TestWithParam<FamilyCase> {};
INSTANTIATE_TEST_SUITE_P(
    GapCheck, EachFamily,
    ::testing::Combine(
        ::testing::Values(moe_config, dense_config, qwen2_moe_config, olmoe_config, mixtral_config),
        ::testing::Values(Precision{}, kHalf,
                          Precision{Format::kNvfp4, Format::kNvfp4, {.ratio = 1.0}}),
        ::testing::Values(QuantizeScope::What::kExperts, QuantizeScope::What::kLinears)));

TEST_P(EachFamily, ATrainerWithTheRolloutsPrecisionHasItsLogProbs) {
  const auto& [make_config, precision, what] = GetParam();
  ModelConfig config = make_config();
  config.vocab_size = kVocab;
  if (config.num_experts == 0 && what == QuantizeScope::What::kExperts) GTEST_SKIP();
  TestModel rollout(precision, {.what = what}, 1, kernels::best_isa(), config);
  randomise(rollout.parameters, 3);
  rollout.model.refresh(rollout.runtime.context(), rollout.masks);
  Side trainer(
      rollout.parameters,
      {.precision = precision, .scope = {.what = what}, .threads = 2, .masks = rollout.masks});
  EXPECT_EQ(largest_gap(sample(rollout), rollout.parameters, trainer), 0.0);
}

TEST_F(GapCheck, SeesAUnitInTheLastPlaceOfAnyNorm) {
  for (const Parameter& parameter : rollout_.parameters.layout().parameters) {
    if (!parameter.vector) continue;
    Bf16& weight = rollout_.parameters.values()[parameter.offset];
    weight.bits ^= 1;
    EXPECT_GT(gap(), 0.0) << parameter.name;
    weight.bits ^= 1;
  }
  EXPECT_EQ(gap(), 0.0);
}

}  // namespace
}  // namespace quads::testing
