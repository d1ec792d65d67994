// The matrix products: their bits against a scalar loop in the documented order, and that a row's
// result depends on that row alone.
#include <algorithm>
#include <numeric>

#include "packed_weight.h"
#include "testing.h"

namespace quads::kernels::testing {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kNvfp4};

std::string format_name(WeightFormat format) {
  return format == WeightFormat::kBf16 ? "bf16" : format == WeightFormat::kFp8 ? "fp8" : "nvfp4";
}

std::vector<Bf16> scaled(std::vector<Bf16> x, float factor) {
  for (Bf16& v : x) v = to_bf16(to_float(v) * factor);
  return x;
}

/// A weight, activations for it and the residual operand.
struct Problem {
  Problem(WeightFormat format, int64_t n, int64_t k, int64_t m, int64_t residual_tiles,
          std::vector<Bf16> w, std::vector<Bf16> x_unscaled)
      : n(n), k(k), m(m), residual_tiles(residual_tiles), packed(format, n, k) {
    global_scale = format == WeightFormat::kNvfp4 ? 0x1p-9F : 1.0F;
    values = quantised_values(format, w, n, k, global_scale);
    weight = std::move(w);
    x = scaled(std::move(x_unscaled), activation_scale(format));
    x2 = scaled(spread_bf16(m * residual_tiles * 32, 99, 6), activation_scale(format) * 0x1p-4F);
    packed.matrix().alpha = global_scale;
  }
  void pack(const CpuKernels& kernels) {
    kernels.gemm.pack({weight.data(), k, global_scale, nullptr, &packed.matrix(), 0, n});
  }
  GemmArgs args(int64_t rows, float* y, int64_t ldy) const {
    return {&packed.matrix(),
            x.data(),
            k,
            residual_tiles > 0 ? x2.data() : nullptr,
            residual_tiles * 32,
            residual_tiles,
            y,
            ldy,
            rows,
            0,
            n};
  }

  int64_t n, k, m, residual_tiles;
  PackedBuffers packed;
  float global_scale;
  std::vector<Bf16> weight, x, x2;
  std::vector<float> values;
};

Problem gaussian_problem(WeightFormat format, int64_t n, int64_t k, int64_t m, int rac_percent) {
  const int64_t residual_tiles = k / 32 * rac_percent / 100;
  return {format, n, k, m, residual_tiles, spread_bf16(n * k, 1, 8), normal_bf16(m * k, 2)};
}

/// The order of gemm_kernels.h, one element at a time.
std::vector<float> reference(const Problem& p) {
  const WeightFormat format = p.packed.matrix().format;
  const float decoded = format == WeightFormat::kNvfp4 ? 0x1p-112F : 1.0F;
  const float factor = p.packed.matrix().alpha * activation_scale(format);
  std::vector<float> y(static_cast<size_t>(p.m * p.n));
  for (int64_t m = 0; m < p.m; ++m) {
    for (int64_t n = 0; n < p.n; ++n) {
      float c = 0.0F;
      const auto add_tile = [&](const Bf16* x, const float* w) {
        float even = 0.0F;
        float odd = 0.0F;
        for (int64_t i = 0; i < 32; i += 2) {
          even = std::fma(to_float(x[i]), w[i] * decoded, even);
          odd = std::fma(to_float(x[i + 1]), w[i + 1] * decoded, odd);
        }
        c += even + odd;
      };
      for (int64_t t = 0; t < p.k / 32; ++t) {
        const float* w = &p.values[n * p.k + t * 32];
        add_tile(&p.x[m * p.k + t * 32], w);
        if (t < p.residual_tiles) add_tile(&p.x2[m * p.residual_tiles * 32 + t * 32], w);
      }
      y[m * p.n + n] = c * factor;
    }
  }
  return y;
}

bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

/// Runs the product of the first `rows` rows into a guarded buffer and compares its bits.
void expect_bits(const CpuKernels& kernels, const Problem& p, int64_t rows,
                 const std::vector<float>& expected, const std::string& where) {
  Poisoned<float> y(rows * p.n);
  kernels.gemm.gemm(p.args(rows, y.data(), p.n));
  EXPECT_EQ(y.unwritten(), 0) << where;
  EXPECT_TRUE(y.guards_intact()) << where;
  int64_t different = 0;
  int64_t first = -1;
  for (int64_t i = 0; i < rows * p.n; ++i) {
    if (same_bits(&y[i], &expected[i], 1)) continue;
    if (first < 0) first = i;
    ++different;
  }
  EXPECT_EQ(different, 0) << where << ": first at row " << first / p.n << ", column " << first % p.n
                          << ": " << y[first] << " instead of " << expected[first];
}

class Gemm : public EachIsa {};

TEST_P(Gemm, HasTheBitsOfTheScalarOrderForAllFormatsShapesAndResidualRatios) {
  constexpr int64_t kRows[] = {1, 2, 3, 4, 8, 15, 16, 17, 31, 33, 64, 100};
  constexpr int64_t kShapes[][2] = {{16, 32}, {48, 64}, {64, 768}, {72, 2048}, {256, 768}};
  for (WeightFormat format : kFormats) {
    for (const auto& [n, k] : kShapes) {
      for (int rac : {0, 50, 100}) {
        Problem p = gaussian_problem(format, n, k, 100, rac);
        p.pack(kernels());
        static std::map<std::string, std::vector<float>> references;  // shared by the suites
        const std::string where = format_name(format) + " n=" + std::to_string(n) +
                                  " k=" + std::to_string(k) + " rac=" + std::to_string(rac);
        std::vector<float>& expected = references[where];
        if (expected.empty()) expected = reference(p);
        for (int64_t rows : kRows) {
          expect_bits(kernels(), p, rows, expected, where + " m=" + std::to_string(rows));
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(Gemm, ARowAloneEqualsTheRowAmongOthersInAnyOrder) {
  constexpr int64_t kRows = 514;
  for (WeightFormat format : kFormats) {
    Problem p = gaussian_problem(format, 32, 2048, kRows, 50);
    p.pack(kernels());
    Poisoned<float> all(kRows * p.n);
    kernels().gemm.gemm(p.args(kRows, all.data(), p.n));
    std::vector<int64_t> order(kRows);
    std::iota(order.begin(), order.end(), 0);
    RandomSequence draws(5, RandomStream::kShuffle, 0);
    for (int64_t i = kRows - 1; i > 0; --i) {
      std::swap(order[i], order[draws.below(static_cast<uint32_t>(i) + 1)]);
    }
    const int64_t k2 = p.residual_tiles * 32;
    int64_t start = 0;
    for (int64_t rows : {1, 2, 3, 4, 8, 65, 100, 331}) {
      std::vector<Bf16> x(static_cast<size_t>(rows * p.k));
      std::vector<Bf16> x2(static_cast<size_t>(rows * k2));
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(&p.x[order[start + r] * p.k], p.k, &x[r * p.k]);
        std::copy_n(&p.x2[order[start + r] * k2], k2, &x2[r * k2]);
      }
      std::vector<float> y(static_cast<size_t>(rows * p.n));
      GemmArgs args = p.args(rows, y.data(), p.n);
      args.x = x.data();
      args.x2 = x2.data();
      kernels().gemm.gemm(args);
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_TRUE(same_bits(&y[r * p.n], &all[order[start + r] * p.n], p.n))
            << format_name(format) << ": row " << order[start + r] << " among " << rows;
      }
      start += rows;
    }
  }
}

TEST_P(Gemm, AnySplitOfTheColumnsGivesTheSameBits) {
  for (WeightFormat format : kFormats) {
    for (int64_t rows : {1, 2, 3, 4, 5, 40}) {
      Problem p = gaussian_problem(format, 200, 768, rows, 50);
      p.pack(kernels());
      std::vector<float> whole(static_cast<size_t>(rows * p.n));
      kernels().gemm.gemm(p.args(rows, whole.data(), p.n));
      Poisoned<float> parts(rows * p.n);
      constexpr int64_t kCuts[] = {0, 16, 64, 112, 192, 200};
      for (size_t i = 0; i + 1 < std::size(kCuts); ++i) {
        GemmArgs args = p.args(rows, parts.data() + kCuts[i], p.n);
        args.n_begin = kCuts[i];
        args.n_end = kCuts[i + 1];
        kernels().gemm.gemm(args);
      }
      EXPECT_TRUE(same_bits(whole.data(), parts.data(), rows * p.n))
          << format_name(format) << " m=" << rows;
      EXPECT_TRUE(parts.guards_intact());
    }
  }
}

TEST_P(Gemm, DenormalsCountAsZeroAndTinySumsAreFlushed) {
  constexpr int64_t kN = 48;
  constexpr int64_t kK = 96;
  constexpr int64_t kM = 20;
  Fill fill(11);
  std::vector<Bf16> w(kN * kK);
  std::vector<Bf16> x(kM * kK);
  for (Bf16& v : w) v = to_bf16(std::ldexp(fill.normal(), -60 - static_cast<int>(fill.below(8))));
  for (Bf16& v : x) v = to_bf16(std::ldexp(fill.normal(), -60 - static_cast<int>(fill.below(8))));
  for (size_t i = 0; i < x.size(); i += 3) x[i] = {static_cast<uint16_t>(fill.below(0x80))};
  for (size_t i = 1; i < w.size(); i += 5)
    w[i] = {static_cast<uint16_t>(0x8000 + fill.below(0x80))};
  for (int64_t rows : {1, 3, 20}) {
    Problem p(WeightFormat::kBf16, kN, kK, kM, 0, w, x);
    p.pack(kernels());
    const std::vector<float> expected = reference(p);
    EXPECT_TRUE(std::any_of(expected.begin(), expected.end(), [](float v) { return v != 0.0F; }));
    expect_bits(kernels(), p, rows, expected, "m=" + std::to_string(rows));
  }
}

TEST_P(Gemm, ZerosOfEitherSignGivePositiveZero) {
  for (WeightFormat format : kFormats) {
    std::vector<Bf16> w(32 * 64, Bf16{0x8000});
    std::vector<Bf16> x = normal_bf16(18 * 64, 3);
    for (int64_t i = 0; i < 64; ++i) x[i] = Bf16{0x8000};
    Problem p(format, 32, 64, 18, 1, w, x);
    p.pack(kernels());
    expect_bits(kernels(), p, 18, std::vector<float>(18 * 32, 0.0F), format_name(format));
  }
}

TEST_P(Gemm, ReadsUnalignedRowsWithAStrideAndWritesOnlyItsColumns) {
  constexpr int64_t kLdx = 67;
  constexpr int64_t kLdy = 101;
  for (int64_t rows : {1, 7, 37}) {
    Problem p = gaussian_problem(WeightFormat::kNvfp4, 72, 64, rows, 50);
    p.pack(kernels());
    const std::vector<float> expected = reference(p);
    std::vector<Bf16> x(static_cast<size_t>(1 + (rows - 1) * kLdx + p.k));
    std::vector<Bf16> x2(static_cast<size_t>(1 + (rows - 1) * kLdx + 32));
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(&p.x[r * p.k], p.k, &x[1 + r * kLdx]);
      std::copy_n(&p.x2[r * 32], 32, &x2[1 + r * kLdx]);
    }
    Poisoned<float> y((rows - 1) * kLdy + p.n);
    kernels().gemm.gemm({&p.packed.matrix(), x.data() + 1, kLdx, x2.data() + 1, kLdx, 1, y.data(),
                         kLdy, rows, 0, p.n});
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_TRUE(same_bits(&y[r * kLdy], &expected[r * p.n], p.n))
          << "row " << r << " of " << rows;
    }
    EXPECT_EQ(y.unwritten(), (rows - 1) * (kLdy - p.n));
    EXPECT_TRUE(y.guards_intact());
  }
}

TEST_P(Gemm, NoRowsWriteNothing) {
  Problem p = gaussian_problem(WeightFormat::kNvfp4, 16, 32, 1, 0);
  p.pack(kernels());
  Poisoned<float> y(16);
  kernels().gemm.gemm(p.args(0, y.data(), 16));
  EXPECT_EQ(y.unwritten(), 16);
}

TEST_P(Gemm, MatchesTheGoldenBits) {
  std::map<std::string, uint64_t> hashes;
  for (WeightFormat format : kFormats) {
    for (int64_t rows : {1, 19}) {
      Problem p = gaussian_problem(format, 72, 768, rows, 50);
      p.pack(kernels());
      std::vector<float> y(static_cast<size_t>(rows * p.n));
      kernels().gemm.gemm(p.args(rows, y.data(), p.n));
      hashes[format_name(format) + "_m" + std::to_string(rows)] = bits_hash(y.data(), rows * p.n);
    }
  }
  expect_golden("gemm", hashes);
}

QUADS_INSTANTIATE_EACH_ISA(Gemm);

class AccumulateDw : public EachIsa {};

TEST_P(AccumulateDw, AddsTheScaledProductWithinRounding) {
  constexpr int64_t kShapes[][3] = {{1, 16, 16},  {2, 48, 32},    {7, 64, 128},  {33, 80, 48},
                                    {64, 16, 64}, {300, 112, 80}, {520, 272, 48}};
  constexpr float kScale = 0x1p-3F;
  for (const auto& [m, n, k] : kShapes) {
    const int64_t lddy = n + 3;
    const int64_t ldx = k + 5;
    const int64_t lddw = k + 1;
    const std::vector<Bf16> dy = normal_bf16((m - 1) * lddy + n, 21);
    const std::vector<Bf16> x = normal_bf16((m - 1) * ldx + k, 22);
    Poisoned<float> dw((n - 1) * lddw + k);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) dw[i * lddw + j] = static_cast<float>(i - j);
    }
    const GemmDwArgs args = {dy.data(), lddy, x.data(), ldx, m, n, k, kScale, dw.data(), lddw};
    kernels().gemm.accumulate_dw(args);
    EXPECT_TRUE(dw.guards_intact());
    EXPECT_EQ(dw.unwritten(), n - 1) << "the gaps between the rows stay";
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        double sum = 0.0;
        double magnitude = 0.0;
        for (int64_t r = 0; r < m; ++r) {
          const double product = double{to_float(dy[r * lddy + i])} * to_float(x[r * ldx + j]);
          sum += product;
          magnitude += std::fabs(product);
        }
        const auto before = static_cast<double>(i - j);
        const double bound =
            1e-7 * (static_cast<double>(m) * magnitude * kScale + 2 * std::fabs(before));
        ASSERT_NEAR(dw[i * lddw + j], before + sum * kScale, bound + 1e-30)
            << "m=" << m << " n=" << n << " k=" << k << " at " << i << ", " << j;
      }
    }
  }
}

TEST_P(AccumulateDw, RepeatsToTheBit) {
  constexpr int64_t kM = 290;
  const std::vector<Bf16> dy = normal_bf16(kM * 64, 31);
  const std::vector<Bf16> x = spread_bf16(kM * 48, 32);
  std::vector<float> first(64 * 48, 0.5F);
  std::vector<float> second(64 * 48, 0.5F);
  for (std::vector<float>* dw : {&first, &second}) {
    kernels().gemm.accumulate_dw({dy.data(), 64, x.data(), 48, kM, 64, 48, 1.0F, dw->data(), 48});
  }
  EXPECT_TRUE(same_bits(first.data(), second.data(), 64 * 48));
}

TEST_P(AccumulateDw, NoRowsLeaveTheGradientAlone) {
  std::vector<float> dw(16 * 16, 3.0F);
  kernels().gemm.accumulate_dw({nullptr, 16, nullptr, 16, 0, 16, 16, 1.0F, dw.data(), 16});
  EXPECT_EQ(dw, std::vector<float>(16 * 16, 3.0F));
}

QUADS_INSTANTIATE_EACH_ISA(AccumulateDw);

}  // namespace
}  // namespace quads::kernels::testing
