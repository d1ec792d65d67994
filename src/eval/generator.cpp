#include "eval/generator.h"

#include <algorithm>

#include "rollout/rac_calibration.h"

namespace quads {

EngineGenerator::EngineGenerator(kernels::CpuRuntime& runtime, const Parameters& parameters,
                                 const GeneratorOptions& options,
                                 std::span<const Request> calibration,
                                 const GenerateOptions& sampling)
    : model_(parameters,
             {.precision = options.precision, .scope = options.scope, .share = options.share}),
      engine_(runtime, model_,
              {.max_running = options.max_running,
               .max_context = options.max_context,
               .kv_memory_bytes = options.kv_memory_bytes}) {
  if (options.precision.rac.ratio == 1.0) {
    masks_ = full_masks(model_);
    model_.refresh(runtime.context(), masks_);
    return;
  }
  GenerateOptions quiet = sampling;
  quiet.on_token = nullptr;
  quiet.on_finished = nullptr;
  quiet.record_routing = false;
  masks_ = calibrate_masks(engine_, calibration, quiet);
}

int64_t context_of(std::span<const Request> requests, int64_t max_new_tokens) {
  int64_t longest = 1;
  for (const Request& request : requests) {
    longest = std::max(longest, std::ssize(request.prompt) + max_new_tokens);
  }
  return longest;
}

}  // namespace quads
