#include "bench/device_sync.h"

#include <chrono>

#include "bench/machine.h"
#include "eval/device.h"
#ifdef QUADS_HAVE_CUDA
#include "bench/device_copy.h"
#include "cuda/cuda_model.h"
#include "cuda/device.h"
#endif

namespace quads::bench {

#ifdef QUADS_HAVE_CUDA
Result bench_device_sync(const std::string& shape, const std::vector<BenchPrecision>& precisions) {
  cuda::require_device();
  constexpr int64_t kMaxPositions = 16;  // of the RoPE table: no sequence is run
  const double bandwidth = copy_bandwidth();
  const ModelConfig config = bench_shape(shape);
  const cuda::Stream stream;
  const cuda::DeviceParameters parameters(cuda::RandomParameters(config), stream.get());
  const int64_t read = parameters.layout().total * static_cast<int64_t>(sizeof(Bf16));
  Result result;
  result.name = "sync";
  result.notes = fmt::format(
      "Shape {} on a GPU. memcpy_ms: a copy within the device that moves as many bytes as the sync "
      "must read and write. first_ms: the first sync, whose kernels are loaded, and which finds no "
      "earlier global scales.",
      shape);
  result.machine = {{"copy_gb_s", bandwidth / 1e9}};
  for (const auto& [precision, scope] : precisions) {
    cuda::CudaModel model(stream.get(), parameters, precision, scope, kMaxPositions);
    const RacMasks masks = half_masks(model.sites());
    const auto start = std::chrono::steady_clock::now();
    model.refresh(masks);
    const std::chrono::duration<double, std::milli> first =
        std::chrono::steady_clock::now() - start;
    const double seconds = median_seconds([&] { model.refresh(masks); });
    const int64_t written = model.weight_bytes();
    const double copy = static_cast<double>(read + written) / bandwidth;
    result.rows.push_back({.labels = {{"precision", precision_name(precision)}},
                           .figures = sync_figures(seconds, read, written, copy)});
    result.rows.back().figures.emplace_back("first_ms", first.count());
  }
  return result;
}
#else
Result bench_device_sync(const std::string&, const std::vector<BenchPrecision>&) {
  fail_without_cuda();
}
#endif

}  // namespace quads::bench
