// How long the trainer's steps take on a GPU: the demo's model, and layers of Qwen3-30B-A3B.
// Not a test: prints milliseconds, best and median of a few steps.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/random.h"
#include "cuda/cuda_blocks.h"
#include "cuda/cuda_optimizer.h"
#include "trainer/trainer.h"

namespace quads {
namespace {

ModelConfig demo_config() {
  ModelConfig c;
  c.architecture = Architecture::kQwen3Moe;
  c.vocab_size = 32;
  c.hidden_size = 128;
  c.intermediate_size = 256;
  c.num_hidden_layers = 4;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.max_position_embeddings = 256;
  c.moe_intermediate_size = 64;
  c.num_experts = 8;
  c.num_experts_per_tok = 2;
  c.norm_topk_prob = true;
  c.initializer_range = 0.02;
  return c;
}

ModelConfig large_config(int64_t layers) {
  ModelConfig c = demo_config();
  c.vocab_size = 151936;
  c.hidden_size = 2048;
  c.intermediate_size = 6144;
  c.num_hidden_layers = layers;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 4;
  c.head_dim = 128;
  c.max_position_embeddings = 4096;
  c.moe_intermediate_size = 768;
  c.num_experts = 128;
  c.num_experts_per_tok = 8;
  return c;
}

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

void measure(const char* name, const ModelConfig& config, int64_t sequences, int64_t length,
             int64_t max_tokens, const char* precision) {
  const cuda::Stream stream;
  const cuda::RandomParameters random(config);
  cuda::DeviceParameters parameters(random, stream.get());
  cuda::CudaModel model(stream.get(), parameters, parse_precision(precision, {}), {}, length + 1);
  model.refresh({});
  cuda::CudaBlocks blocks(stream.get(), model);
  Trainer trainer(blocks,
                  std::make_unique<cuda::CudaOptimizer>(stream.get(), parameters, AdamwOptions{}),
                  SequenceBatch(config), [&] { model.refresh({}); }, {.max_tokens = max_tokens});
  std::vector<std::vector<int32_t>> tokens;
  std::vector<TrainSequence> batch;
  for (int64_t s = 0; s < sequences; ++s) {
    RandomSequence draws(1, RandomStream::kTask, static_cast<uint64_t>(s));
    std::vector<int32_t>& t = tokens.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      t.push_back(static_cast<int32_t>(draws.below(static_cast<uint32_t>(config.vocab_size))));
    }
  }
  for (const auto& t : tokens) batch.push_back({.tokens = t, .prompt_length = 8, .routing = {}});
  std::vector<double> forward, backward, update;
  for (int step = 0; step < 4; ++step) {
    auto start = Clock::now();
    trainer.logprobs(batch);
    forward.push_back(milliseconds(start));
    start = Clock::now();
    trainer.accumulate(batch, [](const MicroBatch&, std::span<float> dlogp) {
      for (size_t i = 0; i < dlogp.size(); ++i) dlogp[i] = i % 2 == 0 ? 1e-3F : -1e-3F;
    });
    stream.wait("a step");
    backward.push_back(milliseconds(start));
    start = Clock::now();
    trainer.update(1e-5F);
    stream.wait("an update");
    update.push_back(milliseconds(start));
  }
  for (auto* times : {&forward, &backward, &update}) std::ranges::sort(*times);
  std::printf(
      "%s %s: %ld rows: forward %.1f/%.1f ms, forward and backward %.1f/%.1f ms, update "
      "%.1f/%.1f ms\n",
      name, precision, static_cast<long>(sequences * (length - 1)), forward[0], forward[2],
      backward[0], backward[2], update[0], update[2]);
  std::fflush(stdout);
}

}  // namespace
}  // namespace quads

int main() {
  using namespace quads;
  try {
    measure("demo", demo_config(), 512, 40, 1 << 20, "bf16");
    measure("demo", demo_config(), 512, 40, 1 << 20, "nvfp4");
    measure("demo", demo_config(), 512, 40, 2048, "nvfp4");
    measure("1 layer", large_config(1), 8, 1025, 1 << 20, "nvfp4");
    measure("2 layers", large_config(2), 8, 1025, 1 << 20, "nvfp4");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
