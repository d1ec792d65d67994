#include "eval/cuda_generator.h"

#include "base/error.h"
#include "cuda/device.h"
#include "cuda/memory_plan.h"

namespace quads {
namespace {

// Left free beside the pages: graphs, and what the driver takes.
constexpr int64_t kReserve = int64_t{1} << 30;

cuda::CudaBackend::Options backend_options(const GeneratorOptions& options) {
  cuda::require_device();
  return {.precision = options.precision,
          .scope = options.scope,
          .max_running = options.max_running,
          .max_context = options.max_context,
          .prefill_chunk = options.prefill_chunk,
          .stored = options.stored};
}

}  // namespace

CudaGenerator::CudaGenerator(std::unique_ptr<cuda::ParameterSource> source,
                             const GeneratorOptions& options, std::span<const Request> calibration,
                             const GenerateOptions& sampling)
    : source_(std::move(source)), backend_(*source_, backend_options(options)) {
  GeneratorOptions sizes = options;
  if (sizes.kv_memory_bytes == 0) {
    sizes.kv_memory_bytes = cuda::free_bytes() - kReserve;
    require(sizes.kv_memory_bytes > 0,
            "the weights leave {} bytes of the device's memory, too little for keys and values",
            cuda::free_bytes());
  }
  start(backend_, sizes, calibration, sampling);
}

}  // namespace quads
