// Conversions, sums, the gated activation and the optimizer against scalar references.
#include "kernels/rows_reference.h"
#include "kernels/testing.h"

namespace quads::kernels {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kSizes[] = {1, 15, 16, 17, 33, 257};

struct Sigmoid {
  float numerator, denominator;
};
Sigmoid sigmoid_parts(float x) {
  const float t = exp_f32(-std::fabs(x));
  return {x < 0.0F ? t : 1.0F, 1.0F + t};
}
float silu(float x) {
  const Sigmoid s = sigmoid_parts(x);
  return (x * s.numerator) / s.denominator;
}

class Elementwise : public EachIsa {};
QUADS_INSTANTIATE_EACH_ISA(Elementwise);

TEST_P(Elementwise, SiluMulEqualsTheScalarOrderAndIsAccurate) {
  for (const int64_t width : kSizes) {
    const int64_t rows = 3, ld = 2 * width + 5;
    const auto gu = normal_f32(rows * ld, width, 5.0F);
    Poisoned<Bf16> h(rows * (width + 3));
    kernels().rows.silu_mul(gu.data(), ld, rows, width, h.data(), width + 3);
    EXPECT_EQ(h.unwritten(), rows * 3);
    EXPECT_TRUE(h.guards_intact());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        const float gate = gu[r * ld + i];
        const float up = gu[r * ld + width + i];
        const Bf16 got = h[r * (width + 3) + i];
        EXPECT_EQ(got, to_bf16(silu(gate) * up)) << gate << ", " << up;
        EXPECT_TRUE(near_bf16(got, gate / (1.0 + std::exp(-static_cast<double>(gate))) * up));
      }
    }
  }
}

TEST_P(Elementwise, SiluMulOfExtremeGates) {
  const std::vector<float> gates = {-kInf, -1e30F, -88.0F, -87.0F, -0.0F,
                                    0.0F,  20.0F,  1e30F,  kInf,   std::nanf("")};
  const auto width = static_cast<int64_t>(gates.size());
  std::vector<float> gu = gates;
  gu.insert(gu.end(), gates.size(), 1.0F);
  std::vector<Bf16> h(gates.size());
  kernels().rows.silu_mul(gu.data(), 2 * width, 1, width, h.data(), width);
  for (int64_t i = 1; i < width - 1; ++i) {
    EXPECT_EQ(h[i], to_bf16(silu(gates[i]))) << gates[i];
  }
  EXPECT_EQ(to_float(h[1]), 0.0F);
  EXPECT_NEAR(to_float(h[6]), 20.0F, 0.1F);
  EXPECT_EQ(to_float(h[8]), kInf);
  EXPECT_TRUE(std::isnan(to_float(h[0])) && std::isnan(to_float(h[9]))) << "stays visible";
}

TEST_P(Elementwise, SiluMulBackwardAgreesWithFiniteDifferencesAndTheScalarOrder) {
  for (const int64_t width : kSizes) {
    const auto gu = normal_f32(2 * width, 40 + width, 3.0F);
    const auto dh = normal_f32(width, 41 + width);
    Poisoned<Bf16> dgu(2 * width);
    kernels().rows.silu_mul_backward(gu.data(), 2 * width, dh.data(), width, 1, width, dgu.data(),
                                     2 * width);
    EXPECT_EQ(dgu.unwritten(), 0);
    EXPECT_TRUE(dgu.guards_intact());
    for (int64_t i = 0; i < width; ++i) {
      const auto f = [&](const std::vector<double>& x) {
        return dh[i] * x[i] / (1.0 + std::exp(-x[i])) * x[width + i];
      };
      EXPECT_TRUE(near_bf16(dgu[i], finite_difference(f, to_f64(gu), i))) << width << ", " << i;
      EXPECT_TRUE(near_bf16(dgu[width + i], finite_difference(f, to_f64(gu), width + i)));
      const Sigmoid parts = sigmoid_parts(gu[i]);
      const float s = parts.numerator / parts.denominator;
      const float slope = s * std::fma(gu[i], 1.0F - s, 1.0F);
      EXPECT_EQ(dgu[i], to_bf16(dh[i] * gu[width + i] * slope));
      EXPECT_EQ(dgu[width + i], to_bf16(dh[i] * (gu[i] * s)));
    }
  }
}

TEST_P(Elementwise, CombineAddsTheExpertsInOrder) {
  for (const int64_t d : kSizes) {
    const auto x = normal_f32(d, 50);
    const std::vector<std::vector<float>> experts = {normal_f32(d, 51), normal_f32(d, 52, 100.0F),
                                                     normal_f32(d, 53)};
    const float* parts[] = {experts[0].data(), experts[1].data(), experts[2].data()};
    const float weights[] = {0.3F, 0.6F, 0.1F};
    for (const int64_t top_k : {0, 1, 3}) {
      Poisoned<float> y(d);
      kernels().rows.combine(x.data(), parts, weights, top_k, d, y.data());
      EXPECT_EQ(y.unwritten(), 0);
      EXPECT_TRUE(y.guards_intact());
      for (int64_t i = 0; i < d; ++i) {
        float want = x[i];
        for (int64_t s = 0; s < top_k; ++s) want = std::fma(weights[s], experts[s][i], want);
        EXPECT_EQ(y[i], want);
      }
    }
  }
}

TEST_P(Elementwise, DotEqualsTheScalarOrder) {
  for (const int64_t n : {1, 15, 16, 17, 33, 2048}) {
    const auto a = normal_f32(n, 60);
    const auto b = normal_bf16(n, 61);
    float lanes[16] = {};
    for (int64_t i = 0; i < n; ++i) lanes[i % 16] = std::fma(a[i], to_float(b[i]), lanes[i % 16]);
    EXPECT_EQ(kernels().rows.dot(a.data(), b.data(), n), reduce_sum_16(lanes)) << n;
  }
  EXPECT_EQ(kernels().rows.dot(nullptr, nullptr, 0), 0.0F);
}

TEST_P(Elementwise, ToBf16RoundsLikeTheScalarConversion) {
  // Ties of both kinds, carries into the exponent, overflow, NaNs of any payload, denormals.
  std::vector<float> x = {1.0F,     0x1.01p0F, 0x1.03p0F, 0x1.0100001p0F, -0x1.FFp0F, 3.4e38F,
                          -3.4e38F, kInf,      -kInf,     0.0F,           -0.0F,      0x1p-126F};
  for (const uint32_t u : {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U, 0xFFC00000U}) {
    x.push_back(std::bit_cast<float>(u));
  }
  const auto random = normal_f32(1000, 70, 1e5F);
  x.insert(x.end(), random.begin(), random.end());
  for (const int64_t n : {int64_t{15}, int64_t{16}, static_cast<int64_t>(x.size())}) {
    for (const float scale : {1.0F, -0.3F}) {
      Poisoned<Bf16> out(n);
      kernels().rows.to_bf16(x.data(), n, scale, out.data());
      EXPECT_TRUE(out.guards_intact());
      for (int64_t i = 0; i < n; ++i) {
        const Bf16 want = to_bf16(x[i] * scale);
        if (std::isnan(x[i])) {
          EXPECT_TRUE(std::isnan(to_float(out[i]))) << i;
        } else {
          EXPECT_EQ(out[i], want) << x[i];
        }
      }
    }
  }
}

TEST_P(Elementwise, AddAddsInPlace) {
  for (const int64_t n : kSizes) {
    const auto x = normal_f32(n, 80), y0 = normal_f32(n, 81);
    Poisoned<float> y(n);
    std::copy(y0.begin(), y0.end(), y.data());
    kernels().rows.add(x.data(), n, y.data());
    EXPECT_TRUE(y.guards_intact());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(y[i], y0[i] + x[i]);
  }
}

TEST_P(Elementwise, SumOfSquaresIsExactToDoubleAndInOneOrder) {
  for (const int64_t n : {0, 1, 15, 16, 17, 33, 5000}) {
    const auto x = normal_f32(n, 90, 1e10F);
    double lanes[16] = {};
    double plain = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const double v = x[i];
      lanes[i % 16] += v * v;
      plain += v * v;
    }
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    const double got = kernels().rows.sum_of_squares(x.data(), n);
    EXPECT_EQ(got, lanes[0]) << n;
    EXPECT_NEAR(got, plain, plain * 1e-13) << n;
  }
  const std::vector<float> bad = {1.0F, std::nanf(""), 2.0F};
  EXPECT_TRUE(std::isnan(kernels().rows.sum_of_squares(bad.data(), 3)));
}

AdamwParams adamw_params(int step) {
  const double beta1 = 0.9, beta2 = 0.98;
  return {.lr = 3e-3F,
          .beta1 = 0.9F,
          .beta2 = 0.98F,
          .eps = 1e-8F,
          .weight_decay = 0.1F,
          .grad_scale = 0.5F,
          .bias_correction1 = static_cast<float>(1.0 - std::pow(beta1, step)),
          .bias_correction2 = static_cast<float>(1.0 - std::pow(beta2, step))};
}

TEST_P(Elementwise, AdamwEqualsTheScalarOrderAndFollowsThePaper) {
  for (const int64_t n : kSizes) {
    const auto w0 = normal_f32(n, 1);
    std::vector<double> w64 = to_f64(w0), m64(n, 0.0), v64(n, 0.0);
    std::vector<float> w = w0, m(n, 0.0F), v(n, 0.0F);
    Poisoned<float> got_w(n), got_m(n), got_v(n);
    std::copy(w.begin(), w.end(), got_w.data());
    std::fill_n(got_m.data(), n, 0.0F);
    std::fill_n(got_v.data(), n, 0.0F);
    for (int step = 1; step <= 4; ++step) {
      auto grad = normal_f32(n, 2 + step, 0.1F);
      grad[0] = 0.0F;
      const AdamwParams p = adamw_params(step);
      Poisoned<Bf16> value(n);
      kernels().rows.adamw(n, p, grad.data(), got_w.data(), got_m.data(), got_v.data(),
                           value.data());
      EXPECT_EQ(value.unwritten(), 0);
      EXPECT_TRUE(value.guards_intact() && got_w.guards_intact() && got_m.guards_intact() &&
                  got_v.guards_intact());
      for (int64_t i = 0; i < n; ++i) {
        const float g = grad[i] * p.grad_scale;
        m[i] = std::fma(1.0F - p.beta1, g - m[i], m[i]);
        v[i] = std::fma(p.beta2, v[i], (1.0F - p.beta2) * (g * g));
        const float update = m[i] / (std::sqrt(v[i]) / std::sqrt(p.bias_correction2) + p.eps);
        w[i] = std::fma(-(p.lr * p.weight_decay), w[i], w[i]);
        w[i] = std::fma(-(p.lr / p.bias_correction1), update, w[i]);
        EXPECT_EQ(got_m[i], m[i]);
        EXPECT_EQ(got_v[i], v[i]);
        EXPECT_EQ(got_w[i], w[i]);
        EXPECT_EQ(value[i], to_bf16(w[i]));

        const double g64 = grad[i] * 0.5;
        m64[i] = 0.9 * m64[i] + 0.1 * g64;
        v64[i] = 0.98 * v64[i] + 0.02 * g64 * g64;
        w64[i] -= 3e-3 * (m64[i] / (1 - std::pow(0.9, step)) /
                              (std::sqrt(v64[i] / (1 - std::pow(0.98, step))) + 1e-8) +
                          0.1 * w64[i]);
        EXPECT_NEAR(got_w[i], w64[i], 1e-5);
      }
    }
  }
}

TEST_P(Elementwise, EqualsTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  for (const int64_t n : {16, 300}) {
    const auto gu = normal_f32(2 * n, n, 4.0F), dh = normal_f32(n, n + 1);
    std::vector<Bf16> h(n), dgu(2 * n);
    kernels().rows.silu_mul(gu.data(), 2 * n, 1, n, h.data(), n);
    kernels().rows.silu_mul_backward(gu.data(), 2 * n, dh.data(), n, 1, n, dgu.data(), 2 * n);
    auto w = normal_f32(n, n + 2), m = normal_f32(n, n + 3, 0.1F), v = normal_f32(n, n + 4, 0.1F);
    for (float& x : v) x = x * x;
    std::vector<Bf16> value(n);
    kernels().rows.adamw(n, adamw_params(3), dh.data(), w.data(), m.data(), v.data(), value.data());
    const auto name = std::to_string(n);
    hashes["silu_mul_" + name] = bits_hash(h.data(), n);
    hashes["silu_mul_backward_" + name] = bits_hash(dgu.data(), 2 * n);
    hashes["adamw_master_" + name] = bits_hash(w.data(), n);
    hashes["adamw_value_" + name] = bits_hash(value.data(), n);
    const float dot = kernels().rows.dot(gu.data(), h.data(), n);
    const double squares = kernels().rows.sum_of_squares(gu.data(), 2 * n);
    hashes["dot_" + name] = bits_hash(&dot, 1);
    hashes["sum_of_squares_" + name] = bits_hash(&squares, 1);
  }
  expect_golden("elementwise", hashes);
}

}  // namespace
}  // namespace quads::kernels
