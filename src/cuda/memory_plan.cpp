#include "cuda/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "cuda/cuda_model.h"
#include "kernels/cuda/experts/weight_format.h"

namespace quads::cuda {
namespace {

std::string gib(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / 0x1p30);
}

}  // namespace

int64_t MemoryPlan::total() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.bytes;
  return bytes;
}

std::string MemoryPlan::describe() const {
  std::string text;
  for (const Part& part : parts_) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.name, gib(part.bytes));
  }
  return text;
}

void MemoryPlan::require_fits(int64_t free) const {
  require(total() <= free, "the device has {} free, and this needs {}: {}", gib(free), gib(total()),
          describe());
}

int64_t free_bytes() {
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<int64_t>(free);
}

int64_t model_bytes(const ParameterLayout& layout, const QuantisedSites& sites, bool resident) {
  constexpr int64_t kBf16Bytes = sizeof(Bf16);
  int64_t plain = 0, packed = 0, staged = 0;
  for (const Parameter& p : layout.parameters) plain += p.padded_size() * kBf16Bytes;
  for (int64_t l = 0; l < sites.num_layers(); ++l) {
    const std::vector<PackedParameter> of_layer = packed_parameters(layout, sites, l);
    for (const PackedParameter& matrix : of_layer) {
      const Parameter& p = layout.at(matrix.index);
      plain -= p.padded_size() * kBf16Bytes;
      packed += kernels::cuda::fragment_bytes(p.rows, p.cols, matrix.format);
    }
    staged = std::max(staged, range_of(layout, of_layer).elements * kBf16Bytes);
  }
  return plain + packed + (resident ? 0 : staged);
}

}  // namespace quads::cuda
