#include "bench/sync.h"

#include <algorithm>

#include "base/error.h"
#include "bench/machine.h"
#include "rollout/weight_sync.h"

namespace quads::bench {
RacMasks half_masks(const QuantisedSites& sites) {
  RacMasks masks = full_masks(sites);
  for (std::vector<uint8_t>& mask : masks.masks) {
    std::fill(mask.begin() + std::ssize(mask) / 2, mask.end(), uint8_t{0});
  }
  return masks;
}

std::vector<std::pair<std::string, double>> sync_figures(double seconds, int64_t read,
                                                         int64_t written, double copy) {
  return {{"ms", seconds * 1e3},
          {"read_mb", static_cast<double>(read) / 1e6},
          {"written_mb", static_cast<double>(written) / 1e6},
          {"memcpy_ms", copy * 1e3},
          {"x_memcpy", seconds / copy}};
}

Result bench_sync(kernels::CpuRuntime& runtime, const std::string& shape,
                  const std::vector<BenchPrecision>& precisions) {
  const auto parameters = random_parameters(bench_shape(shape));
  Result result;
  result.name = "sync";
  result.notes = fmt::format(
      "Shape {}. memcpy_ms: a copy by the same threads that moves as many bytes as the sync must "
      "read and write.",
      shape);
  result.machine = {{"threads", runtime.num_threads()}};
  for (const auto& [precision, scope] : precisions) {
    PackedModel model(*parameters, {.precision = precision, .scope = scope});
    WeightSync sync(runtime, *parameters, model);
    const RacMasks masks = half_masks(model.sites());
    WeightSync::Report report;
    const double seconds = median_seconds([&] { report = sync.sync(masks); });
    const int64_t moved = report.bytes_read + report.bytes_written;
    const double copy = memcpy_seconds(runtime.context(), moved / 2);
    result.rows.push_back(
        {.labels = {{"precision", precision_name(precision)}},
         .figures = sync_figures(seconds, report.bytes_read, report.bytes_written, copy)});
  }
  return result;
}

}  // namespace quads::bench
