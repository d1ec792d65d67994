#include "bench/device_rollout.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "base/error.h"
#ifdef QUADS_HAVE_CUDA
#include "bench/requests.h"
#include "bench/shapes.h"
#include "eval/cuda_generator.h"
#endif

namespace quads::bench {

#ifdef QUADS_HAVE_CUDA
namespace {

using cuda::check_cuda;

// Bytes read and written a second by a copy within the device.
double copy_bandwidth() {
  constexpr int64_t kBytes = int64_t{2} << 30;
  const cuda::DeviceArray<uint8_t> from(kBytes), to(kBytes);
  const cuda::Stream stream;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
        "copying");
    stream.wait("copying");
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return 2.0 * static_cast<double>(kBytes) / best;
}

// Bytes that a decode step of `batch` rows at `context` positions reads: an expert is left out if
// no row chooses it; of the embedding only the rows' own.
double step_bytes(const cuda::CudaModel& model, int64_t batch, int64_t context) {
  const ModelConfig& c = model.config();
  double experts = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    experts += static_cast<double>(model.layer(l).gate_up.fragments.bytes() +
                                   model.layer(l).down.fragments.bytes());
  }
  const double chosen =
      static_cast<double>(c.num_experts_per_tok) / static_cast<double>(c.num_experts);
  const double touched = 1 - std::pow(1 - chosen, static_cast<double>(batch));
  const auto embedding = static_cast<double>(c.vocab_size * c.hidden_size * 2);
  const auto kv = static_cast<double>(c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim *
                                      2 * batch * context);
  const double others =
      static_cast<double>(model.weight_bytes()) - experts - (c.tie_word_embeddings ? 0 : embedding);
  return others + experts * touched + kv;
}

}  // namespace

Result bench_device_rollout(kernels::CpuRuntime&, const RolloutBench& options) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const double bandwidth = copy_bandwidth();
  const ModelConfig config = bench_shape(options.shape);
  Result result;
  result.name = "rollout";
  result.notes = fmt::format(
      "Shape {} on a GPU, random weights, prompts of {} and responses of {} tokens. x_bf16, x_fp8: "
      "times this engine's; of_bandwidth: what a step must read over its time, as a share of a "
      "copy's.",
      options.shape, options.prompt_len, options.response_len);
  result.machine = {{"copy_gb_s", bandwidth / 1e9}};
  const int64_t largest = *std::ranges::max_element(options.batches);
  std::map<std::pair<std::string, int64_t>, double> rates;
  for (const Precision& precision : options.precisions) {
    GenerateOptions generate;
    const int64_t context = options.prompt_len + options.response_len;
    const std::vector<Request> all =
        random_requests(largest, options.prompt_len, config.vocab_size);
    const GeneratorOptions sizes{.precision = precision,
                                 .max_running = largest,
                                 .max_context = context,
                                 .kv_memory_bytes = 0,
                                 .prefill_chunk = 4096};
    const auto calibration = std::span(all).first(std::min<size_t>(all.size(), 8));
    generate.max_new_tokens = 2;
    CudaGenerator generator(std::make_unique<cuda::RandomParameters>(config), sizes, calibration,
                            generate);
    const int64_t positions = generator.pages() * kernels::kPageSize;
    for (const int64_t batch : options.batches) {
      if (batch * (context + kernels::kPageSize) > positions) continue;
      const auto requests = std::span(all).first(static_cast<size_t>(batch));
      const auto seconds = [&](int64_t tokens) {
        generate.max_new_tokens = tokens;
        double best = std::numeric_limits<double>::infinity();
        for (int i = 0; i <= options.repeats; ++i) {  // the first captures graphs
          const auto start = std::chrono::steady_clock::now();
          generator.generate(requests, generate);
          const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
          if (i > 0 || options.repeats == 0) best = std::min(best, elapsed.count());
        }
        return best;
      };
      const double prefill = seconds(1);
      const double steps = static_cast<double>(options.response_len - 1);
      const double step = (seconds(options.response_len) - prefill) / steps;
      const double rate = static_cast<double>(batch) / step;
      const std::string name = precision_name(precision);
      rates[{name, batch}] = rate;
      const auto times = [&](const char* other) {
        const auto found = rates.find({other, batch});
        return found == rates.end() ? kNone : rate / found->second;
      };
      const double bytes = step_bytes(generator.backend().model(), batch,
                                      options.prompt_len + options.response_len / 2);
      result.rows.push_back(
          {.labels = {{"precision", name}, {"batch", fmt::format("{}", batch)}},
           .figures = {
               {"decode_tokens_per_s", rate},
               {"x_bf16", times("bf16")},
               {"x_fp8", times("fp8")},
               {"step_ms", step * 1e3},
               {"of_bandwidth", bytes / step / bandwidth},
               {"prefill_tokens_per_s", static_cast<double>(batch * options.prompt_len) / prefill},
               {"weight_gb",
                static_cast<double>(generator.backend().model().weight_bytes()) / 1e9}}});
    }
  }
  return result;
}
#else
Result bench_device_rollout(kernels::CpuRuntime&, const RolloutBench&) {
  fail("--device cuda: this program was built without CUDA; configure it with -DQUADS_CUDA=ON");
}
#endif

}  // namespace quads::bench
