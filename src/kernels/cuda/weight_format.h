// The formats of weights that the grouped product multiplies, and their sizes in fragment order.
#pragma once

#include <cstdint>

namespace quads::kernels::cuda {

enum class WeightFormat : uint8_t { kNvfp4, kFp8, kBf16 };

inline constexpr int kTileRows = 64;  // of N, in a tile
inline constexpr int kStageK = 128;   // of K, in a stage
inline constexpr int kTileSlices = 4;

/// Bytes of 16 rows of a stage: codes, then scales.
constexpr int slice_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
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
