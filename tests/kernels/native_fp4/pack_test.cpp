// The reference packing: what lies where, zeros elsewhere, errors.
#include "kernels/native_fp4/pack.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/native_fp4/problem.h"
#include "numerics/rac.h"

namespace quads::kernels::native_fp4 {
namespace {

std::string message_of(const auto& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(NativeFp4Pack, RowsHoldBothPassesAndZerosInEveryPadding) {
  const Problem p = random_problem({130, 130, 133}, 16, 80);
  const Buffers b = packed(p);
  const int64_t columns = scale_columns(b.k.augmented), blocks = p.k / kBlock;
  std::vector<uint8_t> codes(b.codes.size(), 0), scales(b.scales.size(), 0);
  for (int64_t row = 0; row < p.rows(); ++row) {
    const std::vector<float> all = to_floats(p.x);
    const std::span<const float> x(all.data() + row * p.k, static_cast<size_t>(p.k));
    const float g = global_scale_pow2(checked_amax(x, 1, p.k, "x"));
    EXPECT_EQ(b.row_scales[static_cast<size_t>(row)], g);
    const CompensatedRow q = compensate_row(x, g, p.mask, false, "x");
    const int64_t scale_row = row < 130 ? row : 256 + row - 130;  // 130 rows are padded to 256
    for (int64_t c = 0; c < p.k + kBlock * std::ssize(b.k.selected); ++c) {
      const bool first = c < p.k;
      const int64_t block = first ? c / kBlock : b.k.selected[static_cast<size_t>(c / 16 - blocks)];
      const auto channel = static_cast<size_t>(block * kBlock + c % kBlock);
      const QuantisedRow& of = first ? q.main : q.correction;
      codes[static_cast<size_t>(row * b.k.augmented / 2 + c / 2)] |=
          static_cast<uint8_t>(of.codes[channel] << (c % 2 * 4));
      scales[static_cast<size_t>(scale_offset(scale_row, c / kBlock, columns))] =
          of.block_scales[static_cast<size_t>(block)];
    }
  }
  EXPECT_EQ(b.codes, codes);
  EXPECT_EQ(b.scales, scales);
}

TEST(NativeFp4Pack, WeightsRepeatTheCompensatedBlocks) {
  const Problem p = random_problem({1}, 144, 80);
  const Buffers b = packed(p);
  const Nvfp4Matrix w = quantised_weight(p, 0);
  const int64_t columns = scale_columns(b.k.augmented), blocks = p.k / kBlock;
  std::vector<uint8_t> codes(b.weight_codes.size(), 0), scales(b.weight_scales.size(), 0);
  for (int64_t row = 0; row < p.n; ++row) {
    for (int64_t to = 0; to < blocks + std::ssize(b.k.selected); ++to) {
      const int64_t from = to < blocks ? to : b.k.selected[static_cast<size_t>(to - blocks)];
      std::copy_n(w.packed.begin() + row * p.k / 2 + from * 8, 8,
                  codes.begin() + row * b.k.augmented / 2 + to * 8);
      scales[static_cast<size_t>(scale_offset(row, to, columns))] =
          w.block_scales[static_cast<size_t>(row * blocks + from)];
    }
  }
  EXPECT_EQ(b.weight_codes, codes);
  EXPECT_EQ(b.weight_scales, scales);
}

TEST(NativeFp4Pack, NoRowsGiveNothing) {
  const Problem p = random_problem({0, 0}, 16, 32);
  const Buffers b = packed(p);
  EXPECT_TRUE(b.codes.empty());
  EXPECT_TRUE(b.scales.empty());
}

TEST(NativeFp4Pack, ErrorsNameWhatIsWrong) {
  Problem p = random_problem({3, 5}, 16, 32);
  p.x[4 * 32 + 7] = Bf16{0x7FC0};
  EXPECT_NE(message_of([&] { packed(p); }).find("row 4"), std::string::npos);
  p = random_problem({3, 5}, 16, 32);
  p.x[1] = Bf16{0xFF80};  // -Inf
  EXPECT_NE(message_of([&] { packed(p); }).find("row 0"), std::string::npos);
  EXPECT_NE(message_of([] {
              require_offsets(std::vector{3, 2}, 2);
            }).find("offsets[1] is 2"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              require_offsets(std::vector{-1, 2}, 2);
            }).find("offsets[0] is -1"),
            std::string::npos);
  EXPECT_NE(message_of([] {
              require_offsets(std::vector{1, 2}, 3);
            }).find("there are 3 rows"),
            std::string::npos);
  EXPECT_NE(message_of([] { require_offsets({}, 0); }).find("no groups"), std::string::npos);
}

}  // namespace
}  // namespace quads::kernels::native_fp4
