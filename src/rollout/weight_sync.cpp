#include "rollout/weight_sync.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"

namespace quads {
namespace {

// What the model uses as it is (norms, the embedding) is packed nowhere, so nobody else looks at
// it.
void require_finite_unpacked(const kernels::CpuContext& context, const Parameters& parameters) {
  constexpr int64_t kChunk = int64_t{1} << 20;  // elements of a task
  const ParameterLayout& layout = parameters.layout();
  for (int64_t i = 0; i < std::ssize(layout.parameters); ++i) {
    const Parameter& p = layout.at(i);
    if (!p.vector && (i != layout.embedding || layout.head == layout.embedding)) continue;
    context.parallel_for((p.size() + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
      const int64_t begin = chunk * kChunk, count = std::min(kChunk, p.size() - begin);
      const int64_t found = context.gemm().amax(parameters.of(i) + begin, count).non_finite;
      require(found < 0, "tensor {}, row {}, column {} is not finite", p.name,
              (begin + found) / p.cols, (begin + found) % p.cols);
    });
  }
}

}  // namespace

WeightSync::Report WeightSync::sync(const RacMasks& masks) {
  const auto start = std::chrono::steady_clock::now();
  const kernels::CpuContext context = runtime_.context();
  require_finite_unpacked(context, parameters_);
  model_.refresh(context, masks);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  return {.policy_version = ++policy_version_,
          .seconds = elapsed.count(),
          .bytes_read = parameters_.layout().total * static_cast<int64_t>(sizeof(Bf16)),
          .bytes_written = model_.packed_bytes()};
}

WeightSync::Report WeightSync::sync_named(std::span<const NamedTensor> tensors,
                                          const RacMasks& masks) {
  const auto start = std::chrono::steady_clock::now();
  parameters_.assign(tensors);
  Report report = sync(masks);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  report.seconds = elapsed.count();
  return report;
}

}  // namespace quads
