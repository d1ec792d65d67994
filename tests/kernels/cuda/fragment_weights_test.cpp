// Weights in fragment order: the inverse, every code and scale, the order of K, what is refused.
#include "kernels/cuda/experts/fragment_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "kernels/cuda/experts/fragment_codes_fp16.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "kernels/cuda/moe_problem.h"
#include "numerics/bf16.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace quads::kernels::cuda {
namespace {

float bf16_value(uint32_t bits) { return to_float(Bf16{static_cast<uint16_t>(bits)}); }

TEST(FragmentCodes, EveryPairOfCodesDecodesToItsValueInEveryPlace) {
  for (uint32_t low = 0; low < 16; ++low) {
    for (uint32_t high = 0; high < 16; ++high) {
      for (int place = 0; place < 8; ++place) {
        uint32_t pairs[8];
        for (int i = 0; i < 8; ++i) pairs[i] = masked_pair((i * 7 + low) % 16, (i * 5 + high) % 16);
        pairs[place] = masked_pair(low, high);
        const CodeWords words = encode_pairs(pairs);
        uint32_t decoded[8];
        decode_pairs(words.first, words.second, decoded);
        for (int i = 0; i < 8; ++i) ASSERT_EQ(decoded[i], pairs[i]) << "pair " << i;
        ASSERT_EQ(bf16_value(decoded[place]), std::ldexp(e2m1_decode(low), -126));
        ASSERT_EQ(bf16_value(decoded[place] >> 16), std::ldexp(e2m1_decode(high), -126));
      }
    }
  }
}

TEST(FragmentCodes, EveryScaleDecodesToItsValueInEveryPlace) {
  for (uint32_t code = 1; code <= 0x7E; ++code) {
    EXPECT_EQ(restore_scale(encode_scale(code)), code);
    for (int place = 0; place < 4; ++place) {
      uint32_t scales[4] = {encode_scale(0x01), encode_scale(0x7E), encode_scale(0x38),
                            encode_scale(0x07)};
      scales[place] = encode_scale(code);
      const uint32_t word = scale_word(scales[0], scales[1], scales[2], scales[3]);
      const uint32_t pair = place < 2 ? decode_scale_even(word) : decode_scale_odd(word);
      EXPECT_EQ(bf16_value(pair >> (place % 2 * 16)),
                std::ldexp(e4m3_decode(static_cast<uint8_t>(code)), 118));
    }
  }
  EXPECT_EQ(restore_scale(1), 0xFFU);  // no scale gives it
}

TEST(FragmentCodesFp16, EveryPairOfCodesDecodesToItsValueInEveryPlace) {
  for (uint32_t low = 0; low < 16; ++low) {
    for (uint32_t high = 0; high < 16; ++high) {
      for (int place = 0; place < 4; ++place) {
        uint32_t pairs[4];
        for (int i = 0; i < 4; ++i) {
          pairs[i] = masked_pair_fp16((i * 7 + low) % 16, (i * 5 + high) % 16);
        }
        pairs[place] = masked_pair_fp16(low, high);
        uint32_t decoded[4];
        decode_pairs_fp16(encode_pairs_fp16(pairs), decoded);
        for (int i = 0; i < 4; ++i) ASSERT_EQ(decoded[i], pairs[i]) << "pair " << i;
        ASSERT_EQ(fp16_value(decoded[place] & 0xFFFFU), std::ldexp(e2m1_decode(low), -14));
        ASSERT_EQ(fp16_value(decoded[place] >> 16), std::ldexp(e2m1_decode(high), -14));
      }
    }
  }
}

TEST(FragmentCodesFp16, EveryScaleDecodesToItsValueAndEveryWeightIsExact) {
  for (uint32_t code = 1; code <= 0x7E; ++code) {
    const double scale = e4m3_decode(static_cast<uint8_t>(code));
    for (int place = 0; place < 4; ++place) {
      uint32_t scales[4] = {encode_scale(0x01), encode_scale(0x7E), encode_scale(0x38),
                            encode_scale(0x07)};
      scales[place] = encode_scale(code);
      const uint32_t word = scale_word_fp16(scale_word(scales[0], scales[1], scales[2], scales[3]));
      const uint32_t pair = place < 2 ? decode_scale_even_fp16(word) : decode_scale_odd_fp16(word);
      EXPECT_EQ(fp16_value(pair >> (place % 2 * 16) & 0xFFFFU), std::ldexp(scale, 6));
    }
    for (uint32_t e2m1 = 0; e2m1 < 16; ++e2m1) {
      const double product =
          fp16_value(masked_pair_fp16(e2m1, 0)) * fp16_value(encode_scale(code) << 7);
      EXPECT_EQ(product * kDecodedWeightFactor, e2m1_decode(e2m1) * scale);
      EXPECT_EQ(fp16_value(exact_fp16(product)), product);
    }
  }
}

TEST(FragmentWeights, UnpackIsTheInverseOfPackForAnyOrderOfBlocks) {
  for (const auto& [rows, k] :
       {std::pair<int64_t, int64_t>{64, 128}, {128, 384}, {64, 16}, {192, 400}, {0, 64}, {64, 0}}) {
    for (const bool permuted : {false, true}) {
      Nvfp4Matrix w = random_weight(rows, k, 3);
      for (size_t i = 0; i < w.block_scales.size(); ++i) {
        if (w.block_scales[i] == 0) std::memset(&w.packed[i * 8], 0, 8);
      }
      const std::vector<int32_t> positions =
          permuted ? shuffled_positions(k / 16, 5) : std::vector<int32_t>{};
      for (const FragmentForm& form : {FragmentForm{}, FragmentForm{WeightFormat::kNvfp4Fp16},
                                       FragmentForm{WeightFormat::kNvfp4, true},
                                       FragmentForm{WeightFormat::kNvfp4Fp16, true}}) {
        std::vector<uint8_t> packed(fragment_bytes(rows, k), 0xEE);
        pack_fragments(w, positions, packed, form);
        const Nvfp4Matrix back = unpack_fragments(packed, rows, k, w.global_scale, positions, form);
        EXPECT_EQ(back.packed, w.packed) << rows << " x " << k;
        EXPECT_EQ(back.block_scales, w.block_scales) << rows << " x " << k;
        EXPECT_EQ(back.global_scale, w.global_scale);
      }
    }
  }
}

// The operand A of an m16k16 product by PTX's definition: register i of lane 4 g + t holds rows g
// (i even) or g + 8 (odd), columns 2 t, 2 t + 1 (i < 2) or the same + 8.
TEST(FragmentWeights, AThreadsDecodedWordsAreItsOperandOfTheMatrixProduct) {
  constexpr int64_t kRows = 128;
  constexpr int64_t kK = 256;
  const Nvfp4Matrix w = random_weight(kRows, kK, 8);
  const std::vector<float> values = dequantise_nvfp4(w, "w");
  const std::vector<int32_t> positions = shuffled_positions(kK / 16, 5);
  std::vector<int64_t> block_at(positions.size());
  for (size_t block = 0; block < positions.size(); ++block) block_at[positions[block]] = block;
  std::vector<uint8_t> packed(fragment_bytes(kRows, kK)), packed_fp16(packed.size());
  pack_fragments(w, positions, packed);
  pack_fragments(w, positions, packed_fp16, {WeightFormat::kNvfp4Fp16});
  for (int64_t slice = 0; slice < kRows / 16; ++slice) {
    for (int64_t k16 = 0; k16 < kK / 16; ++k16) {
      const int64_t stage = k16 / 8;
      const int64_t half = k16 % 8 / 4;  // of 64 k
      const int64_t k32 = k16 % 8 / 2;
      const uint8_t* at = packed.data() + (slice / 4 * stages_of(kK) + stage) * kTileBytes +
                          slice % 4 * kSliceBytes;
      for (int lane = 0; lane < 32; ++lane) {
        uint32_t words[4], scale;
        std::memcpy(words, at + half * 512 + lane * 16, 16);
        std::memcpy(&scale, at + 1024 + lane / 4 * 16 + k32 * 4, 4);
        uint32_t pairs[8];
        decode_pairs(words[k32 % 2 * 2], words[k32 % 2 * 2 + 1], pairs);
        const uint8_t* at_fp16 = packed_fp16.data() + (at - packed.data());
        uint32_t words_fp16[4], scale_fp16, pairs_fp16[4];
        std::memcpy(words_fp16, at_fp16 + half * 512 + lane * 16, 16);
        std::memcpy(&scale_fp16, at_fp16 + 1024 + lane / 4 * 16 + k32 * 4, 4);
        decode_pairs_fp16(words_fp16[k32 % 2 * 2 + k16 % 2], pairs_fp16);
        const uint32_t s_fp16 =
            k16 % 2 == 0 ? decode_scale_even_fp16(scale_fp16) : decode_scale_odd_fp16(scale_fp16);
        const uint32_t s = k16 % 2 == 0 ? decode_scale_even(scale) : decode_scale_odd(scale);
        for (int i = 0; i < 4; ++i) {
          const uint32_t pair = pairs[k16 % 2 * 4 + i];
          const int64_t row = slice * 16 + lane / 4 + (i % 2) * 8;
          for (int j = 0; j < 2; ++j) {
            const int64_t channel = block_at[k16] * 16 + lane % 4 * 2 + i / 2 * 8 + j;
            const double decoded = double{bf16_value(pair >> (16 * j))} *
                                   bf16_value(s >> (i % 2 * 16)) * kDecodedWeightFactor;
            ASSERT_EQ(decoded * w.global_scale, values[row * kK + channel])
                << "row " << row << ", channel " << channel;
            ASSERT_EQ(fp16_value(pairs_fp16[i] >> (16 * j) & 0xFFFFU) *
                          fp16_value(s_fp16 >> (i % 2 * 16) & 0xFFFFU) * kDecodedWeightFactor,
                      decoded)
                << "row " << row << ", channel " << channel;
          }
        }
      }
    }
  }
}

TEST(FragmentWeights, AWeightTakesFourAndAHalfBits) {
  EXPECT_EQ(fragment_bytes(1536, 2048) * 8, 1536 * 2048 * 9 / 2);
}

TEST(FragmentWeights, CodesUnderAZeroScaleBecomeZero) {
  Nvfp4Matrix w = random_weight(64, 128, 1);
  std::fill(w.packed.begin(), w.packed.end(), 0x7F);
  std::fill(w.block_scales.begin(), w.block_scales.end(), 0);
  std::vector<uint8_t> packed(fragment_bytes(64, 128));
  pack_fragments(w, {}, packed);
  const Nvfp4Matrix back = unpack_fragments(packed, 64, 128, 1.0F, {});
  EXPECT_EQ(back.packed, std::vector<uint8_t>(64 * 64, 0));
  EXPECT_EQ(back.block_scales, std::vector<uint8_t>(64 * 8, 0));
}

TEST(FragmentWeights, ThePaddingOfKIsZeros) {
  const Nvfp4Matrix w = random_weight(64, 48, 2);
  std::vector<uint8_t> packed(fragment_bytes(64, 48), 0xEE);
  pack_fragments(w, {}, packed);
  const Nvfp4Matrix whole = unpack_fragments(packed, 64, 128, 1.0F, {});
  for (int64_t row = 0; row < 64; ++row) {
    for (int64_t block = 3; block < 8; ++block) {
      EXPECT_EQ(whole.block_scales[row * 8 + block], 0);
      for (int i = 0; i < 8; ++i) EXPECT_EQ(whole.packed[row * 64 + block * 8 + i], 0);
    }
  }
}

TEST(FragmentWeights, PairedRowsAreEightGatesThenTheirUps) {
  constexpr int64_t kRows = 192;
  std::vector<int> seen(kRows, 0);
  for (int64_t row = 0; row < kRows; ++row) ++seen[paired_row(row, kRows)];
  EXPECT_EQ(seen, std::vector<int>(kRows, 1));
  for (int64_t row = 0; row < kRows; ++row) {
    if (row % 16 < 8) {
      EXPECT_EQ(paired_row(row + 8, kRows), paired_row(row, kRows) + kRows / 2);
    }
  }
  EXPECT_EQ(paired_row(17, kRows), 9);
  // Packing W in pairs is packing its rows in that order.
  const Nvfp4Matrix w = random_weight(kRows, 256, 4);
  Nvfp4Matrix ordered = w;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t from = paired_row(row, kRows);
    std::copy_n(w.packed.begin() + from * 128, 128, ordered.packed.begin() + row * 128);
    std::copy_n(w.block_scales.begin() + from * 16, 16, ordered.block_scales.begin() + row * 16);
  }
  std::vector<uint8_t> packed(fragment_bytes(kRows, 256)), expected(packed.size());
  pack_fragments(w, {}, packed, {WeightFormat::kNvfp4, true});
  pack_fragments(ordered, {}, expected);
  EXPECT_EQ(packed, expected);
}

TEST(FragmentWeights, WhatDoesNotFitIsRefused) {
  Nvfp4Matrix w = random_weight(64, 128, 1);
  std::vector<uint8_t> packed(fragment_bytes(64, 128));
  const std::vector<int32_t> twice = {0, 1, 2, 3, 4, 5, 6, 6};
  const std::vector<int32_t> beyond = {0, 1, 2, 3, 4, 5, 6, 8};
  const std::vector<int32_t> few = {0, 1};
  EXPECT_THROW(pack_fragments(w, twice, packed), Error);
  EXPECT_THROW(pack_fragments(w, beyond, packed), Error);
  EXPECT_THROW(pack_fragments(w, few, packed), Error);
  EXPECT_THROW(pack_fragments(w, {}, std::span(packed).first(100)), Error);
  EXPECT_THROW(pack_fragments(random_weight(32, 128, 1), {}, packed), Error);
  EXPECT_THROW(unpack_fragments(packed, 64, 120, 1.0F, {}), Error);
  w.block_scales[5] = 0x7F;  // NaN
  EXPECT_THROW(pack_fragments(w, {}, packed), Error);
  w.block_scales[5] = 0x80;  // negative
  EXPECT_THROW(pack_fragments(w, {}, packed), Error);
  w.block_scales.pop_back();
  EXPECT_THROW(pack_fragments(w, {}, packed), Error);
  std::fill(packed.begin(), packed.end(), 0x11);
  EXPECT_THROW(unpack_fragments(packed, 64, 128, 1.0F, {}), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
