// Whole-model gradients in C++: finite differences of the FP32 reference, and what must not change
// a bit of them. The comparison with PyTorch is in tests/oracle/test_trainer.py.
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "model/reference.h"
#include "tests/model/side.h"
#include "trainer/trainer.h"

namespace quads::testing {
namespace {

/// Sequences to train on, with a weight for every target's log-prob.
struct Batch {
  explicit Batch(const std::vector<int64_t>& lengths, int64_t vocab = 43)
      : tokens(random_sequences(lengths, vocab, 12)) {
    RandomSequence random(13, RandomStream::kTask, 0);
    for (const std::vector<int32_t>& t : tokens) {
      sequences.push_back({.tokens = t, .prompt_length = 1 + std::ssize(t) / 4, .routing = {}});
      std::vector<float>& w = weights.emplace_back();
      for (int64_t i = 0; i < sequences.back().targets(); ++i) w.push_back(random.uniform() - 0.3F);
    }
  }
  LossFunction loss() const {
    return [this](const MicroBatch& micro, std::span<float> dlogp) {
      for (size_t s = 0; s + 1 < micro.offsets.size(); ++s) {
        std::ranges::copy(weights[static_cast<size_t>(micro.first) + s],
                          dlogp.begin() + micro.offsets[s]);
      }
    };
  }
  std::vector<std::vector<int32_t>> tokens;
  std::vector<TrainSequence> sequences;
  std::vector<std::vector<float>> weights;
};

struct Variant {
  const char* precision = "bf16";
  double ratio = 0.0;
  int threads = 1;
  int64_t max_tokens = 2048;
  bool checkpoint = false;
};

std::vector<float> gradients(Parameters& parameters, const Batch& batch, const Variant& run) {
  Side side(parameters, {.precision = parse_precision(run.precision, {.ratio = run.ratio}),
                         .threads = run.threads,
                         .with_transposes = true});
  Trainer trainer(side.runtime.context(), parameters, side.model, side.blocks,
                  [&] { side.refresh(); },
                  {.max_tokens = run.max_tokens, .checkpoint_activations = run.checkpoint});
  trainer.accumulate(batch.sequences, batch.loss());
  const float* grads = trainer.optimizer().grads();
  return {grads, grads + parameters.layout().total};
}

class EachRun : public ::testing::TestWithParam<Variant> {
 protected:
  EachRun() : parameters_(moe_config()), batch_({33, 70, 2, 17, 16}) { randomise(parameters_, 3); }
  std::vector<float> with(const Variant& run) { return gradients(parameters_, batch_, run); }
  Parameters parameters_;
  Batch batch_;
};
INSTANTIATE_TEST_SUITE_P(Precision, EachRun,
                         ::testing::Values(Variant{"bf16"}, Variant{"fp8"}, Variant{"w4a16"},
                                           Variant{"nvfp4"}, Variant{"nvfp4-rac", 0.5}),
                         [](const auto& info) {
                           std::string name = info.param.precision;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(EachRun, ThreadsGiveTheSameBits) {
  Variant run = GetParam();
  const std::vector<float> one = with(run);
  for (run.threads = 2; run.threads <= 3; ++run.threads) EXPECT_EQ(with(run), one) << run.threads;
}

TEST_P(EachRun, RecomputedActivationsGiveTheSameBits) {
  Variant run = GetParam();
  const std::vector<float> kept = with(run);
  run.checkpoint = true;
  EXPECT_EQ(with(run), kept);
}

TEST_P(EachRun, MicroBatchesChangeTheOrderOfSummationOnly) {
  Variant run = GetParam();
  const std::vector<float> whole = with(run);
  run.max_tokens = 40;
  const std::vector<float> split = with(run);
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < whole.size(); ++i) {
    difference += std::pow(double{whole[i]} - split[i], 2);
    norm += std::pow(double{whole[i]}, 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 1e-6);
}

TEST_P(EachRun, PaddingGetsNoGradient) {
  const std::vector<float> grads = with(GetParam());
  for (const Parameter& p : parameters_.layout().parameters) {
    for (int64_t i = p.size(); i < p.padded_size(); ++i) {
      ASSERT_EQ(grads[static_cast<size_t>(p.offset + i)], 0.0F) << p.name;
    }
  }
}

// One tensor moves along the gradient's signs, both ways, by the least that BF16 can: the
// reference's loss must change as the gradient says. Of a matrix every 17th element moves, so that
// the change stays far below the curvature. All experts are chosen, so no router turns.
void expect_slopes(const ModelConfig& config, const std::vector<std::string>& names) {
  Parameters parameters(config);
  randomise(parameters, 6);
  const Batch batch({12, 9});
  const std::vector<float> grads = gradients(parameters, batch, {});
  const auto loss = [&] {
    double sum = 0.0;
    for (size_t s = 0; s < batch.sequences.size(); ++s) {
      const TrainSequence& sequence = batch.sequences[s];
      const auto fed = sequence.tokens.first(static_cast<size_t>(sequence.rows()));
      const std::vector<float> logits = reference_logits(parameters, fed);
      for (int64_t i = 0; i < sequence.targets(); ++i) {
        const int64_t row = sequence.prompt_length - 1 + i;
        const float* z = logits.data() + row * config.vocab_size;
        double total = 0.0;
        for (int64_t v = 0; v < config.vocab_size; ++v) total += std::exp(double{z[v]});
        const int32_t target = sequence.tokens[static_cast<size_t>(row + 1)];
        sum += batch.weights[s][static_cast<size_t>(i)] * (z[target] - std::log(total));
      }
    }
    return sum;
  };
  size_t found = 0;
  for (const Parameter& p : parameters.layout().parameters) {
    if (std::ranges::find(names, p.name) == names.end()) continue;
    ++found;
    Bf16* values = parameters.values() + p.offset;
    const std::vector<Bf16> centre(values, values + p.size());
    const auto loss_at = [&](float direction, double* moved) {
      for (int64_t i = 0; i < p.size(); i += p.vector ? 1 : 17) {
        const float x = to_float(centre[static_cast<size_t>(i)]);
        const float slope = grads[static_cast<size_t>(p.offset + i)];
        const float step = std::copysign(std::abs(x) * 0x1p-7F, slope) * direction;
        values[i] = to_bf16(x + step);
        *moved += double{slope} * (to_float(values[i]) - x);
      }
      const double result = loss();
      std::ranges::copy(centre, values);
      return result;
    };
    double up = 0.0, down = 0.0;
    const double change = loss_at(1.0F, &up) - loss_at(-1.0F, &down);
    // The gradients' own error (BF16 operands) is 1 to 2.5 % of their norm, and mostly across;
    // without a norm of queries and keys twice that.
    const double bound = config.qk_norm() == QkNorm::kNone ? 0.06 : 0.03;
    EXPECT_NEAR(change / (up - down), 1.0, bound) << p.name;
  }
  EXPECT_EQ(found, names.size());
}

TEST(Gradient, IsTheSlopeOfTheReferenceForExperts) {
  ModelConfig config = moe_config();
  config.num_experts_per_tok = config.num_experts;
  config.norm_topk_prob = false;
  const std::string sparse = "model.layers.0.", dense = "model.layers.1.";
  expect_slopes(
      config, {"model.embed_tokens.weight", "model.norm.weight", sparse + "input_layernorm.weight",
               sparse + "self_attn.qkv_proj", sparse + "self_attn.q_norm.weight",
               sparse + "self_attn.k_norm.weight", sparse + "self_attn.o_proj.weight",
               sparse + "post_attention_layernorm.weight", sparse + "mlp.gate.weight",
               sparse + "mlp.experts.3.gate_up_proj", sparse + "mlp.experts.3.down_proj.weight",
               dense + "mlp.gate_up_proj", dense + "mlp.down_proj.weight"});
}

TEST(Gradient, IsTheSlopeOfTheReferenceForADenseUntiedModel) {
  expect_slopes(dense_config(),
                {"model.embed_tokens.weight", "lm_head.weight", "model.layers.1.self_attn.qkv_proj",
                 "model.layers.0.mlp.down_proj.weight"});
}

TEST(Gradient, IsTheSlopeOfTheReferenceForSharedExpertsAndBiases) {
  ModelConfig config = qwen2_moe_config();
  config.num_experts_per_tok = config.num_experts;
  const std::string layer = "model.layers.0.";
  expect_slopes(config, {layer + "self_attn.qkv_bias", layer + "self_attn.qkv_proj",
                         layer + "mlp.gate.weight", layer + "mlp.experts.2.gate_up_proj",
                         layer + "mlp.shared_expert.gate_up_proj",
                         layer + "mlp.shared_expert.down_proj.weight"});
}

TEST(Gradient, IsTheSlopeOfTheReferenceForANormOverAllHeads) {
  ModelConfig config = olmoe_config();
  config.num_experts_per_tok = config.num_experts;
  const std::string layer = "model.layers.0.";
  expect_slopes(config, {layer + "self_attn.q_norm.weight", layer + "self_attn.k_norm.weight",
                         layer + "self_attn.qkv_proj", layer + "mlp.experts.3.down_proj.weight"});
}

TEST(Gradient, IsTheSlopeOfTheReferenceForMixtral) {
  ModelConfig config = mixtral_config();
  config.num_experts_per_tok = config.num_experts;
  const std::string layer = "model.layers.1.";
  expect_slopes(config, {layer + "self_attn.qkv_proj", layer + "block_sparse_moe.gate.weight",
                         layer + "block_sparse_moe.experts.3.w2.weight"});
}

TEST(Gradient, TwoAccumulationsAddUp) {
  Parameters parameters(moe_config());
  randomise(parameters, 3);
  const Batch batch({20, 31});
  Side side(parameters, {.with_transposes = true});
  Trainer trainer(side.runtime.context(), parameters, side.model, side.blocks, [] {}, {});
  trainer.accumulate(batch.sequences, batch.loss());
  const float* grads = trainer.optimizer().grads();
  const std::vector<float> once(grads, grads + parameters.layout().total);
  trainer.accumulate(batch.sequences, batch.loss());
  for (size_t i = 0; i < once.size(); ++i) {
    ASSERT_NEAR(grads[i], 2 * once[i], 1e-5F * (std::abs(once[i]) + 1e-2F));
  }
}

TEST(Gradient, SequencesWithoutTargetsOrWithTornRoutingAreErrors) {
  Parameters parameters(moe_config());
  randomise(parameters, 3);
  Batch batch({8});
  Side side(parameters, {.with_transposes = true});
  Trainer trainer(side.runtime.context(), parameters, side.model, side.blocks, [] {}, {});
  batch.sequences[0].prompt_length = 8;
  EXPECT_THROW(trainer.logprobs(batch.sequences), Error);
  batch.sequences[0].prompt_length = 0;
  EXPECT_THROW(trainer.logprobs(batch.sequences), Error);
  batch.sequences[0].prompt_length = 2;
  const std::vector<int32_t> routing(7 * 3 * 2 - 1, 0);
  batch.sequences[0].routing = routing;
  EXPECT_THROW(trainer.logprobs(batch.sequences), Error);
}

}  // namespace
}  // namespace quads::testing
