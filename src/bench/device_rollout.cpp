#include "bench/device_rollout.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>

#include "base/error.h"
#include "eval/device.h"
#include "report/progress.h"
#ifdef QUADS_HAVE_CUDA
#include "bench/device_copy.h"
#include "bench/kernel_times.h"
#include "bench/requests.h"
#include "bench/shapes.h"
#include "cuda/device.h"
#include "eval/cuda_generator.h"
#endif

namespace quads::bench {

#ifdef QUADS_HAVE_CUDA
namespace {

// Bytes that a decode step of `batch` rows at `context` positions reads: an expert is left out if
// no row chooses it; of the embedding only the rows' own.
double step_bytes(const cuda::CudaModel& model, int64_t batch, int64_t context) {
  const ModelConfig& c = model.config();
  double experts = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const cuda::DeviceFfn& ffn = model.layer(l).ffn;
    experts += static_cast<double>(ffn.gate_up.fragments.bytes() + ffn.down.fragments.bytes());
  }
  const auto embedding = static_cast<double>(c.vocab_size * c.hidden_size * 2);
  const auto kv = static_cast<double>(c.num_hidden_layers * 2 * c.num_key_value_heads * c.head_dim *
                                      2 * batch * context);
  const double others =
      static_cast<double>(model.weight_bytes()) - experts - (c.tie_word_embeddings ? 0 : embedding);
  return others + experts * touched_experts(c, batch) + kv;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Times of the steps in which every sequence decodes: prompts go in over some steps, during which
// the first sequences decode already, so the clock is the first sequence's tokens from when all
// have one until it ends, which it does first.
struct Steady {
  double begin = 0;           // of the generation
  double all_started = 0;     // when every sequence had a token
  std::vector<double> steps;  // ends of steps from then on

  double seconds_per_step() const {
    return (steps.back() - steps.front()) / static_cast<double>(steps.size() - 1);
  }
};

// Generates until `steps` have been steady.
Steady run_steady(CudaGenerator& generator, std::span<const Request> requests, int64_t max_tokens,
                  int64_t steps) {
  Steady steady;
  std::vector<bool> started(requests.size());
  size_t waiting = requests.size();
  constexpr int64_t kSettling = 2;  // steps: the first captures a graph
  int64_t decoded = 0;
  std::atomic<bool> enough = false;
  GenerateOptions generate;
  generate.max_new_tokens = max_tokens;
  generate.cancel = &enough;
  generate.on_token = [&](int64_t prompt, int32_t, int32_t, float) {
    const auto index = static_cast<size_t>(prompt);
    if (!started[index]) {
      started[index] = true;
      if (--waiting == 0) steady.all_started = now();
    } else if (waiting == 0 && prompt == 0 && ++decoded > kSettling) {
      steady.steps.push_back(now());
      if (std::ssize(steady.steps) > steps) enough = true;
    }
  };
  steady.begin = now();
  generator.generate(requests, generate);
  require(steady.steps.size() > 1, "{} sequences never decoded together", requests.size());
  return steady;
}

void add_kernel_times(CudaGenerator& generator, std::span<const Request> requests,
                      int64_t max_tokens, const std::string& precision, Result& result) {
  KernelTimes times;
  generator.backend().observe(&times);
  run_steady(generator, requests, max_tokens, 2);
  const std::vector<KernelTimes::Entry> entries = times.last_step();
  generator.backend().observe(nullptr);
  double all = 0;
  for (const KernelTimes::Entry& entry : entries) all += entry.microseconds;
  for (const KernelTimes::Entry& entry : entries) {
    const auto calls = static_cast<double>(entry.calls);
    result.rows.push_back({.labels = {{"precision", precision},
                                      {"batch", std::ssize(requests)},
                                      {"kernel", entry.kernel}},
                           .figures = {{"calls", calls},
                                       {"us", entry.microseconds},
                                       {"share", entry.microseconds / all},
                                       {"us_per_call", entry.microseconds / calls}}});
  }
}

}  // namespace

Result bench_device_rollout(kernels::CpuRuntime&, const RolloutBench& options) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  cuda::require_device();
  const double bandwidth = copy_bandwidth();
  const ModelConfig config = bench_shape(options.shape);
  Result result;
  result.name = "rollout";
  result.notes = fmt::format(
      "Shape {} on a GPU, random weights, prompts of {} tokens, {} steps in which all sequences "
      "decode. x_bf16, x_fp8: times this engine's; of_bandwidth: what a step must read over its "
      "time, as a share of a copy's.",
      options.shape, options.prompt_len, options.response_len);
  result.machine = {{"copy_gb_s", bandwidth / 1e9}};
  const int64_t largest = *std::ranges::max_element(options.batches);
  // A sequence decodes while the prompts of those behind it go in.
  const auto tokens_of = [&](int64_t batch) {
    return batch * options.prompt_len / kDevicePrefillChunk + options.response_len + 8;
  };
  const int64_t context = options.prompt_len + tokens_of(largest);
  std::map<std::pair<std::string, int64_t>, double> rates;
  for (const auto& [precision, scope] : options.precisions) {
    const std::string name = precision_name(precision);
    const std::vector<Request> all =
        random_requests(largest, options.prompt_len, config.vocab_size);
    const GeneratorOptions sizes{.precision = precision,
                                 .scope = scope,
                                 .max_running = largest,
                                 .max_context = context,
                                 .kv_memory_bytes = 0,
                                 .prefill_chunk = kDevicePrefillChunk};
    const auto calibration = std::span(all).first(std::min<size_t>(all.size(), 8));
    GenerateOptions sampling;
    sampling.max_new_tokens = 2;
    CudaGenerator generator(std::make_unique<cuda::RandomParameters>(config), sizes, calibration,
                            sampling);
    const int64_t positions = generator.pages() * kernels::kPageSize;
    Progress progress({.label = name, .total = std::ssize(options.batches)});
    int64_t measured = 0;
    for (const int64_t batch : options.batches) {
      if (batch * (context + kernels::kPageSize) > positions) continue;
      const auto requests = std::span(all).first(static_cast<size_t>(batch));
      if (options.by_kernel) {
        add_kernel_times(generator, requests, tokens_of(batch), name, result);
        progress.update(++measured, {{"batch", fmt::format("{}", batch)}});
        continue;
      }
      double step = std::numeric_limits<double>::infinity();
      double prefill = step;
      for (int i = 0; i < std::max(options.repeats, 1); ++i) {
        const Steady steady =
            run_steady(generator, requests, tokens_of(batch), options.response_len);
        step = std::min(step, steady.seconds_per_step());
        prefill = std::min(prefill, steady.all_started - steady.begin);
      }
      const double rate = static_cast<double>(batch) / step;
      rates[{name, batch}] = rate;
      const auto times = [&](const char* other) {
        const auto found = rates.find({other, batch});
        return found == rates.end() ? kNone : rate / found->second;
      };
      const double bytes =
          step_bytes(generator.backend().model(), batch, options.prompt_len + tokens_of(batch) / 2);
      result.rows.push_back(
          {.labels = {{"precision", name}, {"batch", batch}},
           .figures = {
               {"decode_tokens_per_s", rate},
               {"x_bf16", times("bf16")},
               {"x_fp8", times("fp8")},
               {"step_ms", step * 1e3},
               {"of_bandwidth", bytes / step / bandwidth},
               {"prefill_tokens_per_s", static_cast<double>(batch * options.prompt_len) / prefill},
               {"weight_gb",
                static_cast<double>(generator.backend().model().weight_bytes()) / 1e9}}});
      progress.update(++measured, {{"batch", fmt::format("{}", batch)},
                                   {"step_ms", format_figure(step * 1e3)},
                                   {"prefill_s", format_figure(prefill)}});
    }
  }
  return result;
}
#else
Result bench_device_rollout(kernels::CpuRuntime&, const RolloutBench&) { fail_without_cuda(); }
#endif

}  // namespace quads::bench
