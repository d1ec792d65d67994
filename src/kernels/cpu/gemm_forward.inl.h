// The matrix product without AMX: tiles are decoded to FP32 in L1 and multiplied by fused
// multiply-adds in the order that gemm_kernels.h lays down.
#pragma once

#include "kernels/cpu/gemm_decode.inl.h"

namespace quads::kernels::QUADS_ISA {
namespace {  // internal: a copy compiled for this instruction set must never serve another

#if defined(__AVX512F__)
constexpr int kMaxRows = 6;  // 6 rows x 2 strips x (even, odd) = 24 of 32 registers
constexpr int kFewRows = 4;  // as many take weights from registers
constexpr int kFewSums = 16;
#else
constexpr int kMaxRows = 3;  // 3 rows x 1 strip x (even, odd) of two registers = 12 of 16
constexpr int kFewRows = 1;
constexpr int kFewSums = 4;  // of two registers
#endif

constexpr int64_t kRowChunk = 96;    // rows that share a decoded tile
constexpr int64_t kXFloats = 32768;  // FP32 copies of x, 128 KiB: half of a small L2
constexpr int64_t kPanelStrips = 2;  // strips of 16 n decoded at a time
constexpr int64_t kPanelTiles = 4;   // tiles along K decoded at a time: 16 KiB in all
constexpr int64_t kPanelN = kPanelStrips * kTileN;

/// a * b + c, rounded once, for a and b that are BF16 values (or E2M1 x E4M3 products).
inline F16 multiply_add(F16 a, F16 b, F16 c) {
#if defined(__AVX2__)
  return fma(a, b, c);
#else
  // a * b has at most 16 significand bits, so FP64 holds it, and a sum of two numbers of 24 bits
  // rounded to 53 and then to 24 is rounded as if once.
  return lanewise<F16>([&](int i) {
    return static_cast<float>(static_cast<double>(a.v[i]) * static_cast<double>(b.v[i]) +
                              static_cast<double>(c.v[i]));
  });
#endif
}

/// c[rows][strips * 16] += x W^T over one tile of 32 k. `w` is the decoded tile, those of further
/// strips kPanelTiles tiles behind; x is FP32. A function of its own so that the accumulators have
/// all registers to themselves.
template <int rows, int strips>
__attribute__((noinline)) void accumulate_tile(const float* w, const float* x, int64_t ldx,
                                               float* c) {
  constexpr int64_t kStripStride = kPanelTiles * kTileFloats;
  F16 even[rows][strips];
  F16 odd[rows][strips];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < strips; ++s) even[r][s] = odd[r][s] = zero();
  }
#pragma GCC unroll 2
  for (int pair = 0; pair < 16; ++pair) {
    const float* wp = w + pair * 32;
    const float* xp = x + pair * 2;
    F16 we[strips];
#pragma GCC unroll 8
    for (int s = 0; s < strips; ++s) we[s] = load(wp + s * kStripStride);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const F16 xe = splat(xp[r * ldx]);
#pragma GCC unroll 8
      for (int s = 0; s < strips; ++s) even[r][s] = multiply_add(xe, we[s], even[r][s]);
    }
    F16 wo[strips];
#pragma GCC unroll 8
    for (int s = 0; s < strips; ++s) wo[s] = load(wp + s * kStripStride + 16);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const F16 xo = splat(xp[r * ldx + 1]);
#pragma GCC unroll 8
      for (int s = 0; s < strips; ++s) odd[r][s] = multiply_add(xo, wo[s], odd[r][s]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int s = 0; s < strips; ++s) {
      float* to = c + r * kPanelN + s * kTileN;
      store(to, load(to) + (even[r][s] + odd[r][s]));
    }
  }
}

/// A chunk of x in FP32 and its residual pass, which covers the first `residual_tiles` tiles.
struct XChunk {
  const float* x;
  const float* x2;
  int64_t ld;
  int64_t residual_tiles;
};

template <int rows, int strips>
void accumulate_panel(const float* w, int64_t tiles, const XChunk& x, float* c) {
  for (int64_t t = 0; t < tiles; ++t) {
    accumulate_tile<rows, strips>(w + t * kTileFloats, x.x + t * kTileK, x.ld, c);
    if (t < x.residual_tiles) {
      accumulate_tile<rows, strips>(w + t * kTileFloats, x.x2 + t * kTileK, x.ld, c);
    }
  }
}

/// The rows of the micro-kernel: one strip at a time where two would not fit the registers.
template <int rows>
void accumulate_rows(const float* w, int64_t strips, int64_t tiles, const XChunk& x, float* c) {
#if defined(__AVX512F__)
  constexpr bool kTwoStrips = true;
#else
  constexpr bool kTwoStrips = rows == 1;
#endif
  if (kTwoStrips && strips == 2) {
    accumulate_panel<rows, kTwoStrips ? 2 : 1>(w, tiles, x, c);
    return;
  }
  for (int64_t s = 0; s < strips; ++s) {
    accumulate_panel<rows, 1>(w + s * kPanelTiles * kTileFloats, tiles, x, c + s * kTileN);
  }
}

inline void accumulate_chunk(const float* w, int64_t strips, int64_t tiles, XChunk x, int64_t rows,
                             float* c) {
  while (rows > 0) {
    // A rest of one row has too few chains to hide the latency: split the last rows evenly.
    int64_t n = rows < kMaxRows ? rows : kMaxRows;
    if (rows == kMaxRows + 1) n = (kMaxRows + 1) / 2;
    switch (n) {
      case 1:
        accumulate_rows<1>(w, strips, tiles, x, c);
        break;
      case 2:
        accumulate_rows<2>(w, strips, tiles, x, c);
        break;
      case 3:
        accumulate_rows<3>(w, strips, tiles, x, c);
        break;
#if defined(__AVX512F__)
      case 4:
        accumulate_rows<4>(w, strips, tiles, x, c);
        break;
      case 5:
        accumulate_rows<5>(w, strips, tiles, x, c);
        break;
      default:
        accumulate_rows<6>(w, strips, tiles, x, c);
        break;
#endif
    }
    x.x += n * x.ld;
    if (x.residual_tiles > 0) x.x2 += n * x.ld;
    c += n * kPanelN;
    rows -= n;
  }
}

inline void rows_to_float(const Bf16* x, int64_t ldx, int64_t rows, int64_t k, float* out,
                          int64_t ldo) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < k; i += 16) store(out + r * ldo + i, load_bf16(x + r * ldx + i));
  }
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// Columns n0 .. n0 + 32 of y (fewer at the end) for `rows` rows and the tiles [tile0, tile1).
inline void gemm_panel(const GemmArgs& args, int64_t n0, int64_t rows, int64_t tile0, int64_t tile1,
                       const XChunk& x, float factor, float* y) {
  const PackedMatrix& weight = *args.weight;
  const int64_t k_tiles = weight.k_tiles();
  const int64_t columns = smaller(kPanelN, args.n_end - n0);
  const int64_t strips = (columns + kTileN - 1) / kTileN;
  alignas(64) float w[kPanelStrips * kPanelTiles * kTileFloats];
  alignas(64) float c[kRowChunk * kPanelN];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t s = 0; s < strips; ++s) {
      const int valid = static_cast<int>(smaller(kTileN, columns - s * kTileN));
      store(c + r * kPanelN + s * kTileN,
            tile0 == 0 ? zero() : load_first(y + r * args.ldy + s * kTileN, valid));
    }
  }
  for (int64_t t = tile0; t < tile1; t += kPanelTiles) {
    const int64_t tiles = smaller(kPanelTiles, tile1 - t);
    for (int64_t s = 0; s < strips; ++s) {
      const int64_t index = (n0 / kTileN + s) * k_tiles + t;
      for (int64_t i = 0; i < tiles; ++i) {
        decode_tile(weight, index + i, w + (s * kPanelTiles + i) * kTileFloats);
      }
    }
    const int64_t done = (t - tile0) * kTileK;
    XChunk part = {x.x + done, nullptr, x.ld, x.residual_tiles - (t - tile0)};
    if (part.residual_tiles > 0) part.x2 = x.x2 + done;
    accumulate_chunk(w, strips, tiles, part, rows, c);
  }
  const F16 scale = splat(tile1 == k_tiles ? factor : 1.0F);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t s = 0; s < strips; ++s) {
      store_first(y + r * args.ldy + s * kTileN, load(c + r * kPanelN + s * kTileN) * scale,
                  static_cast<int>(smaller(kTileN, columns - s * kTileN)));
    }
  }
}

// Few rows: a decoded tile would be used once, so weights are multiplied in registers.

constexpr int kFewStrips = 4;  // whose sums are kept at a time
using FewSums = F16[kFewStrips];

/// Strips beside each other: as many chains as the registers hold.
constexpr int strips_of(int rows, int passes) {
  const int strips = kFewSums / (rows * passes * 2);
  return strips < 1 ? 1 : strips > kFewStrips ? kFewStrips : strips;
}

/// c[rows][first strips of kFewStrips] += over `tiles` tiles of as many strips; the first tile is
/// `index`, those of further strips lie k_tiles behind. With `residual`, x2 after x, tile by tile.
/// noinline as accumulate_tile is.
template <int rows, int strips, bool residual>
__attribute__((noinline)) void accumulate_few(const PackedMatrix& weight, int64_t index,
                                              int64_t tiles, const XChunk& x, FewSums* c) {
  constexpr int kPasses = residual ? 2 : 1;
  const int64_t k_tiles = weight.k_tiles();
  for (int64_t t = 0; t < tiles; ++t) {
    int64_t at[strips];
    F16 even[kPasses][rows][strips], odd[kPasses][rows][strips];
#pragma GCC unroll 4
    for (int s = 0; s < strips; ++s) at[s] = index + s * k_tiles + t;
#pragma GCC unroll 2
    for (int p = 0; p < kPasses; ++p) {
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int s = 0; s < strips; ++s) even[p][r][s] = odd[p][r][s] = zero();
      }
    }
    const float* of_pass[2] = {x.x + t * kTileK, residual ? x.x2 + t * kTileK : nullptr};
    decode_tiles<strips>(weight, at, [&](int pair, int s, F16 we, F16 wo) {
#pragma GCC unroll 2
      for (int p = 0; p < kPasses; ++p) {
#pragma GCC unroll 4
        for (int r = 0; r < rows; ++r) {
          const float* xp = of_pass[p] + r * x.ld + pair * 2;
          even[p][r][s] = multiply_add(splat(xp[0]), we, even[p][r][s]);
          odd[p][r][s] = multiply_add(splat(xp[1]), wo, odd[p][r][s]);
        }
      }
    });
#pragma GCC unroll 2
    for (int p = 0; p < kPasses; ++p) {
#pragma GCC unroll 4
      for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 4
        for (int s = 0; s < strips; ++s) c[r][s] = c[r][s] + (even[p][r][s] + odd[p][r][s]);
      }
    }
  }
}

/// The same for any number of strips, as many at a time as strips_of says, then one by one.
template <int rows, bool residual>
void accumulate_strips(const PackedMatrix& weight, int64_t index, int64_t tiles, const XChunk& x,
                       int64_t strips, FewSums* c) {
  constexpr int kTogether = strips_of(rows, residual ? 2 : 1);
  FewSums part[rows];
  const auto run = [&](int64_t first, int64_t count, auto accumulate) {
    for (int r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < count; ++s) part[r][s] = c[r][first + s];
    }
    accumulate(weight, index + first * weight.k_tiles(), tiles, x, part);
    for (int r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < count; ++s) c[r][first + s] = part[r][s];
    }
  };
  int64_t first = 0;
  for (; first + kTogether <= strips; first += kTogether) {
    run(first, kTogether, accumulate_few<rows, kTogether, residual>);
  }
  for (; first < strips; ++first) run(first, 1, accumulate_few<rows, 1, residual>);
}

/// gemm_panel for `rows` rows and up to kFewStrips strips.
template <int rows>
void few_rows_panel(const GemmArgs& args, int64_t n0, int64_t tile0, int64_t tile1, XChunk x,
                    float factor, float* y) {
  const PackedMatrix& weight = *args.weight;
  const int64_t columns = smaller(kFewStrips * kTileN, args.n_end - n0);
  const int64_t strips = (columns + kTileN - 1) / kTileN;
  const int64_t index = n0 / kTileN * weight.k_tiles() + tile0;
  const int64_t tiles = tile1 - tile0;
  const int64_t both = x.residual_tiles > 0 ? smaller(x.residual_tiles, tiles) : 0;
  const auto valid = [&](int64_t s) {
    return static_cast<int>(smaller(kTileN, columns - s * kTileN));
  };
  FewSums c[rows];
  for (int r = 0; r < rows; ++r) {
    for (int64_t s = 0; s < strips; ++s) {
      c[r][s] = tile0 == 0 ? zero() : load_first(y + r * args.ldy + s * kTileN, valid(s));
    }
  }
  if (both > 0) accumulate_strips<rows, true>(weight, index, both, x, strips, c);
  x.x += both * kTileK;
  accumulate_strips<rows, false>(weight, index + both, tiles - both, x, strips, c);
  const F16 scale = splat(tile1 == weight.k_tiles() ? factor : 1.0F);
  for (int r = 0; r < rows; ++r) {
    for (int64_t s = 0; s < strips; ++s) {
      store_first(y + r * args.ldy + s * kTileN, c[r][s] * scale, valid(s));
    }
  }
}

inline void few_rows_panel(int64_t rows, const GemmArgs& args, int64_t n0, int64_t tile0,
                           int64_t tile1, const XChunk& x, float factor, float* y) {
  switch (rows) {
    case 1:
      return few_rows_panel<1>(args, n0, tile0, tile1, x, factor, y);
#if defined(__AVX512F__)
    case 2:
      return few_rows_panel<2>(args, n0, tile0, tile1, x, factor, y);
    case 3:
      return few_rows_panel<3>(args, n0, tile0, tile1, x, factor, y);
    default:
      return few_rows_panel<4>(args, n0, tile0, tile1, x, factor, y);
#else
    default:
      return;  // kFewRows is 1
#endif
  }
}

inline void gemm(const GemmArgs& args) {
  const PackedMatrix& weight = *args.weight;
  const float factor = weight.alpha * activation_scale(weight.format);
  alignas(64) float xf[kXFloats];
  alignas(64) float x2f[kXFloats];
  for (int64_t m0 = 0; m0 < args.m; m0 += kRowChunk) {
    const int64_t rows = smaller(kRowChunk, args.m - m0);
    constexpr int64_t kStep = kPanelTiles * kTileK;
    const int64_t k_chunk = smaller(weight.k, kXFloats / rows / kStep * kStep);
    for (int64_t k0 = 0; k0 < weight.k; k0 += k_chunk) {
      const int64_t k = smaller(k_chunk, weight.k - k0);
      rows_to_float(args.x + m0 * args.ldx + k0, args.ldx, rows, k, xf, k_chunk);
      XChunk x = {xf, x2f, k_chunk, args.residual_tiles - k0 / kTileK};
      if (x.residual_tiles > 0) {
        rows_to_float(args.x2 + m0 * args.ldx2 + k0, args.ldx2, rows,
                      smaller(k, x.residual_tiles * kTileK), x2f, k_chunk);
      }
      const int64_t tile0 = k0 / kTileK, tile1 = (k0 + k) / kTileK;
      const bool few = rows <= kFewRows;
      const int64_t step = few ? kFewStrips * kTileN : kPanelN;
      for (int64_t n0 = args.n_begin; n0 < args.n_end; n0 += step) {
        float* y = args.y + m0 * args.ldy + (n0 - args.n_begin);
        if (few) {
          few_rows_panel(rows, args, n0, tile0, tile1, x, factor, y);
        } else {
          gemm_panel(args, n0, rows, tile0, tile1, x, factor, y);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quads::kernels::QUADS_ISA
