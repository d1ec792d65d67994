// How long the trainer's steps take on a GPU: the demo's model, and layers of OLMoE-1B-7B and
// Qwen3-30B-A3B. Not a test: prints milliseconds, best and median of a few steps, and where the
// time of a forward and backward goes.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "base/random.h"
#include "bench/kernel_times.h"
#include "bench/shapes.h"
#include "cuda/cuda_blocks.h"
#include "cuda/cuda_optimizer.h"
#include "trainer/trainer.h"

namespace quads {
namespace {

ModelConfig layers_of(const char* shape, int64_t layers) {
  ModelConfig c = bench::bench_shape(shape);
  c.num_hidden_layers = layers;
  return c;
}

using Clock = std::chrono::steady_clock;
double milliseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::milli>(Clock::now() - since).count();
}

void measure(const char* name, const ModelConfig& config, int64_t sequences, int64_t length,
             int64_t max_tokens, const char* precision, double ratio = 0, bool by_kernel = false) {
  const cuda::Stream stream;
  const cuda::RandomParameters random(config);
  cuda::DeviceParameters parameters(random, stream.get());
  const Precision parsed = parse_precision(precision, {.ratio = ratio});
  cuda::CudaModel model(stream.get(), parameters, parsed, {}, length + 1);
  const RacMasks masks = full_masks(model.sites());
  model.refresh(masks);
  cuda::CudaBlocks blocks(stream.get(), model);
  Trainer trainer(blocks,
                  std::make_unique<cuda::CudaOptimizer>(stream.get(), parameters, AdamwOptions{}),
                  SequenceBatch(config), [&] { model.refresh(masks); }, {.max_tokens = max_tokens});
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
  if (by_kernel) {
    bench::KernelTimes times;
    blocks.observe(&times);
    trainer.accumulate(
        batch, [](const MicroBatch&, std::span<float> dlogp) { std::ranges::fill(dlogp, 1e-3F); });
    stream.wait("a step");
    for (const bench::KernelTimes::Entry& entry : times.last_step()) {
      std::printf("  %-28s %5ld calls %9.0f us\n", entry.kernel.c_str(),
                  static_cast<long>(entry.calls), entry.microseconds);
    }
    blocks.observe(nullptr);
  }
  std::fflush(stdout);
}

}  // namespace
}  // namespace quads

int main() {
  using namespace quads;
  try {
    measure("demo", layers_of("demo", 4), 512, 40, 1 << 20, "bf16");
    measure("demo", layers_of("demo", 4), 512, 40, 1 << 20, "nvfp4");
    measure("demo", layers_of("demo", 4), 512, 40, 2048, "nvfp4");
    for (const char* shape : {"olmoe", "30b"}) {
      measure(shape, layers_of(shape, 2), 26, 513, 1 << 20, "w4a16", 0, true);
      measure(shape, layers_of(shape, 2), 26, 513, 1 << 20, "nvfp4-rac", 1, true);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
