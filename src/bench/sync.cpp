#include "bench/sync.h"

#include <algorithm>

#include "base/error.h"
#include "bench/machine.h"
#include "bench/shapes.h"
#include "model/residual_sums.h"
#include "rollout/weight_sync.h"

namespace quads::bench {
namespace {

// The first half of the channels: a mask of the usual size.
RacMasks half_masks(const PackedModel& model) {
  RacMasks masks = full_masks(model.sites());
  for (std::vector<uint8_t>& mask : masks.masks) {
    std::fill(mask.begin() + std::ssize(mask) / 2, mask.end(), uint8_t{0});
  }
  return masks;
}

}  // namespace

Result bench_sync(kernels::CpuRuntime& runtime, const std::string& shape,
                  const std::vector<Precision>& precisions) {
  const auto parameters = random_parameters(bench_shape(shape));
  Result result;
  result.name = "sync";
  result.notes = fmt::format(
      "Shape {}. memcpy_ms: a copy by the same threads that moves as many bytes as the sync must "
      "read and write.",
      shape);
  result.machine = {{"threads", runtime.num_threads()}};
  for (const Precision& precision : precisions) {
    PackedModel model(*parameters, {.precision = precision});
    WeightSync sync(runtime, *parameters, model);
    const RacMasks masks = half_masks(model);
    WeightSync::Report report;
    const double seconds = median_seconds([&] { report = sync.sync(masks); });
    const int64_t moved = report.bytes_read + report.bytes_written;
    const double copy = memcpy_seconds(runtime.context(), moved / 2);
    result.rows.push_back(
        {.labels = {{"precision", precision_name(precision)}},
         .figures = {{"ms", seconds * 1e3},
                     {"read_mb", static_cast<double>(report.bytes_read) / 1e6},
                     {"written_mb", static_cast<double>(report.bytes_written) / 1e6},
                     {"memcpy_ms", copy * 1e3},
                     {"x_memcpy", seconds / copy}}});
  }
  return result;
}

}  // namespace quads::bench
