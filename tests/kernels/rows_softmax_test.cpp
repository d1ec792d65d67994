// Log-softmax, its entropy and gradient, and the router.
#include "kernels/rows_reference.h"
#include "kernels/testing.h"

namespace quads::kernels {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace)

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kSizes[] = {1, 15, 16, 17, 33, 100, 1000};

class Softmax : public EachIsa {};
QUADS_INSTANTIATE_EACH_ISA(Softmax);

TEST_P(Softmax, LogSumExpEqualsTheScalarOrderAndIsAccurate) {
  for (const int64_t n : kSizes) {
    for (const float inv_temperature : {1.0F, 1.0F / 0.7F, 0.25F}) {
      const auto z = normal_f32(n, 100 + n, 6.0F);
      const float got = kernels().rows.log_sum_exp(z.data(), n, inv_temperature);
      EXPECT_EQ(got, reference_log_sum_exp(z, inv_temperature)) << n;
      double sum = 0.0;
      for (const float v : z) sum += std::exp(static_cast<double>(v) * inv_temperature);
      EXPECT_NEAR(got, std::log(sum), 4e-6) << n;
    }
  }
}

TEST_P(Softmax, LogSumExpOfExtremeLogits) {
  const auto lse = [&](const std::vector<float>& z) {
    return kernels().rows.log_sum_exp(z.data(), static_cast<int64_t>(z.size()), 1.0F);
  };
  EXPECT_EQ(lse({3.25F}), 3.25F);
  EXPECT_EQ(lse(std::vector<float>(16, 0.0F)), log_f32(16.0F));
  EXPECT_EQ(lse({1e30F, -1e30F, 0.0F}), 1e30F);
  EXPECT_EQ(lse({-kInf, 2.0F, -kInf}), 2.0F);
  EXPECT_TRUE(std::isnan(lse({-kInf, -kInf})));
  EXPECT_TRUE(std::isnan(lse({1.0F, kInf})));
  std::vector<float> z(40, 1.0F);
  for (const size_t i : {0, 7, 33, 39}) {
    auto with_nan = z;
    with_nan[i] = std::nanf("");
    EXPECT_TRUE(std::isnan(lse(with_nan))) << i;
  }
}

TEST_P(Softmax, EntropyEqualsTheScalarOrderAndIsAccurate) {
  for (const int64_t n : kSizes) {
    auto z = normal_f32(n, 200 + n, 3.0F);
    if (n > 15) z[4] = -kInf;
    const float inv_temperature = 1.25F;
    const float lse = kernels().rows.log_sum_exp(z.data(), n, inv_temperature);
    float lanes[16] = {};
    double want = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const float t = z[i] * inv_temperature;
      const float p = exp_f32(t - lse);
      if (p == 0.0F) continue;
      lanes[i % 16] = std::fma(p, lse - t, lanes[i % 16]);
      want -= std::exp(static_cast<double>(t) - lse) * (static_cast<double>(t) - lse);
    }
    const float got = kernels().rows.entropy(z.data(), n, inv_temperature, lse);
    EXPECT_EQ(got, reduce_sum_16(lanes)) << n;
    EXPECT_NEAR(got, want, 1e-5) << n;
  }
}

TEST_P(Softmax, EntropyOfEqualLogitsIsTheLogOfTheirNumber) {
  const std::vector<float> z(64, -3.0F);
  const float lse = kernels().rows.log_sum_exp(z.data(), 64, 1.0F);
  EXPECT_NEAR(kernels().rows.entropy(z.data(), 64, 1.0F, lse), std::log(64.0), 1e-6);
}

TEST_P(Softmax, BackwardAgreesWithFiniteDifferencesAndTheScalarOrder) {
  for (const int64_t n : kSizes) {
    const auto z = normal_f32(n, 300 + n, 2.0F);
    const float inv_temperature = 0.8F;
    const float dlogp = -1.5F;
    const int64_t target = n / 2;
    const auto f = [&](std::vector<double> x) {
      for (double& v : x) v *= inv_temperature;
      return dlogp * std::log(softmax_f64(x)[target]);
    };
    const float lse = kernels().rows.log_sum_exp(z.data(), n, inv_temperature);
    Poisoned<Bf16> dz(n);
    kernels().rows.log_softmax_backward(z.data(), n, inv_temperature, lse, target, dlogp,
                                        dz.data());
    EXPECT_EQ(dz.unwritten(), 0);
    EXPECT_TRUE(dz.guards_intact());
    for (int64_t i = 0; i < n; ++i) {
      const float p = exp_f32(z[i] * inv_temperature - lse);
      const float c = dlogp * inv_temperature;
      EXPECT_EQ(dz[i], to_bf16(i == target ? c * (1.0F - p) : -c * p)) << n << ", " << i;
      if (n > 100 && i % 37 != 0) continue;
      EXPECT_TRUE(near_bf16(dz[i], finite_difference(f, to_f64(z), i))) << n << ", " << i;
    }
  }
}

TEST_P(Softmax, EqualsTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  for (const int64_t n : {16, 33, 5000}) {
    const auto z = normal_f32(n, 400 + n, 4.0F);
    const float lse = kernels().rows.log_sum_exp(z.data(), n, 1.25F);
    const float entropy = kernels().rows.entropy(z.data(), n, 1.25F, lse);
    std::vector<Bf16> dz(n);
    kernels().rows.log_softmax_backward(z.data(), n, 1.25F, lse, 3, 0.5F, dz.data());
    const auto name = std::to_string(n);
    hashes["log_sum_exp_" + name] = bits_hash(&lse, 1);
    hashes["entropy_" + name] = bits_hash(&entropy, 1);
    hashes["backward_" + name] = bits_hash(dz.data(), n);
  }
  expect_golden("log_softmax", hashes);
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

// By sorting, out of numerics' functions.
Routing reference_route(const std::vector<float>& z, int64_t top_k, bool normalise) {
  const auto n = static_cast<int64_t>(z.size());
  std::vector<int32_t> order(z.size());
  for (int32_t i = 0; i < n; ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return z[a] > z[b]; });
  const float m = largest_of(z);
  const float sum = lane_sum(n, [&](int64_t i) { return exp_f32(z[i] - m); });
  Routing out;
  float chosen = 0.0F;
  for (int64_t s = 0; s < top_k; ++s) {
    out.ids.push_back(order[s]);
    out.weights.push_back(exp_f32(z[order[s]] - m) / sum);
    chosen += out.weights.back();
  }
  if (normalise) {
    for (float& w : out.weights) w = w / chosen;
  }
  return out;
}

class Router : public EachIsa {
 protected:
  Routing run(const std::vector<float>& logits, int64_t experts, int64_t top_k, bool normalise,
              const int32_t* forced = nullptr) const {
    const int64_t rows = static_cast<int64_t>(logits.size()) / experts;
    Poisoned<int32_t> ids(rows * top_k);
    Poisoned<float> weights(rows * top_k);
    // Two columns more a row, which nobody may look at.
    const int64_t ldl = experts + 2;
    std::vector<float> wide(static_cast<size_t>(rows * ldl), 1e30F);
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(logits.begin() + r * experts, experts, wide.begin() + r * ldl);
    }
    kernels().rows.route(wide.data(), ldl, rows, experts, top_k, normalise, forced, ids.data(),
                         weights.data());
    EXPECT_EQ(ids.unwritten() + weights.unwritten(), 0);
    EXPECT_TRUE(ids.guards_intact() && weights.guards_intact());
    return {ids.values(), weights.values()};
  }
};
QUADS_INSTANTIATE_EACH_ISA(Router);

TEST_P(Router, EqualsTheScalarReference) {
  for (const int64_t experts : {1, 4, 8, 15, 17, 60, 128}) {
    for (const int64_t top_k : {int64_t{1}, int64_t{2}, int64_t{8}, experts}) {
      if (top_k > experts) continue;
      const int64_t rows = 6;
      auto z = normal_f32(rows * experts, experts + top_k, 2.0F);
      for (float& v : z) v = std::round(v * 4.0F) / 4.0F;  // with ties
      for (const bool normalise : {false, true}) {
        const Routing got = run(z, experts, top_k, normalise);
        for (int64_t r = 0; r < rows; ++r) {
          const std::vector<float> row(z.begin() + r * experts, z.begin() + (r + 1) * experts);
          const Routing want = reference_route(row, top_k, normalise);
          EXPECT_EQ(std::vector(got.ids.begin() + r * top_k, got.ids.begin() + (r + 1) * top_k),
                    want.ids);
          EXPECT_EQ(
              std::vector(got.weights.begin() + r * top_k, got.weights.begin() + (r + 1) * top_k),
              want.weights);
        }
      }
    }
  }
}

TEST_P(Router, TiesGoToTheLowerIndex) {
  const Routing got = run(std::vector<float>(12, 0.5F), 12, 3, true);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(got.weights[0], got.weights[2]);
}

TEST_P(Router, ForcedExpertsKeepTheirOrderAndGetTheirOwnWeights) {
  const auto z = normal_f32(16, 9);
  const std::vector<int32_t> forced = {11, 2, 5};
  const Routing all = run(z, 16, 16, false);
  const Routing got = run(z, 16, 3, false, forced.data());
  EXPECT_EQ(got.ids, forced);
  for (int s = 0; s < 3; ++s) {
    const auto at = std::find(all.ids.begin(), all.ids.end(), forced[s]) - all.ids.begin();
    EXPECT_EQ(got.weights[s], all.weights[at]);
  }
  const Routing free = run(z, 16, 3, true);
  const Routing replayed = run(z, 16, 3, true, free.ids.data());
  EXPECT_EQ(replayed.weights, free.weights);
}

TEST_P(Router, NonFiniteLogitsGiveValidExpertsAndNanWeights) {
  std::vector<float> z = normal_f32(8, 10);
  z[0] = std::nanf("");
  for (const auto& logits :
       {z, std::vector<float>(8, std::nanf("")), std::vector<float>(8, kInf)}) {
    const Routing got = run(logits, 8, 2, true);
    EXPECT_NE(got.ids[0], got.ids[1]);
    for (int s = 0; s < 2; ++s) {
      EXPECT_TRUE(got.ids[s] >= 0 && got.ids[s] < 8);
      EXPECT_TRUE(std::isnan(got.weights[s]));
    }
  }
}

TEST_P(Router, HugeLogitsChooseOneExpert) {
  const Routing got = run({-1e30F, 3e38F, 0.0F, -3e38F}, 4, 2, true);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(got.weights, (std::vector<float>{1.0F, 0.0F}));
}

TEST_P(Router, BackwardAgreesWithFiniteDifferences) {
  for (const int64_t experts : {4, 8, 17, 60}) {
    for (const bool normalise : {false, true}) {
      const int64_t top_k = 3;
      const auto z = normal_f32(experts, 20 + experts);
      const auto dweights = normal_f32(top_k, 21);
      const Routing routing = run(z, experts, top_k, normalise);
      const auto f = [&](const std::vector<double>& x) {
        const auto p = softmax_f64(x);
        double chosen = 0.0;
        double loss = 0.0;
        for (int64_t s = 0; s < top_k; ++s) chosen += p[routing.ids[s]];
        for (int64_t s = 0; s < top_k; ++s) {
          loss += dweights[s] * p[routing.ids[s]] / (normalise ? chosen : 1.0);
        }
        return loss;
      };
      Poisoned<float> dz(experts);
      kernels().rows.route_backward(z.data(), experts, 1, experts, top_k, normalise,
                                    routing.ids.data(), dweights.data(), dz.data());
      EXPECT_EQ(dz.unwritten(), 0);
      EXPECT_TRUE(dz.guards_intact());
      for (int64_t i = 0; i < experts; ++i) {
        EXPECT_NEAR(dz[i], finite_difference(f, to_f64(z), i), 2e-6) << experts << ", " << i;
      }
    }
  }
}

TEST_P(Router, EqualsTheGoldenFile) {
  std::map<std::string, uint64_t> hashes;
  for (const int64_t experts : {8, 60, 128}) {
    const auto z = normal_f32(10 * experts, 30 + experts);
    const Routing got = run(z, experts, 4, true);
    std::vector<float> dz(10 * experts);
    kernels().rows.route_backward(z.data(), experts, 10, experts, 4, true, got.ids.data(),
                                  got.weights.data(), dz.data());
    const auto name = std::to_string(experts);
    hashes["ids_" + name] = bits_hash(got.ids.data(), 40);
    hashes["weights_" + name] = bits_hash(got.weights.data(), 40);
    hashes["backward_" + name] = bits_hash(dz.data(), 10 * experts);
  }
  expect_golden("route", hashes);
}

}  // namespace
}  // namespace quads::kernels
