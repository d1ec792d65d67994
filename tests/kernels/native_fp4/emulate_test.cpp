// The emulated product of native buffers against FP64 and against the program's own W4A4 product.
#include "kernels/native_fp4/emulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/cpu/linear.h"
#include "kernels/native_fp4/problem.h"
#include "kernels/packed_weight.h"
#include "numerics/rac.h"

namespace quads::kernels::native_fp4 {
namespace {

struct Exact {
  std::vector<double> sums, magnitudes;  // [rows, n]: of the products, and of their magnitudes
};

// From the scalar quantisers' values, not from the buffers.
Exact exact_product(const Problem& p) {
  Exact out;
  const std::vector<float> x = to_floats(p.x);
  const std::vector<uint8_t> mask =
      p.mask.empty() ? std::vector<uint8_t>(static_cast<size_t>(p.k), 0) : p.mask;
  int64_t row = 0;
  for (int64_t group = 0; group < p.groups(); ++group) {
    const std::vector<float> w = dequantise_nvfp4(quantised_weight(p, group), "w");
    for (; row < p.offsets[static_cast<size_t>(group)]; ++row) {
      const std::span<const float> values(x.data() + row * p.k, static_cast<size_t>(p.k));
      const float g = global_scale_pow2(checked_amax(values, 1, p.k, "x"));
      const CompensatedRow q = compensate_row(values, g, mask, false, "x");
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t c = 0; c < p.k; ++c) {
          for (const QuantisedRow* of : {&q.main, &q.correction}) {
            const double term =
                double{of->values[static_cast<size_t>(c)]} * w[static_cast<size_t>(j * p.k + c)];
            sum += term;
            magnitude += std::fabs(term);
          }
        }
        out.sums.push_back(sum);
        out.magnitudes.push_back(magnitude);
      }
    }
  }
  return out;
}

// kernels/cpu's product, group by group.
std::vector<float> cpu_product(const Problem& p) {
  const FlushDenormals flush;
  Arena arena;
  const CpuContext context{cpu_kernels(best_isa()), nullptr, &arena, 0};
  QuantizeSpec spec;
  spec.format = ActivationFormat::kNvfp4;
  spec.k = p.k;
  spec.out_scale = activation_scale(WeightFormat::kNvfp4);
  if (!p.mask.empty()) {
    spec.channel_mask = p.mask.data();
    spec.residual_tiles = p.k / 32;
  }
  std::vector<float> y(static_cast<size_t>(p.rows() * p.n));
  int64_t begin = 0;
  for (int64_t group = 0; group < p.groups(); ++group) {
    const int64_t rows = p.offsets[static_cast<size_t>(group)] - begin;
    testing::PackedBuffers weight(WeightFormat::kNvfp4, p.n, p.k);
    weight.matrix().alpha = quantised_weight(p, group).global_scale;
    context.gemm().pack({p.w.data() + group * p.n * p.k, p.k, weight.matrix().alpha, nullptr,
                         &weight.matrix(), 0, p.n});
    const ArenaScope scope(arena);
    const Operand operand =
        quantize(context, spec, p.x.data() + begin * p.k, p.k, rows, nullptr, nullptr, "x", arena);
    linear(context, operand, rows, weight.matrix(), y.data() + begin * p.n, p.n);
    begin += rows;
  }
  return y;
}

// Roundings of a term in kernels/cpu: a chain of 16, even + odd, then one a tile of both passes.
double cpu_bound(int64_t k) {
  const double roundings = static_cast<double>(16 + 1 + 2 * (k / 32)) * 0x1p-24;
  return roundings / (1.0 - roundings);
}

TEST(NativeFp4Emulation, LiesWithinItsBoundOfTheExactSumsAndOfTheCpuProduct) {
  for (const bool compensated : {false, true}) {
    for (const auto& [offsets, n, k] :
         {std::tuple<std::vector<int32_t>, int64_t, int64_t>{{5, 5, 135}, 48, 768},
          {{1}, 16, 32},
          {{2, 131}, 144, 96}}) {
      const Problem p = random_problem(offsets, n, k, compensated);
      const Buffers b = packed(p);
      const std::vector<float> y = emulated(p, b), cpu = cpu_product(p);
      const Exact exact = exact_product(p);
      const double bound = emulation_bound(b.k.augmented);
      int64_t differing = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_LE(std::fabs(y[i] - exact.sums[i]), bound * exact.magnitudes[i]) << i;
        ASSERT_LE(std::fabs(double{y[i]} - cpu[i]), (bound + cpu_bound(k)) * exact.magnitudes[i])
            << i;
        differing += y[i] != cpu[i] ? 1 : 0;
      }
      if (k >= 768) {
        EXPECT_GT(differing, 0) << "sums that never round prove nothing about the bound";
      }
    }
  }
}

TEST(NativeFp4Emulation, EqualsTheCpuProductWhereEverySumIsExact) {
  // Small integers under scales of 1 .. 4: all sums have fewer than 24 bits.
  Problem p = random_problem({3, 20}, 32, 192);
  testing::Fill fill(3);
  for (Bf16& x : p.x) x = to_bf16(static_cast<float>(fill.below(17)) - 8.0F);
  for (Bf16& w : p.w) w = to_bf16(static_cast<float>(fill.below(9)) - 4.0F);
  const std::vector<float> y = emulated(p, packed(p)), cpu = cpu_product(p);
  const Exact exact = exact_product(p);
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(y[i], exact.sums[i]) << i;
    ASSERT_EQ(y[i], cpu[i]) << i;
  }
}

TEST(NativeFp4Emulation, ReadsThePaddedColumnsOfScalesAndNoOtherPadding) {
  const Problem p = random_problem({3, 5}, 16, 32, false);  // 2 of 4 columns are padding
  const Buffers clean = packed(p);
  const std::vector<float> expected = emulated(p, clean);
  constexpr uint8_t kNan = 0x7F;
  Buffers b = clean;
  b.scales[static_cast<size_t>(scale_offset(1, 3, 4))] = kNan;
  const std::vector<float> y = emulated(p, b);
  for (int64_t i = 0; i < p.rows() * p.n; ++i) {
    const auto at = static_cast<size_t>(i);
    if (i / p.n == 1) {
      EXPECT_TRUE(std::isnan(y[at])) << i;
    } else {
      EXPECT_EQ(y[at], expected[at]) << i;
    }
  }
  b = clean;
  for (int64_t block = 0; block < 4; ++block) {
    b.scales[static_cast<size_t>(scale_offset(3, block, 4))] = kNan;  // group 0 has rows 0 .. 2
    b.weight_scales[static_cast<size_t>(scale_offset(100, block, 4))] = kNan;
  }
  EXPECT_EQ(emulated(p, b), expected);
}

TEST(NativeFp4Emulation, NoticesAScaleOrACodeThatIsElsewhere) {
  const Problem p = random_problem({3, 5}, 16, 64);
  const Buffers clean = packed(p);
  const std::vector<float> expected = emulated(p, clean);
  Buffers b = clean;
  std::swap(b.scales[0], b.scales[1]);
  EXPECT_NE(emulated(p, b), expected);
  b = clean;
  const auto odd_pair = std::ranges::find_if(
      b.codes, [](uint8_t pair) { return (pair & 7) != (pair >> 4 & 7); });  // two magnitudes
  *odd_pair = static_cast<uint8_t>(*odd_pair << 4 | *odd_pair >> 4);
  EXPECT_NE(emulated(p, b), expected);
  b = clean;
  const auto another = std::ranges::find_if(
      b.weight_scales, [&](uint8_t scale) { return scale > 0x20 && scale != b.weight_scales[0]; });
  std::swap(b.weight_scales[0], *another);
  EXPECT_NE(emulated(p, b), expected);
}

TEST(NativeFp4Emulation, RefusesBuffersThatDoNotFit) {
  const Problem p = random_problem({3, 5}, 16, 64);
  const Buffers b = packed(p);
  std::vector<float> y(static_cast<size_t>(p.rows() * p.n));
  Product bad = product(p, b);
  bad.scales = bad.scales.first(512);
  EXPECT_THROW(emulate(bad, y), Error);
  bad = product(p, b);
  bad.k = 48;
  EXPECT_THROW(emulate(bad, y), Error);
  bad = product(p, b);
  bad.codes = bad.codes.first(8);
  EXPECT_THROW(emulate(bad, y), Error);
}

}  // namespace
}  // namespace quads::kernels::native_fp4
