// RMS norm and rotary embedding against their contract in scalar code (to the bit) and against the
// same formulas in double (gradients).
#include <fmt/format.h>

#include <functional>

#include "kernels/testing.h"
#include "numerics/math.h"

namespace quads::kernels {
namespace {

using testing::bits_hash;
using testing::EachIsa;
using testing::normal_bf16;
using testing::normal_f32;
using testing::Poisoned;

constexpr float kEps = 1e-6F;

float reference_inv_rms(const float* x, int64_t d) {
  float lanes[16] = {};
  for (int64_t i = 0; i < d; ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  return inv_sqrt(reduce_sum_16(lanes) / static_cast<float>(d) + kEps);
}

/// cos and sin of some angles, one pair for each pair of dimensions.
struct Rotation {
  std::vector<float> cos, sin;
  explicit Rotation(int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = 0.37 * static_cast<double>(i) - 2.0;
      cos.push_back(static_cast<float>(cos_f64(angle)));
      sin.push_back(static_cast<float>(sin_f64(angle)));
    }
  }
};

std::vector<Bf16> reference_qk_norm_rope(const std::vector<float>& in, int64_t head_dim,
                                         const Bf16* weight, int64_t norm_heads,
                                         const Rotation& rotation) {
  std::vector<Bf16> out(in.size());
  const auto half = static_cast<size_t>(head_dim / 2);
  const auto width = static_cast<size_t>(norm_heads * head_dim);
  for (size_t at = 0; at < in.size(); at += 2 * half) {
    std::vector<float> y(in.begin() + static_cast<int64_t>(at),
                         in.begin() + static_cast<int64_t>(at + 2 * half));
    if (weight != nullptr) {
      const float inv = reference_inv_rms(&in[at / width * width], norm_heads * head_dim);
      for (size_t i = 0; i < y.size(); ++i) y[i] = y[i] * inv * to_float(weight[at % width + i]);
    }
    for (size_t i = 0; i < half; ++i) {
      const float c = rotation.cos[i], s = rotation.sin[i], a = y[i], b = y[i + half];
      out[at + i] = to_bf16(std::fma(-b, s, a * c));
      out[at + half + i] = to_bf16(std::fma(a, s, b * c));
    }
  }
  return out;
}

/// out = weight * x / rms(x), rotated if there is a rotation, in double; x is one vector. A null
/// weight stands for no norm.
std::vector<double> plain_norm_rope(const std::vector<double>& x, const std::vector<double>* weight,
                                    const Rotation* rotation) {
  std::vector<double> y = x;
  if (weight != nullptr) {
    double sum = 0.0;
    for (double v : x) sum += v * v;
    const double inv = 1.0 / std::sqrt(sum / static_cast<double>(x.size()) + kEps);
    for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * inv * (*weight)[i];
  }
  if (rotation == nullptr) return y;
  std::vector<double> out(x.size());
  const size_t half = x.size() / 2;
  for (size_t i = 0; i < half; ++i) {
    out[i] = y[i] * rotation->cos[i] - y[i + half] * rotation->sin[i];
    out[i + half] = y[i + half] * rotation->cos[i] + y[i] * rotation->sin[i];
  }
  return out;
}

/// d sum(dout . out) / dx[i] by central differences; `evaluate` reads x.
std::vector<double> finite_differences(std::vector<double>& x, const std::vector<float>& dout,
                                       const std::function<std::vector<double>()>& evaluate) {
  const double h = 1e-5;
  std::vector<double> gradient;
  for (double& xi : x) {
    const double saved = xi;
    double difference = 0.0;
    xi = saved + h;
    const std::vector<double> up = evaluate();
    xi = saved - h;
    const std::vector<double> down = evaluate();
    xi = saved;
    for (size_t i = 0; i < up.size(); ++i) difference += dout[i] * (up[i] - down[i]);
    gradient.push_back(difference / (2 * h));
  }
  return gradient;
}

/// FP32 against double: inputs of unit size, sums of at most 256 terms in 16 chains, so a few
/// hundred roundings of 2^-24 of terms of size ten.
constexpr double kTolerance = 1e-4;

std::vector<double> to_double(const std::vector<Bf16>& x) {
  std::vector<double> y;
  for (Bf16 v : x) y.push_back(to_float(v));
  return y;
}
std::vector<float> slice(const std::vector<float>& x, int64_t begin, int64_t count) {
  return {x.begin() + begin, x.begin() + begin + count};
}

class Norm : public EachIsa {};
QUADS_INSTANTIATE_EACH_ISA(Norm);

TEST_P(Norm, RmsnormEqualsTheScalarReferenceBitForBit) {
  for (int64_t d : {1, 15, 16, 24, 128, 1000, 2048}) {
    for (float out_scale : {1.0F, 0x1p56F}) {
      const int64_t rows = 3, ldx = d + 5, ldo = d + 3;
      std::vector<float> x = normal_f32(rows * ldx, 1, 3.0F);
      for (int64_t i = 0; i < d; ++i) x[static_cast<size_t>(ldx + i)] = 0.0F;
      const auto weight = normal_bf16(d, 2);
      Poisoned<Bf16> out((rows - 1) * ldo + d);
      Poisoned<float> inv_rms(rows);
      kernels().rows.rmsnorm(x.data(), ldx, rows, d, weight.data(), kEps, out_scale, out.data(),
                             ldo, inv_rms.data());
      EXPECT_TRUE(out.guards_intact());
      EXPECT_TRUE(inv_rms.guards_intact());
      EXPECT_EQ(out.unwritten(), (rows - 1) * (ldo - d));
      for (int64_t r = 0; r < rows; ++r) {
        const float inv = reference_inv_rms(&x[static_cast<size_t>(r * ldx)], d);
        ASSERT_EQ(inv_rms[r], inv) << "d " << d << " row " << r;
        for (int64_t i = 0; i < d; ++i) {
          const float y = x[static_cast<size_t>(r * ldx + i)] * inv *
                          to_float(weight[static_cast<size_t>(i)]) * out_scale;
          ASSERT_EQ(out[r * ldo + i].bits, to_bf16(y).bits) << "d " << d << " element " << i;
        }
      }
    }
  }
}

TEST_P(Norm, RmsnormOfARowIsTheSameAloneAndWithoutInvRms) {
  const int64_t rows = 7, d = 768;
  const auto x = normal_f32(rows * d, 3);
  const auto weight = normal_bf16(d, 4);
  Poisoned<Bf16> all(rows * d), one(d);
  Poisoned<float> inv_rms(rows);
  kernels().rows.rmsnorm(x.data(), d, rows, d, weight.data(), kEps, 1.0F, all.data(), d,
                         inv_rms.data());
  for (int64_t r = 0; r < rows; ++r) {
    kernels().rows.rmsnorm(&x[static_cast<size_t>(r * d)], d, 1, d, weight.data(), kEps, 1.0F,
                           one.data(), d, nullptr);
    EXPECT_EQ(std::memcmp(one.data(), all.data() + r * d, d * sizeof(Bf16)), 0) << r;
  }
}

TEST_P(Norm, RmsnormBackwardAgreesWithFiniteDifferencesAndAccumulates) {
  for (int64_t d : {1, 16, 40, 256}) {
    const int64_t rows = 2, ldx = d + 1, ldd = d + 2, lddx = d + 3;
    const auto x = normal_f32(rows * ldx, 5);
    const auto dout = normal_f32(rows * ldd, 6);
    const auto weight = normal_bf16(d, 7);
    std::vector<float> inv_rms, dweight(static_cast<size_t>(d), 0.5F);
    for (int64_t r = 0; r < rows; ++r) {
      inv_rms.push_back(reference_inv_rms(&x[static_cast<size_t>(r * ldx)], d));
    }
    std::vector<float> dx(static_cast<size_t>((rows - 1) * lddx + d), 0.25F);
    kernels().rows.rmsnorm_backward(x.data(), ldx, inv_rms.data(), rows, d, weight.data(),
                                    dout.data(), ldd, dx.data(), lddx, dweight.data());
    std::vector<double> expected_dweight(static_cast<size_t>(d), 0.5);
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = slice(x, r * ldx, d);
      std::vector<double> x64(row.begin(), row.end()), w64 = to_double(weight);
      const auto evaluate = [&] { return plain_norm_rope(x64, &w64, nullptr); };
      const auto row_dout = slice(dout, r * ldd, d);
      const auto expected_dx = finite_differences(x64, row_dout, evaluate);
      const auto row_dweight = finite_differences(w64, row_dout, evaluate);
      for (int64_t i = 0; i < d; ++i) {
        const auto u = static_cast<size_t>(i);
        EXPECT_NEAR(dx[static_cast<size_t>(r * lddx + i)], 0.25 + expected_dx[u], kTolerance);
        expected_dweight[u] += row_dweight[u];
      }
      for (int64_t i = d; i < lddx && r + 1 < rows; ++i) {
        EXPECT_EQ(dx[static_cast<size_t>(r * lddx + i)], 0.25F) << "between the rows";
      }
    }
    for (size_t i = 0; i < dweight.size(); ++i) {
      EXPECT_NEAR(dweight[i], expected_dweight[i], kTolerance);
    }
  }
}

TEST_P(Norm, QkNormRopeEqualsTheScalarReferenceBitForBit) {
  for (int64_t head_dim : {16, 32, 48, 80, 128, 256}) {
    const int64_t heads = 3;
    const auto in = normal_f32(heads * head_dim, 8, 2.0F);
    const auto weight = normal_bf16(heads * head_dim, 9);
    const Rotation rotation(head_dim / 2);
    for (const auto& [w, norm_heads] : {std::pair<const Bf16*, int64_t>{weight.data(), 1},
                                        {weight.data(), heads},
                                        {nullptr, 1}}) {
      Poisoned<Bf16> out(heads * head_dim);
      kernels().rows.qk_norm_rope(in.data(), heads, head_dim, w, norm_heads, kEps,
                                  rotation.cos.data(), rotation.sin.data(), out.data());
      EXPECT_TRUE(out.guards_intact());
      const auto expected = reference_qk_norm_rope(in, head_dim, w, norm_heads, rotation);
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_EQ(out.values()[i].bits, expected[i].bits) << head_dim << " element " << i;
      }
    }
  }
}

TEST_P(Norm, QkNormRopeBackwardAgreesWithFiniteDifferences) {
  for (int64_t head_dim : {16, 32, 48, 128}) {
    const int64_t heads = 2;
    const auto in = normal_f32(heads * head_dim, 10);
    const auto dout = normal_f32(heads * head_dim, 11);
    const auto weight = normal_bf16(head_dim, 12);
    const Rotation rotation(head_dim / 2);
    for (bool with_norm : {true, false}) {
      Poisoned<float> din(heads * head_dim);
      std::vector<float> dweight(static_cast<size_t>(head_dim), 0.5F);
      kernels().rows.qk_norm_rope_backward(in.data(), heads, head_dim,
                                           with_norm ? weight.data() : nullptr, 1, kEps,
                                           rotation.cos.data(), rotation.sin.data(), dout.data(),
                                           din.data(), with_norm ? dweight.data() : nullptr);
      EXPECT_EQ(din.unwritten(), 0);
      EXPECT_TRUE(din.guards_intact());
      std::vector<double> expected_dweight(dweight.size(), 0.5);
      for (int64_t h = 0; h < heads; ++h) {
        const auto row = slice(in, h * head_dim, head_dim);
        const auto row_dout = slice(dout, h * head_dim, head_dim);
        std::vector<double> x64(row.begin(), row.end()), w64 = to_double(weight);
        const auto evaluate = [&] {
          return plain_norm_rope(x64, with_norm ? &w64 : nullptr, &rotation);
        };
        const auto expected = finite_differences(x64, row_dout, evaluate);
        for (int64_t i = 0; i < head_dim; ++i) {
          EXPECT_NEAR(din[h * head_dim + i], expected[static_cast<size_t>(i)], kTolerance);
        }
        const auto row_dweight = finite_differences(w64, row_dout, evaluate);
        for (size_t i = 0; i < dweight.size(); ++i) expected_dweight[i] += row_dweight[i];
      }
      for (size_t i = 0; i < dweight.size(); ++i) {
        EXPECT_NEAR(dweight[i], expected_dweight[i], kTolerance);
      }
    }
  }
}

// The gradient of a norm over all heads is that of a norm over one head as wide as they are, behind
// the inverse rotation of each.
TEST_P(Norm, ANormOverAllHeadsGoesBackThroughAllOfThem) {
  const int64_t heads = 3, head_dim = 32, width = heads * head_dim;
  const auto in = normal_f32(width, 20);
  const auto dout = normal_f32(width, 21);
  const auto weight = normal_bf16(width, 22);
  const Rotation rotation(head_dim / 2);
  Poisoned<float> din(width);
  std::vector<float> dweight(width, 0.5F);
  kernels().rows.qk_norm_rope_backward(in.data(), heads, head_dim, weight.data(), heads, kEps,
                                       rotation.cos.data(), rotation.sin.data(), dout.data(),
                                       din.data(), dweight.data());
  EXPECT_TRUE(din.guards_intact());
  std::vector<double> x64(in.begin(), in.end()), w64 = to_double(weight);
  const auto evaluate = [&] {
    const std::vector<double> y = plain_norm_rope(x64, &w64, nullptr);
    std::vector<double> rotated;
    for (int64_t h = 0; h < heads; ++h) {
      const std::vector<double> head(y.begin() + h * head_dim, y.begin() + (h + 1) * head_dim);
      const std::vector<double> out = plain_norm_rope(head, nullptr, &rotation);
      rotated.insert(rotated.end(), out.begin(), out.end());
    }
    return rotated;
  };
  const auto expected = finite_differences(x64, dout, evaluate);
  const auto expected_dweight = finite_differences(w64, dout, evaluate);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(din[static_cast<int64_t>(i)], expected[i], kTolerance);
    EXPECT_NEAR(dweight[i], 0.5 + expected_dweight[i], kTolerance);
  }
}

TEST_P(Norm, QkNormRopeBackwardMayOverwriteItsGradient) {
  const int64_t heads = 2, head_dim = 48;
  const auto in = normal_f32(heads * head_dim, 13);
  auto dout = normal_f32(heads * head_dim, 14);
  const auto weight = normal_bf16(head_dim, 15);
  const Rotation rotation(head_dim / 2);
  std::vector<float> dweight(static_cast<size_t>(head_dim)), din(dout.size());
  const auto backward = [&](float* to) {
    kernels().rows.qk_norm_rope_backward(in.data(), heads, head_dim, weight.data(), 1, kEps,
                                         rotation.cos.data(), rotation.sin.data(), dout.data(), to,
                                         dweight.data());
  };
  backward(din.data());
  backward(dout.data());
  EXPECT_EQ(dout, din);
}

TEST_P(Norm, GivesTheBitsOfTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  for (int64_t d : {32, 128, 768}) {
    const auto x = normal_f32(4 * d, 16);
    const auto weight = normal_bf16(d, 17);
    std::vector<Bf16> out(x.size());
    kernels().rows.rmsnorm(x.data(), d, 4, d, weight.data(), kEps, 1.0F, out.data(), d, nullptr);
    hashes[fmt::format("rmsnorm-{}", d)] = bits_hash(out.data(), 4 * d);
  }
  for (int64_t head_dim : {32, 48, 128}) {
    const auto x = normal_f32(4 * head_dim, 18);
    const auto weight = normal_bf16(head_dim, 19);
    const Rotation rotation(head_dim / 2);
    std::vector<Bf16> out(x.size());
    kernels().rows.qk_norm_rope(x.data(), 4, head_dim, weight.data(), 1, kEps, rotation.cos.data(),
                                rotation.sin.data(), out.data());
    hashes[fmt::format("qk_norm_rope-{}", head_dim)] = bits_hash(out.data(), 4 * head_dim);
  }
  testing::expect_golden("norm", hashes);
}

}  // namespace
}  // namespace quads::kernels
