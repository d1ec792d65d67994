// Descriptions of matrices for the copy engine, which then brings boxes of them to shared memory.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Columns of a box: 128 bytes, the span of the swizzle.
inline constexpr int kBoxColumns = 64;

/// BF16 [rows, columns], rows `pitch` elements apart (0: dense), 16-byte aligned, both multiples of
/// 8; in boxes of 64 columns x box_rows (at most 256). In shared memory (aligned to 1024 bytes) a
/// row of a box has 128 bytes and its 16-byte chunk c lies at c ^ (row % 8). What lies outside the
/// matrix is 0. Error on sizes that the copy engine refuses.
CUtensorMap tensor_map(const Bf16* data, int64_t rows, int64_t columns, int box_rows,
                       int64_t pitch = 0);

}  // namespace quads::kernels::cuda
