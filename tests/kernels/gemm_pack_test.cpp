// Packing: codes and scales against the scalar quantisers of src/numerics, layouts against each
// other.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "packed_weight.h"
#include "testing.h"

namespace quads::kernels::testing {
namespace {

class Pack : public EachIsa {};

/// Code and scale of element (n, k) of a packed NVFP4 matrix.
uint8_t nvfp4_code_at(const PackedMatrix& packed, int64_t n, int64_t k) {
  const int64_t pair = k % 32 / 2;
  const uint8_t* tile = packed.tiles + (n / 16 * packed.k_tiles() + k / 32) * 256;
  uint16_t word;
  std::memcpy(&word, tile + pair / 4 * 64 + (n % 16 * 2 + k % 2) * 2, sizeof(word));
  return static_cast<uint8_t>((word >> (pair % 4 * 4)) & 15);
}
uint8_t nvfp4_scale_at(const PackedMatrix& packed, int64_t n, int64_t k) {
  return packed.scales[(n / 16 * packed.k_tiles() + k / 32) * 32 + k % 32 / 16 * 16 + n % 16];
}

/// Values that lie on the boundaries between codes as often as not, over many magnitudes, with
/// blocks of zeros and of values that vanish.
std::vector<Bf16> hostile_weights(int64_t n, int64_t k, uint64_t seed) {
  constexpr float kBoundaries[] = {0.25F, 0.75F, 1.25F, 1.75F, 2.5F, 3.5F, 5.0F, 6.0F, 0.0F, -0.0F};
  Fill fill(seed);
  std::vector<Bf16> w(static_cast<size_t>(n * k));
  for (int64_t block = 0; block < n * k / 16; ++block) {
    const int magnitude = -static_cast<int>(fill.below(24));
    const uint32_t kind = fill.below(8);
    for (int64_t i = block * 16; i < block * 16 + 16; ++i) {
      float v = kind < 4 ? fill.normal()
                         : kBoundaries[fill.below(std::size(kBoundaries))] *
                               (fill.below(2) == 0 ? 1.0F : -1.0F);
      if (kind == 7) v = fill.below(2) == 0 ? 0.0F : -0.0F;
      w[static_cast<size_t>(i)] = to_bf16(std::ldexp(v, magnitude));
    }
  }
  return w;
}

std::vector<int32_t> reversed_blocks(int64_t k) {
  std::vector<int32_t> position(static_cast<size_t>(k / 16));
  std::iota(position.rbegin(), position.rend(), 0);
  return position;
}

TEST_P(Pack, Nvfp4CodesAndScalesAreTheReferencesForPowersOfTwoAndOtherGlobalScales) {
  constexpr int64_t kN = 72;
  constexpr int64_t kK = 512;
  const std::vector<Bf16> w = hostile_weights(kN, kK, 1);
  for (float g : {0x1p-9F, 0x1p-6F, 1.0F, 0x1p-20F, 0.00217F, 0.9F}) {
    const Nvfp4Matrix expected = quantise_nvfp4(to_floats(w), kN, kK, g, "w");
    const std::vector<uint8_t> codes = unpack_nibbles(expected.packed);
    PackedBuffers packed(WeightFormat::kNvfp4, kN, kK);
    kernels().gemm.pack({w.data(), kK, g, nullptr, &packed.matrix(), 0, kN});
    for (int64_t n = 0; n < 80; ++n) {
      for (int64_t k = 0; k < kK; ++k) {
        const bool padding = n >= kN;
        ASSERT_EQ(nvfp4_scale_at(packed.matrix(), n, k),
                  padding ? 0 : expected.block_scales[(n * kK + k) / 16])
            << "g=" << g << " n=" << n << " k=" << k;
        ASSERT_EQ(nvfp4_code_at(packed.matrix(), n, k), padding ? 0 : codes[n * kK + k])
            << "g=" << g << " n=" << n << " k=" << k << " x=" << to_float(w[n * kK + k]);
      }
    }
  }
}

TEST_P(Pack, UnpackGivesTheDequantisedWeightInNaturalOrderWhateverThePermutation) {
  constexpr int64_t kN = 40;
  constexpr int64_t kK = 160;
  const std::vector<Bf16> w = hostile_weights(kN, kK, 2);
  const std::vector<int32_t> reversed = reversed_blocks(kK);
  const Nvfp4Matrix quantised = quantise_nvfp4(to_floats(w), kN, kK, 0x1p-8F, "w");
  const std::vector<float> expected = dequantise_nvfp4(quantised, "w");
  for (const int32_t* position : {static_cast<const int32_t*>(nullptr), reversed.data()}) {
    PackedBuffers packed(WeightFormat::kNvfp4, kN, kK);
    packed.matrix().alpha = 0x1p-8F;
    kernels().gemm.pack({w.data(), kK, 0x1p-8F, position, &packed.matrix(), 0, kN});
    Poisoned<Bf16> out(kN * kK);
    unpack(packed.matrix(), position, out.data(), kK);
    EXPECT_TRUE(out.guards_intact());
    for (int64_t i = 0; i < kN * kK; ++i) {
      ASSERT_EQ(to_float(out[i]), expected[i]) << "element " << i;
      ASSERT_EQ(std::signbit(to_float(out[i])), std::signbit(expected[i])) << "element " << i;
    }
  }
}

TEST_P(Pack, Fp8ValuesAreTheReferencesInFullAndShortBlocks) {
  constexpr int64_t kN = 200;
  constexpr int64_t kK = 288;
  std::vector<Bf16> w = hostile_weights(kN, kK, 3);
  for (int64_t n = 128; n < kN; ++n) {  // one block of zeros, one of tiny values
    for (int64_t k = 0; k < 128; ++k) w[n * kK + k] = Bf16{0};
    for (int64_t k = 128; k < 256; ++k) {
      w[n * kK + k] = to_bf16(to_float(w[n * kK + k]) * 0x1p-100F);
    }
  }
  const std::vector<Bf16> plain = normal_bf16(kN * kK, 9);
  for (int64_t n = 16; n < 64; ++n) {  // none of these falls among the subnormal codes
    for (int64_t k = 0; k < 128; ++k) {
      const float v = to_float(plain[n * kK + k]);
      w[n * kK + k] = to_bf16(v + (v < 0.0F ? -0.125F : 0.125F));
    }
  }
  const std::vector<Bf16> spread = spread_bf16(kN * kK, 10, 8);
  for (int64_t i = 64 * kK; i < 128 * kK; ++i) w[i] = spread[i];  // few of these do
  const Fp8Matrix quantised = quantise_fp8(to_floats(w), kN, kK, kFp8Block, "w");
  const std::vector<float> expected = dequantise_fp8(quantised, "w");
  PackedBuffers packed(WeightFormat::kFp8, kN, kK);
  kernels().gemm.pack({w.data(), kK, 0.0F, nullptr, &packed.matrix(), 0, kN});
  for (int64_t n = 0; n < kN; n += 16) {
    for (int64_t k = 0; k < kK; k += 32) {
      const auto exponent =
          static_cast<int8_t>(packed.matrix().scales[n / 16 * packed.matrix().k_tiles() + k / 32]);
      EXPECT_EQ(std::ldexp(1.0F, exponent), quantised.scales[n / 128 * 3 + k / 128]);
    }
  }
  std::vector<Bf16> out(kN * kK);
  unpack(packed.matrix(), nullptr, out.data(), kK);
  for (int64_t i = 0; i < kN * kK; ++i) {
    ASSERT_EQ(to_float(out[i]), expected[i]) << "row " << i / kK << ", column " << i % kK;
  }
}

TEST_P(Pack, Bf16ComesBackUnchangedFromAStridedUnalignedSource) {
  constexpr int64_t kN = 37;
  constexpr int64_t kK = 96;
  constexpr int64_t kLd = 99;
  const std::vector<Bf16> w = normal_bf16(1 + kN * kLd, 4);
  PackedBuffers packed(WeightFormat::kBf16, kN, kK);
  kernels().gemm.pack({w.data() + 1, kLd, 1.0F, nullptr, &packed.matrix(), 0, kN});
  std::vector<Bf16> out(kN * kK);
  unpack(packed.matrix(), nullptr, out.data(), kK);
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) ASSERT_EQ(out[n * kK + k], w[1 + n * kLd + k]);
  }
}

TEST_P(Pack, RangesOfRowsPackedApartAreTheWholeAndThePaddingIsZero) {
  constexpr int64_t kN = 300;
  constexpr int64_t kK = 128;
  const std::vector<Bf16> w = hostile_weights(kN, kK, 5);
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kNvfp4}) {
    PackedBuffers whole(format, kN, kK);
    PackedBuffers parts(format, kN, kK);
    kernels().gemm.pack({w.data(), kK, 0x1p-9F, nullptr, &whole.matrix(), 0, kN});
    for (int64_t begin : {256, 0, 128}) {
      kernels().gemm.pack(
          {w.data(), kK, 0x1p-9F, nullptr, &parts.matrix(), begin, std::min(begin + 128, kN)});
    }
    EXPECT_EQ(whole.tile_bytes(), parts.tile_bytes());
    EXPECT_EQ(whole.scale_bytes(), parts.scale_bytes());
    // Columns of the last n-tile that are no rows of W: 300 = 18 * 16 + 12.
    const std::vector<uint8_t> bytes = whole.tile_bytes();
    const size_t tile = bytes.size() / (19 * 4);
    const size_t row = format == WeightFormat::kNvfp4 ? tile / 4 : tile / 16;
    for (size_t i = 18 * 4 * tile; i < bytes.size(); ++i) {
      if (i % row >= row * 12 / 16) {
        ASSERT_EQ(bytes[i], 0) << "byte " << i;
      }
    }
  }
}

TEST_P(Pack, EveryInstructionSetPacksTheSameBytes) {
  constexpr int64_t kN = 144;
  constexpr int64_t kK = 256;
  const std::vector<Bf16> w = hostile_weights(kN, kK, 6);
  std::map<std::string, uint64_t> hashes;
  for (WeightFormat format : {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kNvfp4}) {
    PackedBuffers packed(format, kN, kK);
    kernels().gemm.pack({w.data(), kK, 0x1p-9F, nullptr, &packed.matrix(), 0, kN});
    const std::vector<uint8_t> bytes = packed.tile_bytes();
    uint64_t hash = bits_hash(bytes.data(), std::ssize(bytes));
    hash = bits_hash(packed.scale_bytes().data(), std::ssize(packed.scale_bytes()), hash);
    hashes["format" + std::to_string(static_cast<int>(format))] = hash;
  }
  expect_golden("pack", hashes);
}

TEST_P(Pack, RejectsWhatDoesNotFit) {
  const std::vector<Bf16> w(64 * 64, Bf16{0});
  PackedBuffers packed(WeightFormat::kNvfp4, 40, 64);
  const auto pack = [&](float g, const int32_t* position, int64_t begin, int64_t end) {
    kernels().gemm.pack({w.data(), 64, g, position, &packed.matrix(), begin, end});
  };
  EXPECT_THROW(pack(0.0F, nullptr, 0, 40), Error);
  EXPECT_THROW(pack(0x1p-101F, nullptr, 0, 40), Error);
  EXPECT_THROW(pack(std::numeric_limits<float>::infinity(), nullptr, 0, 40), Error);
  EXPECT_THROW(pack(1.0F, nullptr, 0, 41), Error);
  EXPECT_THROW(pack(1.0F, nullptr, 8, 40), Error);
  EXPECT_THROW(pack(1.0F, nullptr, 0, 20), Error);
  const std::vector<int32_t> outside = {0, 1, 2, 4};
  EXPECT_THROW(pack(1.0F, outside.data(), 0, 40), Error);
  EXPECT_THROW(packed_tile_bytes(WeightFormat::kBf16, 16, 40), Error);

  PackedBuffers fp8(WeightFormat::kFp8, 40, 64);
  const std::vector<int32_t> identity = {0, 1, 2, 3};
  EXPECT_THROW(kernels().gemm.pack({w.data(), 64, 1.0F, identity.data(), &fp8.matrix(), 0, 40}),
               Error);
  EXPECT_THROW(kernels().gemm.pack({w.data(), 64, 1.0F, nullptr, &fp8.matrix(), 16, 40}), Error);
}

TEST_P(Pack, AmaxSkipsNonFiniteValuesAndReportsTheFirst) {
  std::vector<Bf16> x = spread_bf16(1003, 7);
  float expected = 0.0F;
  for (Bf16 v : x) expected = std::max(expected, std::fabs(to_float(v)));
  AmaxResult result = kernels().gemm.amax(x.data(), std::ssize(x));
  EXPECT_EQ(result.amax, expected);
  EXPECT_EQ(result.non_finite, -1);
  x[900] = Bf16{0xFF80};
  x[517] = Bf16{0x7FC1};
  result = kernels().gemm.amax(x.data(), std::ssize(x));
  EXPECT_LE(result.amax, expected);
  EXPECT_GT(result.amax, 0.0F);
  EXPECT_EQ(result.non_finite, 517);
  x[2] = Bf16{0xC2C8};  // -100
  EXPECT_EQ(kernels().gemm.amax(x.data(), 3).amax, 100.0F);
  EXPECT_EQ(kernels().gemm.amax(x.data(), 0).amax, 0.0F);
}

QUADS_INSTANTIATE_EACH_ISA(Pack);

TEST(PackTransposed, IsThePackingOfTheTransposedMatrixInAnyRanges) {
  constexpr int64_t kN = 96;
  constexpr int64_t kK = 40;
  constexpr int64_t kLd = 43;
  const std::vector<Bf16> w = normal_bf16(kN * kLd, 8);
  std::vector<Bf16> transposed(kN * kK);
  for (int64_t n = 0; n < kN; ++n) {
    for (int64_t k = 0; k < kK; ++k) transposed[k * kN + n] = w[n * kLd + k];
  }
  PackedBuffers expected(WeightFormat::kBf16, kK, kN);
  cpu_kernels(Isa::kPortable)
      .gemm.pack({transposed.data(), kN, 1.0F, nullptr, &expected.matrix(), 0, kK});
  PackedBuffers packed(WeightFormat::kBf16, kK, kN);
  pack_transposed_bf16(w.data(), kN, kK, kLd, &packed.matrix(), 16, kK);
  pack_transposed_bf16(w.data(), kN, kK, kLd, &packed.matrix(), 0, 16);
  EXPECT_EQ(packed.tile_bytes(), expected.tile_bytes());
  EXPECT_THROW(pack_transposed_bf16(w.data(), 95, kK, kLd, &packed.matrix(), 0, kK), Error);
}

}  // namespace
}  // namespace quads::kernels::testing
