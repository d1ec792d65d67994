#include "model/load_tensor.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace quads {
namespace {

// Exact. An FP32 of half's bits lies 2^112 too low, subnormal halves included; infinities and NaNs
// take FP32's largest exponent instead.
float half_to_float(uint16_t h) {
  constexpr uint32_t kExponent = 0x7C00;
  const uint32_t magnitude = (h & 0x7FFFU) << 13, sign = (h & 0x8000U) << 16;
  const uint32_t scaled = (h & kExponent) == kExponent
                              ? magnitude | 0x7F800000U
                              : std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  return std::bit_cast<float>(scaled | sign);
}

bool all_finite(const Bf16* values, int64_t count) {
  constexpr unsigned kExponent = 0x7F80;
  unsigned bad = 0;
  for (int64_t i = 0; i < count; ++i) {
    bad |= static_cast<unsigned>((values[i].bits & kExponent) == kExponent);
  }
  return bad == 0;
}

}  // namespace

void require_finite(float x, std::string_view tensor, int64_t index, int64_t cols) {
  const bool fits = std::isfinite(x) && std::isfinite(to_float(to_bf16(x)));
  require(fits, "tensor {} holds {} at row {}, column {}", tensor, x, index / cols, index % cols);
}

void require_readable(const TensorView& view) {
  require(view.dtype == DType::kBF16 || view.dtype == DType::kF16 || view.dtype == DType::kF32,
          "tensor {} is {}; weights are read as BF16, F16 or F32", view.name, describe(view));
}

void read_tensor(const TensorView& view, int64_t begin, int64_t count, Bf16* out) {
  const std::byte* data = view.data + static_cast<size_t>(begin) * dtype_size(view.dtype);
  const auto convert = [&](auto element, auto to_value) {  // files need not be aligned
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&element, data + static_cast<size_t>(i) * sizeof(element), sizeof(element));
      out[i] = to_bf16(to_value(element));
    }
  };
  require_readable(view);
  if (view.dtype == DType::kBF16) {
    std::memcpy(out, data, static_cast<size_t>(count) * sizeof(Bf16));
  } else if (view.dtype == DType::kF16) {
    convert(uint16_t{}, half_to_float);
  } else {
    convert(float{}, [](float x) { return x; });
  }
  if (all_finite(out, count)) return;
  for (int64_t i = 0; i < count; ++i) {
    require_finite(to_float(out[i]), view.name, begin + i, view.shape.back());
  }
}

}  // namespace quads
