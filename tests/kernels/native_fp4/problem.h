// A grouped product with compensation: BF16 operands, and its native buffers as the CPU packs them.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/native_fp4/augmented_k.h"
#include "kernels/native_fp4/emulate.h"
#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack.h"
#include "kernels/testing.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::native_fp4 {

struct Problem {
  int64_t n = 0, k = 0;
  std::vector<int32_t> offsets;
  std::vector<uint8_t> mask;  // [k]; empty: no compensation
  std::vector<Bf16> x;        // [rows, k]
  std::vector<Bf16> w;        // [groups, n, k]

  int64_t rows() const { return offsets.back(); }
  int64_t groups() const { return std::ssize(offsets); }
};

/// Blocks of 16 that differ by up to 13 octaves, so that sums round.
inline std::vector<Bf16> spread_blocks(int64_t count, uint64_t seed) {
  testing::Fill fill(seed);
  std::vector<Bf16> x;
  while (std::ssize(x) < count) {
    const float size = std::ldexp(1.0F, -static_cast<int>(fill.below(14)));
    for (int64_t i = 0; i < kBlock; ++i) x.push_back(to_bf16(fill.normal() * size));
  }
  return x;
}

/// Spread blocks; of two blocks in three half of the channels are compensated.
inline Problem random_problem(std::vector<int32_t> offsets, int64_t n, int64_t k,
                              bool compensated = true) {
  Problem p{.n = n, .k = k, .offsets = std::move(offsets), .mask = {}, .x = {}, .w = {}};
  testing::Fill fill(static_cast<uint64_t>(n * 31 + k));
  for (int64_t c = 0; compensated && c < k; ++c) {
    p.mask.push_back(c / kBlock % 3 != 1 && fill.below(2) == 0 ? 1 : 0);
  }
  p.x = spread_blocks(p.rows() * k, 5);
  p.w = spread_blocks(p.groups() * n * k, 6);
  return p;
}

/// The weight of one group under its own power-of-two global scale.
inline Nvfp4Matrix quantised_weight(const Problem& p, int64_t group) {
  std::vector<float> values;
  for (int64_t i = group * p.n * p.k; i < (group + 1) * p.n * p.k; ++i) {
    values.push_back(to_float(p.w[static_cast<size_t>(i)]));
  }
  const float g = global_scale_pow2(checked_amax(values, p.n, p.k, "w"));
  return quantise_nvfp4(values, p.n, p.k, g, "w");
}

inline std::vector<float> to_floats(const std::vector<Bf16>& x) {
  std::vector<float> out;
  out.reserve(x.size());
  for (const Bf16 value : x) out.push_back(to_float(value));
  return out;
}

struct Buffers {
  AugmentedK k;
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
  std::vector<uint8_t> weight_codes, weight_scales;
  std::vector<float> global_scales;
};

/// Poisoned, then packed by the reference.
inline Buffers packed(const Problem& p) {
  Buffers b{.k = augment(p.k, p.mask),
            .codes = {},
            .scales = {},
            .row_scales = {},
            .weight_codes = {},
            .weight_scales = {},
            .global_scales = {}};
  const int64_t columns = scale_columns(b.k.augmented);
  b.codes.assign(static_cast<size_t>(p.rows() * b.k.augmented / 2), 0xEE);
  b.scales.assign(static_cast<size_t>(scale_rows_bound(p.rows(), p.groups()) * columns), 0xEE);
  b.row_scales.assign(static_cast<size_t>(p.rows()), -1.0F);
  pack_rows(to_floats(p.x), p.offsets, b.k, p.mask,
            {.codes = b.codes, .scales = b.scales, .row_scales = b.row_scales}, "x");
  const auto code_bytes = static_cast<size_t>(p.n * b.k.augmented / 2);
  const auto scale_bytes = static_cast<size_t>(round_up(p.n, kTileRows) * columns);
  b.weight_codes.assign(static_cast<size_t>(p.groups()) * code_bytes, 0xEE);
  b.weight_scales.assign(static_cast<size_t>(p.groups()) * scale_bytes, 0xEE);
  for (int64_t group = 0; group < p.groups(); ++group) {
    const Nvfp4Matrix w = quantised_weight(p, group);
    const auto at = static_cast<size_t>(group);
    pack_weight(w.packed, w.block_scales, p.n, b.k,
                std::span(b.weight_codes).subspan(at * code_bytes, code_bytes),
                std::span(b.weight_scales).subspan(at * scale_bytes, scale_bytes));
    b.global_scales.push_back(w.global_scale);
  }
  return b;
}

inline Product product(const Problem& p, const Buffers& b) {
  return {.rows = p.rows(),
          .n = p.n,
          .k = b.k.augmented,
          .offsets = p.offsets,
          .codes = b.codes,
          .scales = b.scales,
          .weight_codes = b.weight_codes,
          .weight_scales = b.weight_scales,
          .global_scales = b.global_scales};
}

/// The emulated product, times the rows' scales.
inline std::vector<float> emulated(const Problem& p, const Buffers& b) {
  std::vector<float> y(static_cast<size_t>(p.rows() * p.n), std::nanf(""));
  emulate(product(p, b), y);
  for (size_t i = 0; i < y.size(); ++i) y[i] *= b.row_scales[i / static_cast<size_t>(p.n)];
  return y;
}

}  // namespace quads::kernels::native_fp4
