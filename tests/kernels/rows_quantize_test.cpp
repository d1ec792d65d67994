// The activation quantisers against numerics' scalar ones, bit for bit.
#include <numeric>

#include "kernels/testing.h"
#include "numerics/fp8.h"
#include "numerics/rac.h"

namespace quads::kernels {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr int64_t kGap = 8;  // elements between the rows of outputs, which must stay untouched

std::vector<float> to_floats(const Bf16* x, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) out[i] = to_float(x[i]);
  return out;
}

struct Quantized {
  std::vector<Bf16> q1, q2;  // dense rows
  std::vector<int64_t> stats;
  friend bool operator==(const Quantized&, const Quantized&) = default;
};

// What the kernel must give, out of numerics' functions alone.
Quantized reference(const std::vector<Bf16>& x, int64_t rows, const QuantizeSpec& spec,
                    const uint8_t* counted) {
  const int64_t k = spec.k;
  const int64_t k2 = 32 * spec.residual_tiles;
  Quantized out{std::vector<Bf16>(rows * k), std::vector<Bf16>(rows * k2),
                std::vector<int64_t>(k, 0)};
  std::vector<uint8_t> mask(k, 0);
  const auto position = [&](int64_t i) {
    const int64_t block = i / 16;
    return (spec.block_position != nullptr ? spec.block_position[block] : block) * 16 + i % 16;
  };
  for (int64_t i = 0; i < k; ++i) {
    const bool chosen = spec.channel_mask == nullptr || spec.channel_mask[i] != 0;
    mask[i] = position(i) < k2 && chosen ? 1 : 0;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<float> row = to_floats(x.data() + r * k, k);
    std::vector<float> values = row;
    if (spec.format == ActivationFormat::kFp8) {
      values = dequantise_fp8(quantise_fp8(row, 1, k, 1, "x"), "x");
    }
    if (spec.format == ActivationFormat::kNvfp4) {
      float amax = 0.0F;
      for (const float v : row) amax = std::max(amax, std::fabs(v));
      const float g = global_scale_pow2(amax);
      const CompensatedRow c = compensate_row(row, g, mask, spec.scale_floor, "x");
      values = c.main.values;
      for (int64_t i = 0; i < k; ++i) {
        if (position(i) < k2) {
          out.q2[r * k2 + position(i)] = to_bf16(c.correction.values[i] * spec.out_scale);
        }
        if (counted == nullptr || counted[r] != 0) out.stats[i] += residual_units(c.residual[i], g);
      }
    }
    for (int64_t i = 0; i < k; ++i) {
      out.q1[r * k + position(i)] = to_bf16(values[i] * spec.out_scale);
    }
  }
  return out;
}

// Runs the kernel with strided outputs and checks that it wrote its rows and nothing else.
Quantized run(const CpuKernels& kernels, const std::vector<Bf16>& x, int64_t rows,
              const QuantizeSpec& spec, const uint8_t* counted) {
  const int64_t k = spec.k;
  const int64_t k2 = 32 * spec.residual_tiles;
  Poisoned<Bf16> q1(rows * (k + kGap)), q2(rows * (k2 + kGap));
  Quantized out;
  out.stats.assign(k, 0);
  const int64_t bad = kernels.rows.quantize_rows(x.data(), k, rows, spec, q1.data(), k + kGap,
                                                 q2.data(), k2 + kGap, out.stats.data(), counted);
  EXPECT_EQ(bad, -1);
  EXPECT_EQ(q1.unwritten(), rows * kGap);
  EXPECT_EQ(q2.unwritten(), rows * kGap);
  EXPECT_TRUE(q1.guards_intact() && q2.guards_intact());
  for (int64_t r = 0; r < rows; ++r) {
    out.q1.insert(out.q1.end(), q1.data() + r * (k + kGap), q1.data() + r * (k + kGap) + k);
    out.q2.insert(out.q2.end(), q2.data() + r * (k2 + kGap), q2.data() + r * (k2 + kGap) + k2);
  }
  return out;
}

void expect_equal(const Quantized& got, const Quantized& want, const std::string& what) {
  const auto first_difference = [&](const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
    for (size_t i = 0; i < a.size(); ++i) {
      if (a[i] != b[i])
        return std::to_string(i) + ": " + std::to_string(to_float(a[i])) + " instead of " +
               std::to_string(to_float(b[i]));
    }
    return std::string("none");
  };
  ASSERT_EQ(got.q1.size(), want.q1.size());
  ASSERT_EQ(got.q2.size(), want.q2.size());
  EXPECT_EQ(first_difference(got.q1, want.q1), "none") << what << ", q1";
  EXPECT_EQ(first_difference(got.q2, want.q2), "none") << what << ", q2";
  EXPECT_EQ(got.stats, want.stats) << what;
}

// A permutation of k / 16 blocks that mixes near and far.
std::vector<int32_t> shuffled_blocks(int64_t k, uint64_t seed) {
  std::vector<int32_t> order(k / 16);
  std::iota(order.begin(), order.end(), 0);
  Fill fill(seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[fill.below(static_cast<uint32_t>(i))]);
  }
  return order;
}

class QuantizeRows : public EachIsa {};
QUADS_INSTANTIATE_EACH_ISA(QuantizeRows);

TEST_P(QuantizeRows, Nvfp4EqualsTheScalarReferenceForAllOptions) {
  for (const int64_t k : {32, 64, 288, 544}) {
    const int64_t rows = 5;
    const auto x = spread_bf16(rows * k, 11 + k);
    const auto positions = shuffled_blocks(k, k);
    std::vector<uint8_t> mask(k);
    Fill fill(5);
    for (uint8_t& m : mask) m = static_cast<uint8_t>(fill.below(2));
    const std::vector<uint8_t> counted = {1, 0, 1, 1, 0};
    for (const int64_t tiles : {int64_t{0}, k / 64, k / 32}) {
      for (const int option : {0, 1, 2, 3, 4, 5, 6, 7}) {
        QuantizeSpec spec{ActivationFormat::kNvfp4, k};
        spec.out_scale = option % 2 == 0 ? 1.0F : kQuantisedActivationScale;
        spec.residual_tiles = tiles;
        if ((option & 2) != 0) spec.block_position = positions.data();
        if ((option & 4) != 0) spec.channel_mask = mask.data();
        spec.scale_floor = (option & 6) == 2;
        const uint8_t* which = option % 3 == 0 ? nullptr : counted.data();
        expect_equal(run(kernels(), x, rows, spec, which), reference(x, rows, spec, which),
                     "k " + std::to_string(k) + ", tiles " + std::to_string(tiles) + ", option " +
                         std::to_string(option));
      }
    }
  }
}

// Every significand of the block scale against every BF16 value from deep below the first boundary
// up to saturation: all ties and all neighbours of ties are among them.
TEST_P(QuantizeRows, Nvfp4RoundsEveryValueUnderEveryScaleExactly) {
  std::vector<Bf16> x;
  for (int m = 8; m < 16; ++m) {
    const float scale = static_cast<float>(m) / 8.0F;
    for (uint16_t bits = 0x3C00; to_float(Bf16{bits}) <= 6.0F * scale; ++bits) {
      if (x.size() % 16 == 0) x.push_back(to_bf16(6.0F * scale));  // makes the block's scale
      x.push_back(Bf16{static_cast<uint16_t>(bits | (bits % 3 == 0 ? 0x8000 : 0))});
    }
    while (x.size() % 16 != 0) x.push_back(Bf16{0x8000});
  }
  while (x.size() % 32 != 0) x.push_back(to_bf16(2688.0F));  // makes g 1
  x.insert(x.end(), 32, to_bf16(2688.0F));
  QuantizeSpec spec{ActivationFormat::kNvfp4, static_cast<int64_t>(x.size())};
  spec.residual_tiles = spec.k / 32;
  expect_equal(run(kernels(), x, 1, spec, nullptr), reference(x, 1, spec, nullptr), "all values");
}

TEST_P(QuantizeRows, Nvfp4BlockScalesOfAllSizesIncludingSubnormalAndZero) {
  // Block amaxes over the whole range of E4M3 and below, so that scales tie, round to 0 and clip.
  const int64_t k = 1024;
  std::vector<Bf16> x;
  for (uint16_t bits = 0x3600; bits <= 0x4528; bits += 3) {
    for (int i = 0; i < 16; ++i) x.push_back(to_bf16(to_float(Bf16{bits}) * 0.0625F * i));
    if (x.size() % k == 0) x.insert(x.end(), 16, to_bf16(2688.0F));
  }
  while (x.size() % k != 0) x.push_back(to_bf16(-2688.0F));
  const auto rows = static_cast<int64_t>(x.size()) / k;
  for (const bool floor : {false, true}) {
    QuantizeSpec spec{ActivationFormat::kNvfp4, k};
    spec.residual_tiles = k / 32;
    spec.scale_floor = floor;
    expect_equal(run(kernels(), x, rows, spec, nullptr), reference(x, rows, spec, nullptr),
                 floor ? "with floor" : "without floor");
  }
}

TEST_P(QuantizeRows, ExtremeRowsQuantiseLikeTheReference) {
  const int64_t k = 32;
  std::vector<Bf16> x(8 * k, Bf16{0});
  for (int64_t i = 0; i < k; ++i) {
    x[1 * k + i] = Bf16{0x8000};                                    // -0
    x[2 * k + i] = Bf16{static_cast<uint16_t>(0x0001 + i)};         // subnormal
    x[3 * k + i] = Bf16{static_cast<uint16_t>(0x0080 + 5 * i)};     // smallest normal
    x[4 * k + i] = Bf16{static_cast<uint16_t>(0x7F00 + i)};         // 2^127 and up
    x[5 * k + i] = to_bf16(i == 7 ? 3e30F : 1e-30F);                // one outlier
    x[6 * k + i] = to_bf16(0x1p-90F * static_cast<float>(i - 15));  // g at its floor
    x[7 * k + i] = to_bf16(-1.0F);
  }
  for (const auto format : {ActivationFormat::kNvfp4, ActivationFormat::kFp8}) {
    QuantizeSpec spec{format, k};
    if (format == ActivationFormat::kNvfp4) spec.residual_tiles = 1;
    expect_equal(run(kernels(), x, 8, spec, nullptr), reference(x, 8, spec, nullptr), "extremes");
  }
}

TEST_P(QuantizeRows, Fp8EqualsTheScalarReferenceWithShortGroupsAndPermutation) {
  for (const int64_t k : {32, 128, 160, 416}) {
    const auto x = spread_bf16(3 * k, 21 + k, 20);
    const auto positions = shuffled_blocks(k, k);
    for (const bool permuted : {false, true}) {
      QuantizeSpec spec{ActivationFormat::kFp8, k};
      spec.out_scale = kQuantisedActivationScale;
      if (permuted) spec.block_position = positions.data();
      expect_equal(run(kernels(), x, 3, spec, nullptr), reference(x, 3, spec, nullptr),
                   "k " + std::to_string(k));
    }
  }
}

TEST_P(QuantizeRows, Fp8RoundsEveryBf16ValueExactly) {
  std::vector<Bf16> x;
  for (uint16_t bits = 0x3700; to_float(Bf16{bits}) <= 448.0F; ++bits) {
    if (x.size() % 128 == 0) x.push_back(to_bf16(448.0F));
    x.push_back(Bf16{static_cast<uint16_t>(bits | (bits % 2 == 0 ? 0x8000 : 0))});
  }
  while (x.size() % 128 != 0) x.push_back(Bf16{0});
  const QuantizeSpec spec{ActivationFormat::kFp8, static_cast<int64_t>(x.size())};
  expect_equal(run(kernels(), x, 1, spec, nullptr), reference(x, 1, spec, nullptr), "all values");
}

TEST_P(QuantizeRows, Bf16IsACopyInTheGivenOrder) {
  const int64_t k = 96;
  const auto x = spread_bf16(2 * k, 31);
  const auto positions = shuffled_blocks(k, 3);
  QuantizeSpec spec{ActivationFormat::kBf16, k};
  expect_equal(run(kernels(), x, 2, spec, nullptr), reference(x, 2, spec, nullptr), "identity");
  spec.block_position = positions.data();
  spec.out_scale = 0x1p-3F;
  expect_equal(run(kernels(), x, 2, spec, nullptr), reference(x, 2, spec, nullptr), "permuted");
}

TEST_P(QuantizeRows, ARowDependsOnItselfAlone) {
  const int64_t k = 288, rows = 7;
  const auto x = spread_bf16(rows * k, 41);
  QuantizeSpec spec{ActivationFormat::kNvfp4, k};
  spec.residual_tiles = 4;
  const Quantized together = run(kernels(), x, rows, spec, nullptr);
  for (int64_t r = 0; r < rows; ++r) {
    const std::vector<Bf16> alone(x.begin() + r * k, x.begin() + (r + 1) * k);
    const Quantized single = run(kernels(), alone, 1, spec, nullptr);
    EXPECT_TRUE(std::equal(single.q1.begin(), single.q1.end(), together.q1.begin() + r * k));
    EXPECT_TRUE(std::equal(single.q2.begin(), single.q2.end(), together.q2.begin() + r * 128));
  }
}

// Residuals of half the largest step: the largest number of units that a row can count.
TEST_P(QuantizeRows, StatisticsOfManyRowsWithTheLargestResidualsDoNotOverflow) {
  const int64_t k = 64, rows = 300;
  std::vector<Bf16> x(rows * k, to_bf16(2240.0F));  // between 4 and 6 times 448
  for (int64_t r = 0; r < rows; ++r) x[r * k] = to_bf16(2688.0F);
  for (const int64_t tiles : {0, 2}) {
    QuantizeSpec spec{ActivationFormat::kNvfp4, k};
    spec.residual_tiles = tiles;
    const Quantized want = reference(x, rows, spec, nullptr);
    EXPECT_GT(want.stats[1], int64_t{1} << 31);
    expect_equal(run(kernels(), x, rows, spec, nullptr), want, "300 rows");
  }
}

TEST_P(QuantizeRows, NoRowAndOneRowMoreThanAnyBatchAreRight) {
  for (const int64_t k : {32, 64, 96, 128, 8192, 8224}) {
    for (const int64_t rows : {0, 1, 2, 3, 65}) {
      if (rows * k > 70000) continue;  // the scalar reference is slow
      const auto x = spread_bf16(rows * k, 91 + k);
      QuantizeSpec spec{ActivationFormat::kNvfp4, k};
      spec.residual_tiles = k / 32;
      expect_equal(run(kernels(), x, rows, spec, nullptr), reference(x, rows, spec, nullptr),
                   "k " + std::to_string(k) + ", rows " + std::to_string(rows));
    }
  }
}

TEST_P(QuantizeRows, OperandValuesAreTheSumInNaturalOrderRoundedOnce) {
  const int64_t rows = 3, gap = 16;
  for (const int64_t k : {32, 288}) {
    const auto positions = shuffled_blocks(k, k);
    for (const int64_t tiles : {int64_t{0}, k / 64, k / 32}) {
      for (const bool permuted : {false, true}) {
        QuantizeSpec spec{ActivationFormat::kNvfp4, k};
        spec.residual_tiles = tiles;
        if (permuted) spec.block_position = positions.data();
        const auto q1 = normal_bf16(rows * k, 82), q2 = normal_bf16(rows * 32 * tiles, 83);
        Poisoned<Bf16> out(rows * (k + gap));
        kernels().rows.operand_values(q1.data(), k, q2.data(), 32 * tiles, rows, spec, out.data(),
                                      k + gap);
        EXPECT_TRUE(out.guards_intact());
        EXPECT_EQ(out.unwritten(), rows * gap);
        for (int64_t i = 0; i < rows * k; ++i) {
          const int64_t r = i / k, c = i % k;
          const int64_t at = (permuted ? positions[c / 16] : c / 16) * 16 + c % 16;
          Bf16 want = q1[r * k + at];
          if (at < 32 * tiles) {
            want = to_bf16(to_float(want) + to_float(q2[r * 32 * tiles + at]));
          }
          EXPECT_EQ(out.data()[r * (k + gap) + c], want) << r << ", " << c;
        }
      }
    }
  }
}

TEST_P(QuantizeRows, StatisticsAddUpOverCalls) {
  const int64_t k = 64;
  const auto x = spread_bf16(4 * k, 51);
  const QuantizeSpec spec{ActivationFormat::kNvfp4, k};
  const Quantized want = reference(x, 4, spec, nullptr);
  std::vector<int64_t> stats(k, 0);
  std::vector<Bf16> q(4 * k);
  for (int64_t r = 0; r < 4; ++r) {
    kernels().rows.quantize_rows(x.data() + r * k, k, 1, spec, q.data(), k, nullptr, 0,
                                 stats.data(), nullptr);
  }
  EXPECT_EQ(stats, want.stats);
}

TEST_P(QuantizeRows, ReportsTheFirstRowWithANonFiniteValueAndFinishesTheOnesBefore) {
  const int64_t k = 80;
  for (const auto format :
       {ActivationFormat::kBf16, ActivationFormat::kFp8, ActivationFormat::kNvfp4}) {
    for (const uint16_t poison : {0x7F80, 0xFF80, 0x7FC0, 0xFFFF, 0x7F81}) {
      for (const int64_t column : {0, 15, 16, 79}) {
        auto x = normal_bf16(4 * k, 61);
        QuantizeSpec spec{format, k};
        const Quantized want = reference(x, 2, spec, nullptr);
        x[2 * k + column] = Bf16{poison};
        std::vector<Bf16> q(4 * k);
        EXPECT_EQ(kernels().rows.quantize_rows(x.data(), k, 4, spec, q.data(), k, nullptr, 0,
                                               nullptr, nullptr),
                  2);
        EXPECT_TRUE(std::equal(want.q1.begin(), want.q1.end(), q.begin()));
      }
    }
  }
}

TEST_P(QuantizeRows, ReportsARowWhoseResultDoesNotFitIntoBf16) {
  const int64_t k = 32;
  std::vector<Bf16> x(k, Bf16{0x3F80});
  std::vector<Bf16> q(k);
  const auto result = [&](const QuantizeSpec& spec) {
    return kernels().rows.quantize_rows(x.data(), k, 1, spec, q.data(), k, nullptr, 0, nullptr,
                                        nullptr);
  };
  QuantizeSpec spec{ActivationFormat::kNvfp4, k};
  x[3] = Bf16{0x7F7F};  // BF16's maximum: the nearest E2M1 * E4M3 is 2^128
  EXPECT_EQ(result(spec), 0);
  x[3] = Bf16{0x7F60};  // fits
  EXPECT_EQ(result(spec), -1);
  spec.out_scale = kQuantisedActivationScale;
  EXPECT_EQ(result(spec), 0);
  spec.format = ActivationFormat::kFp8;
  EXPECT_EQ(result(spec), 0);
  spec.format = ActivationFormat::kBf16;
  EXPECT_EQ(result(spec), 0);
  spec.out_scale = 1.0F;
  EXPECT_EQ(result(spec), -1);
}

TEST_P(QuantizeRows, EqualsTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  for (const int64_t k : {64, 288, 2048}) {
    const auto x = spread_bf16(3 * k, 71 + k);
    QuantizeSpec spec{ActivationFormat::kNvfp4, k};
    spec.residual_tiles = k / 64;
    const Quantized nvfp4 = run(kernels(), x, 3, spec, nullptr);
    const auto name = std::to_string(k);
    hashes["nvfp4_q1_" + name] = bits_hash(nvfp4.q1.data(), 3 * k);
    hashes["nvfp4_q2_" + name] = bits_hash(nvfp4.q2.data(), static_cast<int64_t>(nvfp4.q2.size()));
    hashes["nvfp4_stats_" + name] = bits_hash(nvfp4.stats.data(), k);
    const Quantized fp8 = run(kernels(), x, 3, {ActivationFormat::kFp8, k}, nullptr);
    hashes["fp8_" + name] = bits_hash(fp8.q1.data(), 3 * k);
  }
  expect_golden("quantize_rows", hashes);
}

}  // namespace
}  // namespace quads::kernels
