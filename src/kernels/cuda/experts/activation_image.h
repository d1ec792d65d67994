// Where quantised activations lie: as the kernels' shared memory wants them, so that a stage of a
// tile of tokens is one bulk copy without a gather. Plain C++, shared by host and kernels.
//
// Rows are sorted by expert and padded to 8 an expert. An expert's part is [stages of 128 k][groups
// of 8 rows][2 panels of 64 k][8 rows][128 bytes]; the eight 16-byte chunks of a panel's row are
// swizzled: chunk c of row r lies at c ^ r (the 128-byte swizzle of wgmma and ldmatrix). The image
// of q2 has the same form over its own, fewer stages. What lies in padding rows has no influence.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/fragment_codes.h"

namespace quads::kernels::cuda {

inline constexpr int kImageGroup = 8;        // rows that a group holds
inline constexpr int kGroupElements = 1024;  // of a group in a stage

/// Where one row of an image is; the same for any number of stages.
struct ImageRow {
  int32_t base;         // padded rows of the experts before
  int32_t padded_rows;  // of this expert, a multiple of 8
  int32_t index;        // in this expert; < 0: the row is nowhere
  int32_t unused;
};

/// The element at which the 16-byte chunk `chunk` (0..15) of `stage` begins.
QUADS_HOST_DEVICE inline int64_t image_offset(const ImageRow& row, int stages, int stage,
                                              int chunk) {
  const int lane = row.index & 7;
  return (static_cast<int64_t>(row.base) * stages + static_cast<int64_t>(stage) * row.padded_rows) *
             128 +
         (row.index >> 3) * kGroupElements + (chunk >> 3) * 512 + lane * 64 +
         ((chunk & 7) ^ lane) * 8;
}

/// Rows that images of `rows` rows over `experts` experts need at most, padding included.
constexpr int64_t padded_rows_bound(int64_t rows, int64_t experts) {
  const int64_t used = rows < experts ? rows : experts;
  return (rows + 7 * used) / kImageGroup * kImageGroup;
}

/// BF16 elements of an image of `stages` stages.
constexpr int64_t image_elements(int64_t rows, int64_t experts, int stages) {
  return padded_rows_bound(rows, experts) * stages * 128;
}

}  // namespace quads::kernels::cuda
