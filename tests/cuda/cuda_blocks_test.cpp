// The trainer's blocks on a GPU: their log-probs are the rollout's bits, their gradients the CPU's
// but for the order of sums.
#include "cuda/cuda_blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda/cuda_optimizer.h"
#include "cuda/memory_plan.h"
#include "cuda/models.h"
#include "kernels/cuda/device_array.h"
#include "model/side.h"
#include "rollout/testing.h"
#include "trainer/pattern.h"
#include "trainer/trainer.h"

namespace quads::testing {
namespace {

using cuda::CudaBackend;
using cuda::CudaBlocks;
using cuda::CudaModel;
using cuda::CudaOptimizer;
using cuda::DeviceParameters;
using cuda::HostParameters;
using kernels::cuda::DeviceArray;

struct Case {
  std::string name;
  ModelConfig config;
  std::string precision = "bf16";
  double ratio = 0.0;
  QuantizeScope scope = {};
  bool scale_floor = false;
  Precision parsed() const {
    return parse_precision(precision, {.ratio = ratio, .scale_floor = scale_floor});
  }
};

constexpr QuantizeScope kAllLinears{.what = QuantizeScope::What::kLinears};

// Dense layers' sums are long enough, too, that their order matters.
ModelConfig wide_dense_config() {
  ModelConfig c = wide_config();
  c.intermediate_size = 320;
  return c;
}

ModelConfig widest_heads_config() {
  ModelConfig c = moe_config();
  c.num_hidden_layers = 1;
  c.mlp_only_layers.clear();
  c.num_attention_heads = 2;
  c.head_dim = 240;
  c.initializer_range = 0.1;
  return c;
}

// A shared expert wider than all that a row chooses.
ModelConfig wide_shared_config() {
  ModelConfig c = qwen2_moe_config();
  c.shared_expert_intermediate_size = 352;
  c.num_experts = 31;
  c.num_experts_per_tok = 1;
  return c;
}

Parameters random_parameters(const ModelConfig& config) {
  Parameters parameters(config);
  randomise(parameters, 3);
  return parameters;
}

class Device {
 public:
  Device(const Parameters& parameters, const Side& side)
      : source_(parameters),
        model_(stream_.get(), source_, side.model.precision(), side.model.scope(), 256) {
    model_.refresh(side.masks);
    blocks = std::make_unique<CudaBlocks>(stream_.get(), model_);
  }
  void wait() { stream_.wait("a test's blocks"); }

 private:
  cuda::Stream stream_;
  HostParameters source_;
  CudaModel model_;

 public:
  std::unique_ptr<CudaBlocks> blocks;
};

std::vector<float> random_values(int64_t count, float scale, uint64_t seed) {
  RandomSequence random(seed, RandomStream::kTask, 99);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) {
    v = (random.uniform() + random.uniform() + random.uniform() - 1.5F) * 2 * scale;
  }
  return values;
}

// Blocks run on identical inputs. What may differ is the order of sums: it moves a last place in
// front of a rounding now and then, and with it a BF16 operand by 2^-8 of itself (or a code of a
// quantiser, more rarely by far), in the attention besides TF32's rounding of 2^-12. A tensor's
// error was 1.3e-3 at worst on an H200. Operands before their quantisation would give 9e-2 (NVFP4),
// 3e-2 (FP8) and 9e-3 (NVFP4 with all blocks compensated).
constexpr double kBound = 2.5e-3;

class CudaGradient : public ::testing::TestWithParam<Case> {
 protected:
  CudaGradient()
      : parameters(random_parameters(GetParam().config)),
        side(
            parameters,
            {.precision = GetParam().parsed(), .scope = GetParam().scope, .with_transposes = true}),
        batch(side, random_sequences({33, 1, 70, 2, 17, 16, 64}, 43, 12)) {}
  void SetUp() override {
    QUADS_NEEDS_DEVICE();
    device = std::make_unique<Device>(parameters, side);
  }

  int64_t elements() const { return batch.rows() * side.blocks.hidden(); }
  /// Compares every parameter's gradient, and dx.
  void expect_near(const std::vector<float>& cpu, const std::vector<float>& gpu,
                   const std::vector<float>& cpu_dx, const std::vector<float>& gpu_dx,
                   const std::string& what) {
    for (const Parameter& p : parameters.layout().parameters) {
      EXPECT_LT(relative_error(gpu.data() + p.offset, cpu.data() + p.offset, p.padded_size()),
                kBound)
          << what << ": gradient of " << p.name;
    }
    EXPECT_LT(relative_error(gpu_dx.data(), cpu_dx.data(), std::ssize(cpu_dx)), kBound)
        << what << ": dx";
  }

  template <class Run>
  void run_both(Blocks& other, const std::vector<float>& x, const std::vector<float>& dy,
                const std::string& what, Run run) {
    const auto total = static_cast<size_t>(parameters.layout().total);
    const std::vector<float> zeros(total, 0.0F);
    std::vector<float> cpu_grads = zeros, cpu_dx(x.size(), NAN);
    run(side.blocks, x.data(), dy.data(), cpu_grads.data(), cpu_dx.data());
    DeviceArray<float> device_x(x), device_dy(dy), grads(zeros), dx(x.size());
    dx.fill_bytes(0xFF);
    run(other, device_x.data(), device_dy.data(), grads.data(), dx.data());
    device->wait();
    expect_near(cpu_grads, grads.download(), cpu_dx, dx.download(), what);
  }

  Parameters parameters;
  Side side;
  WholeSequences batch;
  std::unique_ptr<Device> device;
};

TEST_P(CudaGradient, OfEveryBlockIsTheCpusButForTheOrderOfSums) {
  const int64_t layers = side.model.num_layers();
  const int64_t top_k = side.model.config().num_experts_per_tok;
  std::vector<int32_t> routing(static_cast<size_t>(layers * batch.rows() * top_k), -1);
  std::vector<std::vector<float>> inputs(static_cast<size_t>(2 * layers + 1),
                                         std::vector<float>(static_cast<size_t>(elements())));
  std::vector<float*> saved;
  for (std::vector<float>& x : inputs) saved.push_back(x.data());
  batch.batch().record_routing = routing.data();
  forward_layers(side.blocks, batch.batch(), nullptr, saved.data());
  batch.batch().record_routing = nullptr;
  if (top_k > 0) batch.batch().replay_routing = routing.data();
  const std::vector<float> dy = random_values(elements(), 0.1F, 5);

  DeviceArray<float> x(static_cast<size_t>(elements()));
  device->blocks->embed(batch.batch(), x.data());
  device->wait();
  EXPECT_EQ(bits(x.download()), bits(inputs[0]));
  for (int64_t l = 0; l < layers; ++l) {
    run_both(*device->blocks, inputs[static_cast<size_t>(2 * l)], dy,
             "attention of layer " + std::to_string(l),
             [&](Blocks& b, const float* in, const float* d, float* grads, float* dx) {
               b.attention_backward(l, batch.batch(), in, d, grads, dx);
             });
    run_both(*device->blocks, inputs[static_cast<size_t>(2 * l + 1)], dy,
             "experts of layer " + std::to_string(l),
             [&](Blocks& b, const float* in, const float* d, float* grads, float* dx) {
               b.ffn_backward(l, batch.batch(), in, d, grads, dx);
             });
  }
  const Targets targets = batch.targets(1.25F);
  const std::vector<float> dlogp = random_values(targets.count, 0.5F, 6);
  run_both(*device->blocks, inputs.back(), dy, "head",
           [&](Blocks& b, const float* in, const float*, float* grads, float* dx) {
             b.head_backward(targets, in, batch.rows(), dlogp.data(), grads, dx);
           });
}

TEST_P(CudaGradient, OfTheEmbeddingHasTheCpusBits) {
  const std::vector<float> dy = random_values(elements(), 0.1F, 5);
  std::vector<float> expected(static_cast<size_t>(parameters.layout().total), 0.5F);
  DeviceArray<float> x(dy), grads(expected);
  side.blocks.embed_backward(batch.batch(), dy.data(), expected.data());
  DeviceArray<float> out(dy.size());
  device->blocks->embed(batch.batch(), out.data());
  device->blocks->embed_backward(batch.batch(), x.data(), grads.data());
  device->wait();
  EXPECT_EQ(bits(grads.download()), bits(expected));
}

/// A trainer on the device.
struct DeviceTrainer {
  DeviceTrainer(const Parameters& initial, const Side& side, const Trainer::Options& options = {},
                int64_t logits = CudaBlocks::kDefaultLogits)
      : masks(side.masks),
        parameters(HostParameters(initial), stream.get()),
        model(stream.get(), parameters, side.model.precision(), side.model.scope(), 256),
        blocks(stream.get(), model, logits) {
    model.refresh(masks);
    auto optimizer = std::make_unique<CudaOptimizer>(stream.get(), parameters, options.adamw);
    trainer = std::make_unique<Trainer>(
        blocks, std::move(optimizer), SequenceBatch(initial.config()),
        [this] { model.refresh(masks); }, options);
  }
  std::vector<float> gradients() {
    std::vector<float> values(static_cast<size_t>(parameters.layout().total));
    stream.wait("gradients");
    kernels::cuda::check_cuda(cudaMemcpy(values.data(), trainer->optimizer().grads(),
                                         values.size() * sizeof(float), cudaMemcpyDeviceToHost),
                              "gradients");
    return values;
  }
  RacMasks masks;
  cuda::Stream stream;
  DeviceParameters parameters;
  CudaModel model;
  CudaBlocks blocks;
  std::unique_ptr<Trainer> trainer;
};

std::vector<float> gradients_of(const Parameters& parameters, const Side& side,
                                const std::vector<std::vector<int32_t>>& tokens,
                                int64_t max_tokens) {
  DeviceTrainer device(parameters, side, {.max_tokens = max_tokens});
  device.trainer->accumulate(whole(tokens), [](const MicroBatch&, std::span<float> dlogp) {
    for (size_t i = 0; i < dlogp.size(); ++i) dlogp[i] = 0.1F * static_cast<float>(i % 7) - 0.2F;
  });
  return device.gradients();
}

TEST_P(CudaGradient, ASecondRunGivesTheSameBits) {
  const auto tokens = random_sequences({33, 2, 70, 17}, 43, 4);
  const std::vector<float> first = gradients_of(parameters, side, tokens, 2048);
  EXPECT_EQ(bits(gradients_of(parameters, side, tokens, 2048)), bits(first));
  for (const float g : first) ASSERT_TRUE(std::isfinite(g));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaGradient,
    ::testing::Values(Case{"bf16", moe_config()}, Case{"w4a16", moe_config(), "w4a16"},
                      Case{"fp8", moe_config(), "fp8"}, Case{"nvfp4", moe_config(), "nvfp4"},
                      Case{"rac50", moe_config(), "nvfp4-rac", 0.5},
                      Case{"rac100", moe_config(), "nvfp4-rac", 1.0}, Case{"dense", dense_config()},
                      Case{"shared", qwen2_moe_config()},
                      Case{"shared_wide", wide_shared_config(), "nvfp4-rac", 0.5},
                      Case{"floor50", moe_config(), "nvfp4-rac", 0.5, {}, true},
                      Case{"whole_norm", whole_norm_config()},
                      Case{"mixtral", mixtral_config(), "nvfp4"}, Case{"wide", wide_dense_config()},
                      Case{"wide_rac100", wide_dense_config(), "nvfp4-rac", 1.0},
                      Case{"widest_heads", widest_heads_config()}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Linears, CudaGradient,
    ::testing::Values(Case{"w4a16", moe_config(), "w4a16", 0.0, kAllLinears},
                      Case{"w16a4", moe_config(), "w16a4", 0.0, kAllLinears},
                      Case{"fp8", moe_config(), "fp8", 0.0, kAllLinears},
                      Case{"nvfp4", moe_config(), "nvfp4", 0.0, kAllLinears},
                      Case{"rac50", moe_config(), "nvfp4-rac", 0.5, kAllLinears},
                      Case{"rac100", moe_config(), "nvfp4-rac", 1.0, kAllLinears},
                      Case{"dense", dense_config(), "nvfp4-rac", 0.5, kAllLinears},
                      Case{"shared_fp8", qwen2_moe_config(), "fp8", 0.0, kAllLinears},
                      Case{"shared_rac50", qwen2_moe_config(), "nvfp4-rac", 0.5, kAllLinears},
                      Case{"shared_wide_rac100", wide_shared_config(), "nvfp4-rac", 1.0,
                           kAllLinears},
                      Case{"whole_norm", whole_norm_config(), "nvfp4", 0.0, kAllLinears},
                      Case{"wide_rac50", wide_dense_config(), "nvfp4-rac", 0.5, kAllLinears},
                      Case{"dense_layer_only",
                           moe_config(),
                           "nvfp4-rac",
                           0.5,
                           {.what = QuantizeScope::What::kLinears,
                            .high_precision_first_layers = 1,
                            .high_precision_last_layers = 1}}),
    [](const auto& info) { return info.param.name; });

// What makes the gap zero: scores and the trainer's forward are the same kernels.
class CudaTrainer : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Precisions, CudaTrainer,
    ::testing::Values(Case{"bf16", moe_config()}, Case{"w4a16", moe_config(), "w4a16"},
                      Case{"fp8", moe_config(), "fp8"}, Case{"nvfp4", moe_config(), "nvfp4"},
                      Case{"rac100", moe_config(), "nvfp4-rac", 1.0},
                      Case{"floor100", moe_config(), "nvfp4-rac", 1.0, {}, true}),
    [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(
    Sites, CudaTrainer,
    ::testing::Values(
        Case{"shared", qwen2_moe_config()},
        Case{"shared_rac50", qwen2_moe_config(), "nvfp4-rac", 0.5},
        Case{"linears_fp8", moe_config(), "fp8", 0.0, kAllLinears},
        Case{"linears_nvfp4", moe_config(), "nvfp4", 0.0, kAllLinears},
        Case{"linears_shared_rac100", qwen2_moe_config(), "nvfp4-rac", 1.0, kAllLinears},
        Case{"linears_shared_floor50", qwen2_moe_config(), "nvfp4-rac", 0.5, kAllLinears, true},
        Case{"not_the_first", moe_config(), "nvfp4-rac", 0.5, {.high_precision_first_layers = 1}}),
    [](const auto& info) { return info.param.name; });

TEST_P(CudaTrainer, LogProbsAreTheRolloutsBitsHoweverPacked) {
  QUADS_NEEDS_DEVICE();
  const Parameters parameters = random_parameters(GetParam().config);
  const Side side(parameters, {.precision = GetParam().parsed(), .scope = GetParam().scope});
  const HostParameters source(parameters);
  CudaBackend backend(
      source, {.precision = GetParam().parsed(), .scope = GetParam().scope, .max_context = 128});
  backend.refresh(side.masks);
  Engine engine(backend, {.max_context = 128});
  GenerateOptions options = make_options();
  options.sampling.temperature = 0.8F;
  options.record_routing = true;
  const std::vector<Sample> samples = engine.generate(make_requests(2), options);
  std::vector<std::vector<int32_t>> tokens;
  std::vector<TrainSequence> sequences, replayed;
  std::vector<float> expected;
  for (const Sample& s : samples) {
    std::vector<int32_t>& t = tokens.emplace_back(s.prompt);
    t.insert(t.end(), s.response.begin(), s.response.end());
    expected.insert(expected.end(), s.logprobs.begin(), s.logprobs.end());
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    sequences.push_back(
        {.tokens = tokens[i], .prompt_length = std::ssize(samples[i].prompt), .routing = {}});
    replayed.push_back(sequences.back());
    replayed.back().routing = samples[i].routing;
  }
  for (const int64_t max_tokens : {1, 50, 4096}) {
    DeviceTrainer device(parameters, side, {.temperature = 0.8F, .max_tokens = max_tokens});
    std::vector<float> entropies;
    EXPECT_EQ(bits(device.trainer->logprobs(sequences, &entropies)), bits(expected)) << max_tokens;
    EXPECT_EQ(entropies.size(), expected.size());
    EXPECT_EQ(bits(device.trainer->logprobs(replayed)), bits(expected)) << max_tokens;
  }
}

TEST_P(CudaTrainer, MicroBatchesChangeTheOrderOfSummationOnly) {
  QUADS_NEEDS_DEVICE();
  const Parameters parameters = random_parameters(GetParam().config);
  const Side side(parameters, {.precision = GetParam().parsed(), .scope = GetParam().scope});
  const auto tokens = random_sequences({15, 8, 64, 29}, 43, 4);
  // The loss's weights do not depend on the packing.
  const auto run = [&](int64_t max_tokens) {
    DeviceTrainer device(parameters, side, {.max_tokens = max_tokens});
    device.trainer->accumulate(whole(tokens), [](const MicroBatch&, std::span<float> dlogp) {
      std::ranges::fill(dlogp, -0.1F);
    });
    return device.gradients();
  };
  const std::vector<float> packed = run(2048), apart = run(1);
  EXPECT_LT(relative_error(apart.data(), packed.data(), std::ssize(packed)), 1e-5);
}

TEST_P(CudaTrainer, LogitsInPiecesGiveTheSame) {
  QUADS_NEEDS_DEVICE();
  const Parameters parameters = random_parameters(GetParam().config);
  const Side side(parameters, {.precision = GetParam().parsed(), .scope = GetParam().scope});
  const auto tokens = random_sequences({15, 8, 64, 29}, 43, 4);
  const auto run = [&](int64_t logits, std::vector<float>* logprobs) {
    DeviceTrainer device(parameters, side, {}, logits);
    device.trainer->accumulate(whole(tokens), [&](const MicroBatch& micro, std::span<float> dlogp) {
      logprobs->assign(micro.logprobs.begin(), micro.logprobs.end());
      std::ranges::fill(dlogp, -0.1F);
    });
    return device.gradients();
  };
  std::vector<float> at_once, in_pieces;
  const std::vector<float> expected = run(CudaBlocks::kDefaultLogits, &at_once);
  for (const int64_t logits : {int64_t{1}, int64_t{43 * 50}}) {
    const std::vector<float> gradients = run(logits, &in_pieces);
    EXPECT_EQ(bits(in_pieces), bits(at_once));
    // The head's gradient is summed over the rows in another order.
    EXPECT_LT(relative_error(gradients.data(), expected.data(), std::ssize(expected)), 1e-5);
  }
}

// Steps on a pattern, as the CPU's trainer takes them: the losses part slowly, as chance has it.
TEST_P(CudaTrainer, LearnsAsTheCpuDoes) {
  QUADS_NEEDS_DEVICE();
  ModelConfig config = GetParam().config;
  config.initializer_range = 0.05;
  Parameters parameters(config);
  parameters.initialise(1);
  Side side(parameters,
            {.precision = GetParam().parsed(), .scope = GetParam().scope, .with_transposes = true});
  DeviceTrainer device(parameters, side);
  Trainer cpu(side.runtime.context(), parameters, side.model, side.blocks, [&] { side.refresh(); },
              {});
  const std::vector<double> of_device = learn_pattern(*device.trainer, 25);
  const std::vector<double> of_cpu = learn_pattern(cpu, 25);
  EXPECT_LT(of_device.back(), of_device.front() * 0.8);
  for (size_t i = 0; i < of_cpu.size(); ++i) {
    EXPECT_NEAR(of_device[i], of_cpu[i], 0.05 * of_cpu[0]) << "step " << i;
  }
  // What a checkpoint takes.
  Parameters saved(config);
  device.parameters.download(saved, device.stream.get());
  EXPECT_LT(std::fabs(to_float(saved.values()[0])), 1.0F);
  const std::span<const float> masters =
      device.trainer->optimizer().state(Optimizer::State::kMaster);
  for (int64_t i = 0; i < saved.layout().total; ++i) {
    ASSERT_EQ(to_bf16(masters[static_cast<size_t>(i)]), saved.values()[i]);
  }
}

// The memory plan's figure for a row, against what a batch took.
TEST(CudaMicroBatch, ARowTakesWhatThePlanSays) {
  QUADS_NEEDS_DEVICE();
  for (const ModelConfig& config : {wide_dense_config(), qwen2_moe_config(), dense_config()}) {
    const Parameters parameters = random_parameters(config);
    const Side side(parameters, {.precision = parse_precision("nvfp4-rac", {.ratio = 0.5})});
    DeviceTrainer device(parameters, side, {.max_tokens = 1 << 20});
    const std::vector<std::vector<int32_t>> tokens(256, std::vector<int32_t>(250, 7));
    const int64_t before = cuda::held_bytes;
    device.trainer->accumulate(whole(tokens), [](const MicroBatch&, std::span<float> dlogp) {
      std::ranges::fill(dlogp, -0.1F);
    });
    device.stream.wait("a batch");
    const auto rows = static_cast<double>(256 * 250);
    const double logits = rows * static_cast<double>((config.vocab_size + config.hidden_size) * 6);
    const double taken = (static_cast<double>(cuda::held_bytes - before) - logits) / rows;
    const auto planned = static_cast<double>(micro_batch_row_bytes(config, false));
    EXPECT_NEAR(taken / planned, 1.0, 0.25) << taken << " bytes a row, planned " << planned;
  }
}

class UnsearchedParameters : public HostParameters {
 public:
  using HostParameters::HostParameters;
  std::string find_bad(int64_t parameter, uint32_t) const override {
    ADD_FAILURE() << "parameter " << parameter << " was searched";
    return "";
  }
};

TEST(CudaModel, SearchesNoWeightsWhereAllAreFinite) {
  QUADS_NEEDS_DEVICE();
  const Parameters parameters = random_parameters(moe_config());
  const UnsearchedParameters source(parameters);
  const cuda::Stream stream;
  CudaModel model(stream.get(), source, parse_precision("nvfp4", {}), {}, 16);
  model.refresh({});
}

TEST(CudaBlocks, WhatIsNoBatchOfWholeSequencesIsAnError) {
  QUADS_NEEDS_DEVICE();
  const Parameters parameters = random_parameters(moe_config());
  Side side(parameters, {});
  Device device(parameters, side);
  WholeSequences sequences(side, random_sequences({5, 3}, 43, 1));
  DeviceArray<float> x(static_cast<size_t>(8 * 64));
  RowBatch batch = sequences.batch();
  EXPECT_MENTIONS(error_of([&] { device.blocks->ffn_forward(0, batch, x.data(), x.data()); }),
                  "was not embedded");
  batch.cu_seqlens = nullptr;
  EXPECT_MENTIONS(error_of([&] { device.blocks->embed(batch, x.data()); }), "whole sequences");
  batch = sequences.batch();
  std::vector<int32_t> tokens(batch.tokens, batch.tokens + batch.rows);
  tokens[6] = 43;
  batch.tokens = tokens.data();
  EXPECT_MENTIONS(error_of([&] { device.blocks->embed(batch, x.data()); }), "token 43");
  WholeSequences longer(side, random_sequences({257}, 43, 1));
  DeviceArray<float> more(static_cast<size_t>(257 * 64));
  EXPECT_MENTIONS(error_of([&] { device.blocks->embed(longer.batch(), more.data()); }),
                  "a sequence of 257 tokens");
}

}  // namespace
}  // namespace quads::testing
