// A packed weight that owns its buffers, and the values that went into it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/isa.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::testing {

inline std::vector<float> to_floats(const std::vector<Bf16>& x) {
  std::vector<float> out;
  out.reserve(x.size());
  for (Bf16 v : x) out.push_back(to_float(v));
  return out;
}

/// Buffers of a packed matrix [n, k], 64-byte aligned, filled with 0xFF.
class PackedBuffers {
 public:
  PackedBuffers(WeightFormat format, int64_t n, int64_t k)
      : tiles_(static_cast<size_t>(packed_tile_bytes(format, n, k)) + 64, 0xFF),
        scales_(static_cast<size_t>(packed_scale_bytes(format, n, k)), 0xFF) {
    matrix_.format = format;
    matrix_.n = n;
    matrix_.k = k;
    const auto address = reinterpret_cast<uintptr_t>(tiles_.data());
    matrix_.tiles = tiles_.data() + (64 - address % 64) % 64;
    matrix_.scales = scales_.empty() ? nullptr : scales_.data();
  }
  PackedBuffers(const PackedBuffers&) = delete;
  PackedBuffers& operator=(const PackedBuffers&) = delete;
  PackedMatrix& matrix() { return matrix_; }
  const PackedMatrix& matrix() const { return matrix_; }
  std::vector<uint8_t> tile_bytes() const {
    return {matrix_.tiles, matrix_.tiles + packed_tile_bytes(matrix_.format, matrix_.n, matrix_.k)};
  }
  const std::vector<uint8_t>& scale_bytes() const { return scales_; }

 private:
  std::vector<uint8_t> tiles_, scales_;
  PackedMatrix matrix_;
};

/// What the weights are worth after quantisation by the scalar reference, [n, k] in natural order.
/// NVFP4: without the global scale.
inline std::vector<float> quantised_values(WeightFormat format, const std::vector<Bf16>& w,
                                           int64_t n, int64_t k, float global_scale) {
  std::vector<float> values = to_floats(w);
  if (format == WeightFormat::kFp8) {
    return dequantise_fp8(quantise_fp8(values, n, k, kFp8Block, "w"), "w");
  }
  if (format == WeightFormat::kNvfp4) {
    Nvfp4Matrix quantised = quantise_nvfp4(values, n, k, global_scale, "w");
    quantised.global_scale = 1.0F;
    return dequantise_nvfp4(quantised, "w");
  }
  return values;
}

}  // namespace quads::kernels::testing
