// The NVFP4 quantiser.
#include "numerics/nvfp4.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace quads {

float global_scale_pow2(float amax) { return smallest_power_of_two_scale(amax, kNvfp4Max); }

float global_scale_arbitrary(float amax) {
  require(std::isfinite(amax) && amax >= 0.0F, "a scale needs a finite amax >= 0, not {}", amax);
  return amax == 0.0F ? 1.0F : std::max(amax / kNvfp4Max, kMinScale);
}

uint8_t block_scale(float block_amax, float g) { return e4m3_encode(block_amax / (kE2m1Max * g)); }

uint8_t nvfp4_code(float x, uint8_t sf, float g) {
  if (sf == 0) return 0;
  const float scale = e4m3_decode(sf) * g;
  return is_power_of_two(g) ? e2m1_encode_scaled(x, scale) : e2m1_encode(x / scale);
}

float nvfp4_value(uint8_t code, uint8_t sf, float g) {
  return e2m1_decode(code) * (e4m3_decode(sf) * g);
}

uint8_t quantise_block(std::span<const float, 16> x, float g, std::span<uint8_t, 16> codes) {
  float amax = 0.0F;
  for (const float value : x) amax = std::max(amax, std::fabs(value));
  const uint8_t sf = block_scale(amax, g);
  // The rounded scale, the one that is published, decides the codes.
  for (int i = 0; i < kNvfp4Block; ++i) codes[i] = nvfp4_code(x[i], sf, g);
  return sf;
}

std::vector<uint8_t> pack_nibbles(std::span<const uint8_t> codes) {
  std::vector<uint8_t> packed(codes.size() / 2);
  for (size_t i = 0; i < packed.size(); ++i) {
    packed[i] = static_cast<uint8_t>(codes[2 * i] | (codes[2 * i + 1] << 4));
  }
  return packed;
}

std::vector<uint8_t> unpack_nibbles(std::span<const uint8_t> packed) {
  std::vector<uint8_t> codes(packed.size() * 2);
  for (size_t i = 0; i < packed.size(); ++i) {
    codes[2 * i] = packed[i] & 0xFU;
    codes[2 * i + 1] = packed[i] >> 4;
  }
  return codes;
}

QuantisedRow quantise_row(std::span<const float> x, float g, std::string_view tensor, int64_t row) {
  const auto k = static_cast<int64_t>(x.size());
  require(k % kNvfp4Block == 0, "{}: a row of {} values; NVFP4 needs a multiple of 16", tensor, k);
  require(std::isfinite(g) && g > 0.0F, "{}: global scale {}; it must be positive and finite",
          tensor, g);
  checked_amax(x, 1, k, tensor, row);
  QuantisedRow result{g, std::vector<uint8_t>(k), std::vector<uint8_t>(k / kNvfp4Block),
                      std::vector<float>(k)};
  const std::span<uint8_t> codes = result.codes;
  for (int64_t begin = 0; begin < k; begin += kNvfp4Block) {
    const uint8_t sf =
        quantise_block(x.subspan(begin).first<16>(), g, codes.subspan(begin).first<16>());
    result.block_scales[begin / kNvfp4Block] = sf;
    for (int64_t i = begin; i < begin + kNvfp4Block; ++i) {
      result.values[i] = nvfp4_value(codes[i], sf, g);
      require_fits_bf16(result.values[i], x[i], tensor, row, i);
    }
  }
  return result;
}

QuantisedRow quantise_activation_row(std::span<const float> x, std::string_view tensor,
                                     int64_t row) {
  const float amax = checked_amax(x, 1, static_cast<int64_t>(x.size()), tensor, row);
  return quantise_row(x, global_scale_pow2(amax), tensor, row);
}

Nvfp4Matrix quantise_nvfp4(std::span<const float> x, int64_t rows, int64_t k, float g,
                           std::string_view tensor) {
  require_shape(x, rows, k, tensor);
  Nvfp4Matrix matrix{rows, k, g, {}, {}};
  for (int64_t row = 0; row < rows; ++row) {
    const QuantisedRow quantised = quantise_row(x.subspan(row * k, k), g, tensor, row);
    const std::vector<uint8_t> packed = pack_nibbles(quantised.codes);
    matrix.packed.insert(matrix.packed.end(), packed.begin(), packed.end());
    matrix.block_scales.insert(matrix.block_scales.end(), quantised.block_scales.begin(),
                               quantised.block_scales.end());
  }
  return matrix;
}

std::vector<float> dequantise_nvfp4(const Nvfp4Matrix& matrix, std::string_view tensor) {
  const int64_t rows = matrix.rows;
  const int64_t k = matrix.k;
  require(rows >= 0 && k >= 0 && k % kNvfp4Block == 0 && (k == 0 || rows <= INT64_MAX / k) &&
              static_cast<int64_t>(matrix.packed.size()) == rows * k / 2 &&
              static_cast<int64_t>(matrix.block_scales.size()) == rows * k / kNvfp4Block,
          "{}: {} packed bytes and {} block scales do not make [{}, {}] in blocks of 16", tensor,
          matrix.packed.size(), matrix.block_scales.size(), rows, k);
  const std::vector<uint8_t> codes = unpack_nibbles(matrix.packed);
  std::vector<float> values(codes.size());
  for (size_t i = 0; i < codes.size(); ++i) {
    const uint8_t sf = matrix.block_scales[i / kNvfp4Block];
    require(sf <= kE4m3MaxCode,
            "{}: row {}, block {}: block scale {} (code {:02X}); it must be 0..448", tensor, i / k,
            i % k / kNvfp4Block, e4m3_decode(sf), sf);
    values[i] = nvfp4_value(codes[i], sf, matrix.global_scale);
  }
  return values;
}

std::vector<float> fake_quantise_nvfp4(std::span<const float> x, int64_t rows, int64_t k,
                                       std::string_view tensor) {
  require_shape(x, rows, k, tensor);
  const float g = global_scale_pow2(checked_amax(x, rows, k, tensor));
  return dequantise_nvfp4(quantise_nvfp4(x, rows, k, g, tensor), tensor);
}

}  // namespace quads
