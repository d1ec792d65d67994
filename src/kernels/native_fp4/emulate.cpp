#include "kernels/native_fp4/emulate.h"

#include <array>

#include "base/error.h"
#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace quads::kernels::native_fp4 {
namespace {

// The sum of 16 products of two codes, exact.
float dot_block(const uint8_t* a, const uint8_t* b) {
  float sum = 0.0F;
  for (int64_t i = 0; i < kBlock / 2; ++i) {
    sum += e2m1_decode(a[i] & 0xFU) * e2m1_decode(b[i] & 0xFU);
    sum += e2m1_decode(a[i] >> 4) * e2m1_decode(b[i] >> 4);
  }
  return sum;
}

}  // namespace

void emulate(const Product& p, std::span<float> sums) {
  require_offsets(p.offsets, p.rows);
  const int64_t groups = std::ssize(p.offsets), columns = scale_columns(p.k);
  const int64_t weight_scales = round_up(p.n, kTileRows) * columns;
  require(p.k > 0 && p.k % kAlignedK == 0, "native FP4: k' is {}; a positive multiple of 32", p.k);
  require(std::ssize(p.codes) == p.rows * p.k / 2 && std::ssize(sums) == p.rows * p.n &&
              std::ssize(p.weight_codes) == groups * p.n * p.k / 2 &&
              std::ssize(p.weight_scales) == groups * weight_scales &&
              std::ssize(p.global_scales) == groups,
          "native FP4: operands do not fit [{}, {}] x [{}, {}, {}]", p.rows, p.k, groups, p.n, p.k);
  constexpr std::array<uint8_t, kBlock / 2> kZeros{};  // what a chip reads behind the end of codes
  int64_t row = 0, first_scale_row = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t begin = row, end = p.offsets[static_cast<size_t>(group)];
    const int64_t next_scale_row = first_scale_row + round_up(end - begin, kTileRows);
    require(std::ssize(p.scales) >= next_scale_row * columns,
            "native FP4: {} block scales; group {} ends at {}", p.scales.size(), group,
            next_scale_row * columns);
    const uint8_t* scales = p.scales.data() + first_scale_row * columns;
    const uint8_t* of_weight = p.weight_scales.data() + group * weight_scales;
    for (; row < end; ++row) {
      const uint8_t* codes = p.codes.data() + row * p.k / 2;
      for (int64_t j = 0; j < p.n; ++j) {
        const uint8_t* weight = p.weight_codes.data() + (group * p.n + j) * p.k / 2;
        float sum = 0.0F;
        for (int64_t block = 0; block < columns; ++block) {
          const bool inside = block < p.k / kBlock;
          const float dot = dot_block(inside ? codes + block * kBlock / 2 : kZeros.data(),
                                      inside ? weight + block * kBlock / 2 : kZeros.data());
          sum += dot * (e4m3_decode(scales[scale_offset(row - begin, block, columns)]) *
                        e4m3_decode(of_weight[scale_offset(j, block, columns)]));
        }
        sums[static_cast<size_t>(row * p.n + j)] =
            sum * p.global_scales[static_cast<size_t>(group)];
      }
    }
    first_scale_row = next_scale_row;
  }
}

double emulation_bound(int64_t k) {
  const int64_t blocks = k / kBlock;
  const double roundings = static_cast<double>(blocks) * 0x1p-24;
  return roundings / (1.0 - roundings);
}

}  // namespace quads::kernels::native_fp4
