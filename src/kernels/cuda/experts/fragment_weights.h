// NVFP4 weights in the order in which the CUDA kernels consume them: 4.5 bits a weight and nothing
// else, so that a stage of a tile is one bulk copy and a fragment one 16-byte load a thread.
//
// An expert's W [n, k] is [n / 64 tiles][ceil(k / 128) stages][4 slices of 16 rows][1152 bytes].
// A slice holds two halves of 64 k, each 32 threads x 16 bytes of codes (fragment_codes.h; thread
// 4 g + t of an m16k16 fragment has rows g, g + 8 and k = 2 t, 2 t + 1, 2 t + 8, 2 t + 9), then
// eight rows g x 16 bytes of scales (scale_word of blocks 2 i and 2 i + 1, rows g and g + 8). For
// kNvfp4Fp16 codes and scales lie as fragment_codes_fp16.h has them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/experts/weight_format.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {

inline constexpr int kSliceBytes = slice_bytes(WeightFormat::kNvfp4);
inline constexpr int kTileBytes = kTileSlices * kSliceBytes;

/// Which fragments of a weight.
struct FragmentForm {
  WeightFormat format = WeightFormat::kNvfp4;
  bool paired = false;  // rows are gates and ups, in the order of paired_rows.h
};

/// Packs W [rows, k] of one expert into `out` (fragment_bytes). `block_position` [k / 16] is the
/// position that each block of 16 channels takes along K (a permutation), empty for the natural
/// order; compensated blocks come first. The global scale does not take part: kernels get one an
/// expert. Codes of a block whose scale is 0 become 0. Error unless rows is a multiple of 64, k of
/// 16, the sizes fit, scales are 0..448 and positions are a permutation.
void pack_fragments(const Nvfp4Matrix& w, std::span<const int32_t> block_position,
                    std::span<uint8_t> out, const FragmentForm& form = {});

/// The inverse: codes and scales in the natural order.
Nvfp4Matrix unpack_fragments(std::span<const uint8_t> packed, int64_t rows, int64_t k,
                             float global_scale, std::span<const int32_t> block_position,
                             const FragmentForm& form = {});

}  // namespace quads::kernels::cuda
