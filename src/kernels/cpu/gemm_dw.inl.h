// The gradient of a weight without AMX: dw += scale * dy^T x as outer products, row after row.
#pragma once

#include "kernels/cpu/gemm_forward.inl.h"

namespace quads::kernels::QUADS_ISA {
namespace {  // internal: a copy compiled for this instruction set must never serve another

#if defined(__AVX512F__)
constexpr int kDwVectors = 2;  // vectors of 16 along k
#else
constexpr int kDwVectors = 1;
#endif
constexpr int kDwRows = 6;         // along n
constexpr int64_t kDwChunk = 128;  // rows of dy and x summed before they are added to dw
constexpr int64_t kDwPanelN = 96;  // a multiple of kDwRows
constexpr int64_t kDwPanelK = 16 * kDwVectors;

/// dw[rows, 16 * vectors] += scale * sum over m of dy[m, 0..rows] x[m, :]; FP32 copies with strides
/// kDwPanelN and kDwPanelK.
template <int rows, int vectors>
inline __attribute__((always_inline)) void dw_tile(const float* dy, const float* x, int64_t m,
                                                   F16 scale, float* dw, int64_t lddw) {
  F16 sum[rows][vectors];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) sum[r][v] = zero();
  }
  for (int64_t i = 0; i < m; ++i) {
    F16 xi[vectors];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) xi[v] = load(x + i * kDwPanelK + v * 16);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const F16 d = splat(dy[i * kDwPanelN + r]);
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v) sum[r][v] = multiply_add(d, xi[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      float* to = dw + r * lddw + v * 16;
      store(to, load(to) + sum[r][v] * scale);
    }
  }
}

template <int vectors>
void dw_panel(const float* dy, const float* x, int64_t m, int64_t n, F16 scale, float* dw,
              int64_t lddw) {
  int64_t r = 0;
  for (; r + kDwRows <= n; r += kDwRows) {
    dw_tile<kDwRows, vectors>(dy + r, x, m, scale, dw + r * lddw, lddw);
  }
  // n is a multiple of 16, so the rest is 0, 2 or 4.
  if (n - r == 4) dw_tile<4, vectors>(dy + r, x, m, scale, dw + r * lddw, lddw);
  if (n - r == 2) dw_tile<2, vectors>(dy + r, x, m, scale, dw + r * lddw, lddw);
}

inline void accumulate_dw(const GemmDwArgs& args) {
  alignas(64) float dy[kDwChunk * kDwPanelN];
  alignas(64) float x[kDwChunk * kDwPanelK];
  const F16 scale = splat(args.scale);
  for (int64_t m0 = 0; m0 < args.m; m0 += kDwChunk) {
    const int64_t m = smaller(kDwChunk, args.m - m0);
    for (int64_t n0 = 0; n0 < args.n; n0 += kDwPanelN) {
      const int64_t n = smaller(kDwPanelN, args.n - n0);
      rows_to_float(args.dy + m0 * args.lddy + n0, args.lddy, m, n, dy, kDwPanelN);
      for (int64_t k0 = 0; k0 < args.k; k0 += kDwPanelK) {
        const int64_t k = smaller(kDwPanelK, args.k - k0);
        rows_to_float(args.x + m0 * args.ldx + k0, args.ldx, m, k, x, kDwPanelK);
        float* dw = args.dw + n0 * args.lddw + k0;
        if (k == kDwPanelK) {
          dw_panel<kDwVectors>(dy, x, m, n, scale, dw, args.lddw);
        } else {
          dw_panel<1>(dy, x, m, n, scale, dw, args.lddw);
        }
      }
    }
  }
}

}  // namespace
}  // namespace quads::kernels::QUADS_ISA
