// Attention over paged keys and values in 16-lane vectors. It is made of two small products:
// `dots`, whose lanes are the positions of a page (so a score is one chain over the head's
// dimensions), and `accumulate`, whose lanes are dimensions (so an output is one chain over
// positions). How rows and pages are tiled changes no chain, hence no bit.
#pragma once

#include <limits>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/isa_tables.h"
#include "kernels/cpu/vec16.h"
#include "kernels/cpu/vec_math.h"

namespace quads::kernels::QUADS_ISA {
namespace {

// Independent chains kept in registers, in 16-lane vectors: enough to hide the latency of a fused
// multiply-add.
#if defined(__AVX512F__)
constexpr int kChains = 8;
#else
constexpr int kChains = 4;
#endif

// Query rows that the backward takes at a time; a page long, so that they share their last page.
constexpr int64_t kTileRows = kPageSize;

inline F16 load_lanes(const float* p) { return load(p); }
inline F16 load_lanes(const Bf16* p) { return load_bf16(p); }

// bf16(a) as FP32, round to nearest even. Finite input only.
inline F16 round_to_bf16(F16 a) {
  const I16 u = bits(a);
  return from_bits((u + splat_int(0x7FFF) + (shift_right<16>(u) & splat_int(1))) &
                   splat_int(static_cast<int32_t>(0xFFFF0000U)));
}

inline float* alloc_floats(Arena& arena, int64_t count) {
  return static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(count) * sizeof(float)));
}

// out[r][16 p + lane] = sum over d of a[r][d] * pages[p][offset + 16 d + lane].
template <int kRows, int kPages>
inline void dots_tile(const float* a, int64_t lda, const Bf16* const* pages, int64_t offset,
                      int64_t head_dim, float* out, int64_t ldo) {
  F16 sum[kRows][kPages];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPages; ++p) sum[r][p] = zero();
  }
  const Bf16* b[kPages];
#pragma GCC unroll 8
  for (int p = 0; p < kPages; ++p) b[p] = pages[p] + offset;
  for (int64_t d = 0; d < head_dim; ++d) {
    F16 lanes[kPages];
#pragma GCC unroll 8
    for (int p = 0; p < kPages; ++p) lanes[p] = load_bf16(b[p] + d * kPageSize);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F16 x = splat(a[r * lda + d]);
#pragma GCC unroll 8
      for (int p = 0; p < kPages; ++p) sum[r][p] = fma(x, lanes[p], sum[r][p]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPages; ++p) store(out + r * ldo + p * kPageSize, sum[r][p]);
  }
}

template <int kRows>
void dots_rows(const float* a, int64_t lda, const Bf16* const* pages, int64_t num_pages,
               int64_t offset, int64_t head_dim, float* out, int64_t ldo) {
  constexpr int kPages = kChains / kRows;
  int64_t p = 0;
  for (; p + kPages <= num_pages; p += kPages) {
    dots_tile<kRows, kPages>(a, lda, pages + p, offset, head_dim, out + p * kPageSize, ldo);
  }
  for (; p < num_pages; ++p) {
    dots_tile<kRows, 1>(a, lda, pages + p, offset, head_dim, out + p * kPageSize, ldo);
  }
}

// Dot products of `rows` FP32 rows with the columns of pages [head_dim][16], one chain over the
// dimensions each. Columns of unused slots come out as whatever the page holds.
void dots(const float* a, int64_t lda, int64_t rows, const Bf16* const* pages, int64_t num_pages,
          int64_t offset, int64_t head_dim, float* out, int64_t ldo) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    dots_rows<4>(a + r * lda, lda, pages, num_pages, offset, head_dim, out + r * ldo, ldo);
  }
  if (r + 2 <= rows) {
    dots_rows<2>(a + r * lda, lda, pages, num_pages, offset, head_dim, out + r * ldo, ldo);
    r += 2;
  }
  if (r < rows) {
    dots_rows<1>(a + r * lda, lda, pages, num_pages, offset, head_dim, out + r * ldo, ldo);
  }
}

// acc[r][16 v + lane] += sum over t in order of w[r * w_row + t * w_step] * b[t][16 v + lane].
template <int kRows, int kVectors, class T>
inline void accumulate_tile(const float* w, int64_t w_row, int64_t w_step, int64_t count,
                            const T* b, int64_t ldb, float* acc, int64_t lda) {
  F16 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sum[r][v] = load(acc + r * lda + v * 16);
  }
  for (int64_t t = 0; t < count; ++t) {
    F16 lanes[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) lanes[v] = load_lanes(b + t * ldb + v * 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const F16 x = splat(w[r * w_row + t * w_step]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(x, lanes[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(acc + r * lda + v * 16, sum[r][v]);
  }
}

template <int kRows, class T>
void accumulate_rows(const float* w, int64_t w_row, int64_t w_step, int64_t count, const T* b,
                     int64_t ldb, int64_t head_dim, float* acc, int64_t lda) {
  constexpr int kVectors = kChains / kRows;
  int64_t d = 0;
  for (; d + 16 * kVectors <= head_dim; d += 16 * kVectors) {
    accumulate_tile<kRows, kVectors>(w, w_row, w_step, count, b + d, ldb, acc + d, lda);
  }
  for (; d < head_dim; d += 16) {
    accumulate_tile<kRows, 1>(w, w_row, w_step, count, b + d, ldb, acc + d, lda);
  }
}

// acc [rows, head_dim] += w [rows, count] times b [count, head_dim], each element continuing its
// chain in acc.
template <class T>
void accumulate(const float* w, int64_t w_row, int64_t w_step, int64_t rows, int64_t count,
                const T* b, int64_t ldb, int64_t head_dim, float* acc, int64_t lda) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    accumulate_rows<4>(w + r * w_row, w_row, w_step, count, b, ldb, head_dim, acc + r * lda, lda);
  }
  if (r + 2 <= rows) {
    accumulate_rows<2>(w + r * w_row, w_row, w_step, count, b, ldb, head_dim, acc + r * lda, lda);
    r += 2;
  }
  if (r < rows) {
    accumulate_rows<1>(w + r * w_row, w_row, w_step, count, b, ldb, head_dim, acc + r * lda, lda);
  }
}

// Turns q . k_j of positions 0..context-1 into p_j = bf16(exp(s_j - max s)), zero up to the end of
// the last page, and returns the sum of the p_j. Unused slots may hold NaN.
float exp_scores(float* scores, int64_t context, float scale) {
  const int64_t last = (context - 1) / kPageSize * kPageSize;
  const Mask16 used = first_lanes(static_cast<int>(context - last));
  const F16 scale16 = splat(scale);
  F16 largest = splat(-std::numeric_limits<float>::infinity());
  for (int64_t j = 0; j < last; j += kPageSize) {
    const F16 s = load(scores + j) * scale16;
    store(scores + j, s);
    largest = max(largest, s);
  }
  const F16 s_last = load(scores + last) * scale16;
  const F16 m = splat(reduce_max(select(used, max(largest, s_last), largest)));
  F16 sum = zero();
  for (int64_t j = 0; j < last; j += kPageSize) {
    const F16 p = round_to_bf16(exp(load(scores + j) - m));
    store(scores + j, p);
    sum = sum + p;
  }
  const F16 p_last = select(used, round_to_bf16(exp(s_last - m)), zero());
  store(scores + last, p_last);
  return reduce_sum(sum + p_last);
}

// BF16 rows [rows, width] as dense FP32 ones; width is a multiple of 16.
void widen(const Bf16* x, int64_t ldx, int64_t rows, int64_t width, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < width; d += 16) store(out + r * width + d, load_bf16(x + r * ldx + d));
  }
}

void fill_zero(float* x, int64_t count) {  // count is a multiple of 16
  for (int64_t i = 0; i < count; i += 16) store(x + i, zero());
}

void attend(const AttentionShape& shape, const Bf16* q, const Bf16* const* pages, int64_t context,
            Arena& arena, float* out) {
  const int64_t head_dim = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;  // query heads of one key-value head
  const int64_t num_pages = (context + kPageSize - 1) / kPageSize;
  const int64_t lds = num_pages * kPageSize;
  const ArenaScope scope(arena);
  float* query = alloc_floats(arena, shape.heads * head_dim);
  float* scores = alloc_floats(arena, group * lds);
  float* sums = alloc_floats(arena, group);
  widen(q, 0, 1, shape.heads * head_dim, query);
  fill_zero(out, shape.heads * head_dim);
  for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    const int64_t key_offset = kv * 2 * kPageSize * head_dim;
    const int64_t value_offset = key_offset + kPageSize * head_dim;
    float* y = out + kv * group * head_dim;
    dots(query + kv * group * head_dim, head_dim, group, pages, num_pages, key_offset, head_dim,
         scores, lds);
    for (int64_t h = 0; h < group; ++h)
      sums[h] = exp_scores(scores + h * lds, context, shape.scale);
    for (int64_t p = 0; p < num_pages; ++p) {
      const int64_t left = context - p * kPageSize;
      accumulate(scores + p * kPageSize, lds, 1, group, left < kPageSize ? left : kPageSize,
                 pages[p] + value_offset, head_dim, head_dim, y, head_dim);
    }
    for (int64_t h = 0; h < group; ++h) {
      const F16 sum = splat(sums[h]);
      for (int64_t d = h * head_dim; d < (h + 1) * head_dim; d += 16)
        store(y + d, load(y + d) / sum);
    }
  }
}

// p: q . k_j in, probabilities out; dp: dout . v_j in, gradient of q . k_j out.
void probabilities_backward(float* p, float* dp, int64_t context, float scale) {
  const F16 inv_sum = splat(1.0F / exp_scores(p, context, scale));
  const int64_t last = (context - 1) / kPageSize * kPageSize;
  const Mask16 used = first_lanes(static_cast<int>(context - last));
  store(dp + last, select(used, load(dp + last), zero()));
  F16 sum = zero();
  for (int64_t j = 0; j <= last; j += kPageSize) {
    const F16 probability = load(p + j) * inv_sum;
    store(p + j, probability);
    sum = fma(probability, load(dp + j), sum);
  }
  const F16 mean = splat(reduce_sum(sum));
  const F16 scale16 = splat(scale);
  for (int64_t j = 0; j <= last; j += kPageSize) {
    store(dp + j, (load(p + j) * (load(dp + j) - mean)) * scale16);
  }
}

// out [columns][rows] = the transpose of in [rows][columns].
void transpose(const Bf16* in, int64_t rows, int64_t columns, Bf16* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[c * rows + r] = in[r * columns + c];
  }
}

void attend_backward(const AttentionShape& shape, const Bf16* q, const Bf16* const* pages,
                     int64_t n, const float* dout, Arena& arena, float* dq, float* dk, float* dv) {
  const int64_t head_dim = shape.head_dim;
  const int64_t group = shape.heads / shape.kv_heads;
  const int64_t num_pages = (n + kPageSize - 1) / kPageSize;
  const int64_t half_page = kPageSize * head_dim;  // the keys, or the values, of one head
  const int64_t lds = num_pages * kPageSize;
  const int64_t ldq = shape.heads * head_dim;
  const int64_t ldk = shape.kv_heads * head_dim;
  const ArenaScope scope(arena);
  const auto pages_bytes = static_cast<size_t>(num_pages * half_page) * sizeof(Bf16);
  auto* key_rows = static_cast<Bf16*>(arena.alloc_bytes(pages_bytes));       // [position][d]
  auto* value_columns = static_cast<Bf16*>(arena.alloc_bytes(pages_bytes));  // [page][d][16]
  auto* value_pages = static_cast<const Bf16**>(
      arena.alloc_bytes(static_cast<size_t>(num_pages) * sizeof(const Bf16*)));
  for (int64_t p = 0; p < num_pages; ++p) value_pages[p] = value_columns + p * half_page;
  float* query = alloc_floats(arena, kTileRows * head_dim);
  float* probabilities = alloc_floats(arena, kTileRows * lds);
  float* dscores = alloc_floats(arena, kTileRows * lds);
  fill_zero(dq, n * ldq);
  fill_zero(dk, n * ldk);
  fill_zero(dv, n * ldk);

  for (int64_t kv = 0; kv < shape.kv_heads; ++kv) {
    const int64_t key_offset = kv * 2 * half_page;
    for (int64_t p = 0; p < num_pages; ++p) {
      transpose(pages[p] + key_offset, head_dim, kPageSize, key_rows + p * half_page);
      transpose(pages[p] + key_offset + half_page, kPageSize, head_dim,
                value_columns + p * half_page);
    }
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t i = 0; i < n; i += kTileRows) {
        const int64_t rows = n - i < kTileRows ? n - i : kTileRows;
        const int64_t tile = i * ldq + h * head_dim;
        const int64_t pages_seen = i / kPageSize + 1;
        widen(q + tile, ldq, rows, head_dim, query);
        dots(query, head_dim, rows, pages, pages_seen, key_offset, head_dim, probabilities, lds);
        dots(dout + tile, ldq, rows, value_pages, pages_seen, 0, head_dim, dscores, lds);
        for (int64_t r = 0; r < rows; ++r) {
          probabilities_backward(probabilities + r * lds, dscores + r * lds, i + r + 1,
                                 shape.scale);
        }
        for (int64_t p = 0; p < pages_seen; ++p) {
          const int64_t j = p * kPageSize;
          const int64_t count = p + 1 < pages_seen ? kPageSize : rows;
          const int64_t key = j * ldk + kv * head_dim;
          accumulate(dscores + j, lds, 1, rows, count, key_rows + j * head_dim, head_dim, head_dim,
                     dq + tile, ldq);
          accumulate(dscores + j, 1, lds, count, rows, q + tile, ldq, head_dim, dk + key, ldk);
          accumulate(probabilities + j, 1, lds, count, rows, dout + tile, ldq, head_dim, dv + key,
                     ldk);
        }
      }
    }
  }
}

}  // namespace

AttentionKernels attention_kernels() { return {attend, attend_backward}; }

}  // namespace quads::kernels::QUADS_ISA
