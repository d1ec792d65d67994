// Keys and values on a device: pages of 16 positions that sequences own by tables of page ids, and
// where the rows of a batch stand.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/fragment_codes.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

inline constexpr int kMaxHeadDim = 256;

/// Heads that share a key and value are neighbours: query head h reads KV head h / (heads /
/// kv_heads).
struct HeadShape {
  int heads = 0;     // a multiple of kv_heads
  int kv_heads = 0;  // heads / kv_heads is 1..16
  int head_dim = 0;  // a multiple of 16, 32..kMaxHeadDim

  QUADS_HOST_DEVICE int64_t q_width() const { return int64_t{heads} * head_dim; }
  QUADS_HOST_DEVICE int64_t kv_width() const { return int64_t{kv_heads} * head_dim; }
  QUADS_HOST_DEVICE int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  /// BF16 elements of one layer's page: [kv_heads][K, V][16 positions][head_dim].
  QUADS_HOST_DEVICE int64_t page_elements() const { return 2 * 16 * kv_width(); }
};

/// Device pointers. Row r is the token at positions[r] of sequence sequences[r], whose page ids are
/// page_table[sequences[r] * max_pages + ...], 16 positions each. Sequences may share pages.
struct RowPlaces {
  int64_t rows = 0;                     // a bound, if row_count says how many there are
  const int32_t* row_count = nullptr;   // on the device, at most `rows`; null: all
  const int32_t* positions = nullptr;   // [rows]; < 0: the row is left out
  const int32_t* sequences = nullptr;   // [rows]
  const int32_t* page_table = nullptr;  // [sequences][max_pages]
  int64_t max_pages = 0;                // positions are below 16 * max_pages
};

}  // namespace quads::kernels::cuda
