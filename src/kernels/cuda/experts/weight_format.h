// The formats of weights that the grouped product multiplies, and their sizes in fragment order.
#pragma once

#include <cstdint>

namespace quads::kernels::cuda {

enum class WeightFormat : uint8_t {
  kNvfp4,
  /// NVFP4 weights beside activations q1 + q2 under a floor of q2's scales (numerics/rac.h): one
  /// image of FP16 in units of a row's global scale g, and one product.
  ///
  /// (q1 + q2) / g is exact in FP16. With e = floor(log2 s1), q1 / g is a multiple of s1's unit
  /// times 1/2, q2 / g of s2's: both of 2^(e - 7), since s2 >= 2^(e - 3), and of 2^-10, half of the
  /// smallest E4M3. x / g is at most 6 s1 (1 + 1/16) < 12 * 2^e (E4M3 rounds by no more; below its
  /// normal numbers 6 (s1 + 2^-10) <= 9 s1, where all is a multiple of 2^-10), and the rounding of
  /// x - q1 adds at most s2 <= s1 / 4 or 2^-9. So |q1 + q2| / g < 16 * 2^e: 11 bits above
  /// 2^(e - 7). It lies in 2^-10 .. 2^12, within FP16's normal numbers.
  kNvfp4Fp16,
  kFp8,
  kBf16
};
constexpr bool is_nvfp4(WeightFormat format) {
  return format == WeightFormat::kNvfp4 || format == WeightFormat::kNvfp4Fp16;
}
template <WeightFormat format>
inline constexpr bool kIsNvfp4 = is_nvfp4(format);  // for kernels

inline constexpr int kTileRows = 64;  // of N, in a tile
inline constexpr int kStageK = 128;   // of K, in a stage
inline constexpr int kTileSlices = 4;

/// Bytes of 16 rows of a stage: codes, then scales.
constexpr int slice_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Fp16:
      return 16 * kStageK / 2 + 16 * kStageK / 16;
    case WeightFormat::kFp8:
      return 16 * kStageK + 16;
    case WeightFormat::kBf16:
      return 16 * kStageK * 2;
  }
  return 0;
}

/// Stages of a K of any length; what is missing from the last one is zeros.
constexpr int stages_of(int64_t k) { return static_cast<int>((k + kStageK - 1) / kStageK); }

/// Bytes of one expert's weight [n, k]; n is a multiple of 64.
constexpr int64_t fragment_bytes(int64_t n, int64_t k, WeightFormat format = WeightFormat::kNvfp4) {
  return n / kTileRows * stages_of(k) * kTileSlices * slice_bytes(format);
}

}  // namespace quads::kernels::cuda
