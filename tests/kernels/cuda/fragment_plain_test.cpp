// FP8 and BF16 weights in fragment order: the inverse, every code, the operand, what is refused.
#include "kernels/cuda/experts/fragment_plain.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/moe_problem.h"
#include "numerics/e4m3.h"

namespace quads::kernels::cuda {
namespace {

float bf16_value(uint32_t bits) { return to_float(Bf16{static_cast<uint16_t>(bits)}); }

TEST(FragmentPlain, EveryE4m3CodeDecodesToItsValueInEveryPlace) {
  for (uint32_t code = 0; code < 256; ++code) {
    if (e4m3_is_nan(static_cast<uint8_t>(code))) continue;
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t others = 0x5A96C33CU & ~(0xFFU << (byte * 8));
      uint32_t high, low;
      decode_e4m3_pairs(others | code << (byte * 8), &high, &low);
      const uint32_t half = (byte % 2 == 1 ? high : low) >> (byte / 2 * 16);
      const float value = e4m3_decode(static_cast<uint8_t>(code));
      ASSERT_EQ(bf16_value(half), std::ldexp(value, -120)) << "code " << code;
      ASSERT_EQ(half >> 15 & 1U, code >> 7);  // of zeros too
    }
  }
}

TEST(FragmentPlain, UnpackIsTheInverseOfPack) {
  for (const auto& [rows, k] :
       {std::pair<int64_t, int64_t>{64, 128}, {128, 384}, {64, 16}, {192, 400}, {64, 7}, {0, 64}}) {
    const Fp8Matrix w = random_fp8_weight(rows, k, 3);
    const std::vector<Bf16> values = as_bf16(dequantise_fp8(w, "w"));
    for (const bool paired : {false, true}) {
      std::vector<uint8_t> packed(fragment_bytes(rows, k, WeightFormat::kFp8), 0xEE);
      pack_fp8_fragments(w, packed, paired);
      const Fp8Matrix back = unpack_fp8_fragments(packed, rows, k, paired);
      EXPECT_EQ(back.codes, w.codes) << rows << " x " << k << ", paired " << paired;
      EXPECT_EQ(back.scales, w.scales) << rows << " x " << k << ", paired " << paired;
      packed.assign(fragment_bytes(rows, k, WeightFormat::kBf16), 0xEE);
      pack_bf16_fragments(values, rows, k, packed, paired);
      EXPECT_EQ(unpack_bf16_fragments(packed, rows, k, paired), values) << rows << " x " << k;
    }
  }
}

// As a kernel reads them: register i of lane 4 g + t holds rows g (i even) or g + 8 (odd), columns
// 2 t, 2 t + 1 (i < 2) or the same + 8.
class FragmentPlainRows : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Paired, FragmentPlainRows, ::testing::Bool());

TEST_P(FragmentPlainRows, AThreadsWordsAreItsOperandOfTheMatrixProduct) {
  constexpr int64_t kRows = 192;  // paired, a block of scales has gates and ups
  constexpr int64_t kK = 256;
  const Fp8Matrix w = random_fp8_weight(kRows, kK, 8);
  const std::vector<float> values = dequantise_fp8(w, "w");
  const bool paired = GetParam();
  std::vector<uint8_t> fp8(fragment_bytes(kRows, kK, WeightFormat::kFp8));
  std::vector<uint8_t> bf16(fragment_bytes(kRows, kK, WeightFormat::kBf16));
  pack_fp8_fragments(w, fp8, paired);
  pack_bf16_fragments(as_bf16(values), kRows, kK, bf16, paired);
  for (int64_t row16 = 0; row16 < kRows / 16; ++row16) {
    for (int64_t k16 = 0; k16 < kK / 16; ++k16) {
      const int64_t slice = (row16 / 4 * stages_of(kK) + k16 / 8) * 4 + row16 % 4;
      const int64_t half = k16 % 8 / 4;  // of 64 k
      const uint8_t* at8 = fp8.data() + slice * kFp8SliceBytes;
      const uint8_t* at16 = bf16.data() + slice * kBf16SliceBytes;
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t codes[4], plain[4], scales[2], decoded[4];
        std::memcpy(codes, at8 + half * 1024 + k16 % 4 / 2 * 512 + lane * 16, 16);
        std::memcpy(scales, at8 + 2048, 8);
        std::memcpy(plain, at16 + k16 % 8 * 512 + lane * 16, 16);
        decode_e4m3_pairs(codes[k16 % 2 * 2], &decoded[0], &decoded[1]);
        decode_e4m3_pairs(codes[k16 % 2 * 2 + 1], &decoded[2], &decoded[3]);
        for (int i = 0; i < 4; ++i) {
          const int64_t place = row16 * 16 + lane / 4 + (i % 2) * 8;
          const int64_t row = paired ? paired_row(place, kRows) : place;
          for (int j = 0; j < 2; ++j) {
            const int64_t channel = k16 * 16 + lane % 4 * 2 + i / 2 * 8 + j;
            const float expected = values[row * kK + channel];
            const double value = double{bf16_value(decoded[i] >> (16 * j))} *
                                 bf16_value(scales[i % 2] >> (16 * j)) * kDecodedWeightFactor;
            ASSERT_EQ(value, expected) << "row " << row << ", channel " << channel;
            ASSERT_EQ(bf16_value(plain[i] >> (16 * j)), expected);
          }
        }
      }
    }
  }
}

TEST(FragmentPlain, WhatDoesNotFitIsRefused) {
  const Fp8Matrix good = random_fp8_weight(128, 256, 1);
  std::vector<uint8_t> packed(fragment_bytes(128, 256, WeightFormat::kFp8));
  EXPECT_NO_THROW(pack_fp8_fragments(good, packed));
  const auto refused = [&](auto change) {
    Fp8Matrix w = good;
    change(&w);
    EXPECT_THROW(pack_fp8_fragments(w, packed), Error);
  };
  refused([](Fp8Matrix* w) { w->codes[5] = 0x7F; });
  refused([](Fp8Matrix* w) { w->codes.pop_back(); });
  refused([](Fp8Matrix* w) { w->scales.push_back(1.0F); });
  refused([](Fp8Matrix* w) { w->block_rows = 1; });
  refused([](Fp8Matrix* w) { w->rows = 96; });
  for (const float scale :
       {0.0F, -1.0F, 3.0F, 0x1p16F, 0x1p-101F, std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    refused([scale](Fp8Matrix* w) { w->scales[1] = scale; });
  }
  std::vector<Bf16> values(128 * 256);
  EXPECT_THROW(pack_bf16_fragments(values, 128, 256, packed), Error);
  packed.resize(fragment_bytes(128, 256, WeightFormat::kBf16));
  EXPECT_NO_THROW(pack_bf16_fragments(values, 128, 256, packed));
  values.pop_back();
  EXPECT_THROW(pack_bf16_fragments(values, 128, 256, packed), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
