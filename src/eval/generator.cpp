#include "eval/generator.h"

#include <algorithm>

#include "base/error.h"
#include "rollout/rac_calibration.h"

namespace quads {

void EngineGenerator::start(RolloutBackend& backend, const GeneratorOptions& options,
                            std::span<const Request> calibration, const GenerateOptions& sampling) {
  engine_ =
      std::make_unique<Engine>(backend, Engine::Options{.max_running = options.max_running,
                                                        .max_context = options.max_context,
                                                        .kv_memory_bytes = options.kv_memory_bytes,
                                                        .prefill_chunk = options.prefill_chunk});
  if (options.masks && masks_fit(*options.masks, backend.sites())) {
    has_given_masks_ = true;
    masks_ = *options.masks;
    backend.refresh(masks_);
    return;
  }
  GenerateOptions quiet = sampling;
  quiet.on_token = nullptr;
  quiet.on_finished = nullptr;
  quiet.record_routing = false;
  masks_ = calibrate_masks(*engine_, calibration, quiet);
}

CpuGenerator::CpuGenerator(kernels::CpuRuntime& runtime, const Parameters& parameters,
                           const GeneratorOptions& options, std::span<const Request> calibration,
                           const GenerateOptions& sampling)
    : model_(parameters, {.precision = options.precision,
                          .scope = options.scope,
                          .share = options.share,
                          .stored = options.stored}),
      backend_(runtime, model_) {
  start(backend_, options, calibration, sampling);
}

void require_positions(const ModelConfig& config, int64_t prompt_tokens, int64_t response_tokens,
                       const std::string& where) {
  require(response_tokens <= config.max_position_embeddings - prompt_tokens,
          "{}: the prompt's {} tokens and a response of up to {} are more than the model's "
          "max_position_embeddings = {}",
          where, prompt_tokens, response_tokens, config.max_position_embeddings);
}

int64_t context_of(std::span<const Request> requests, int64_t max_new_tokens) {
  int64_t longest = 1;
  for (const Request& request : requests) {
    longest = std::max(longest, std::ssize(request.prompt) + max_new_tokens);
  }
  return longest;
}

}  // namespace quads
