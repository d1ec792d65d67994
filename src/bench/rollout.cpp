#include "bench/rollout.h"

#include <algorithm>
#include <limits>
#include <map>

#include "bench/machine.h"
#include "bench/requests.h"
#include "bench/shapes.h"
#include "eval/generator.h"

namespace quads::bench {
namespace {

// Bytes of the experts of a model whose experts alone are quantised.
double expert_bytes(const PackedModel& model) {
  const ModelConfig& c = model.config();
  double bytes = 0;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const kernels::MoeBlock& block = model.ffn(l);
    for (int64_t e = 0; e < block.experts; ++e) {
      for (const kernels::PackedMatrix* m : {&block.gate_up[e], &block.down[e]}) {
        bytes += static_cast<double>(kernels::packed_tile_bytes(m->format, m->n, m->k) +
                                     kernels::packed_scale_bytes(m->format, m->n, m->k));
      }
    }
  }
  return bytes;
}

// Bytes that a step of `batch` rows reads: an expert is left out if no row chooses it.
double step_bytes(const PackedModel& model, int64_t batch) {
  const double experts = expert_bytes(model);
  return static_cast<double>(model.packed_bytes()) -
         experts * (1 - touched_experts(model.config(), batch));
}

}  // namespace

Result bench_rollout(kernels::CpuRuntime& runtime, const RolloutBench& options) {
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const double bandwidth = read_bandwidth(runtime.context());
  const auto parameters = random_parameters(bench_shape(options.shape));
  const ModelConfig& config = parameters->config();
  Result result;
  result.name = "rollout";
  result.notes = fmt::format(
      "Shape {}, random weights, prompts of {} and responses of {} tokens. x_bf16: times this "
      "engine's BF16; limit: weights read once a step at the measured bandwidth.",
      options.shape, options.prompt_len, options.response_len);
  result.machine = {{"threads", runtime.num_threads()}, {"read_gb_s", bandwidth / 1e9}};
  const int64_t largest = *std::ranges::max_element(options.batches);
  std::map<int64_t, double> bf16;
  for (const auto& [precision, scope] : options.precisions) {
    GenerateOptions generate;
    generate.max_new_tokens = options.response_len;
    const std::vector<Request> all =
        random_requests(largest, options.prompt_len, config.vocab_size);
    const GeneratorOptions sizes{.precision = precision,
                                 .scope = scope,
                                 .max_running = largest,
                                 .max_context = options.prompt_len + options.response_len,
                                 .kv_memory_bytes = int64_t{4} << 30};
    const auto calibration = std::span(all).first(std::min<size_t>(all.size(), 8));
    CpuGenerator generator(runtime, *parameters, sizes, calibration, generate);
    for (int64_t batch : options.batches) {
      const auto requests = std::span(all).first(static_cast<size_t>(batch));
      const double seconds =
          median_seconds([&] { generator.generate(requests, generate); }, options.repeats, 0);
      const double rate = static_cast<double>(batch * options.response_len) / seconds;
      if (precision == Precision{}) bf16[batch] = rate;
      const bool in_memory = generator.model().packed_bytes() > last_level_cache_bytes();
      const double limit =
          in_memory ? static_cast<double>(batch) * bandwidth / step_bytes(generator.model(), batch)
                    : kNone;
      result.rows.push_back(
          {.labels = {{"precision", precision_name(precision)}, {"batch", batch}},
           .figures = {{"tokens_per_s", rate},
                       {"x_bf16", bf16.contains(batch) ? rate / bf16[batch] : kNone},
                       {"limit_tokens_per_s", limit},
                       {"of_limit", rate / limit}}});
    }
  }
  return result;
}

}  // namespace quads::bench
