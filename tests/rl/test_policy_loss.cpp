// The policy loss by hand, its gradient by finite differences, and its behaviour at the edges.
#include <gtest/gtest.h>

#include <cmath>
#include <ios>
#include <string>
#include <tuple>
#include <vector>

#include "rl/expect_error.h"
#include "rl/policy_loss.h"

namespace quads {
namespace {

/// Owns the arrays of a PolicyBatch.
struct Arrays {
  std::vector<float> logprobs = {}, old = {}, rollout = {}, ref = {}, advantages = {};
  std::vector<int32_t> offsets = {};

  PolicyBatch batch() const {
    PolicyBatch batch;
    batch.logprobs = logprobs;
    batch.old_logprobs = old;
    batch.rollout_logprobs = rollout;
    batch.ref_logprobs = ref;
    batch.sequence_advantages = advantages;
    batch.sequence_offsets = offsets;
    return batch;
  }
  GlobalBatchSize size() const {
    return {static_cast<int64_t>(logprobs.size()), static_cast<int64_t>(offsets.size()) - 1};
  }
};

/// Three sequences of 3, 1 and 4 tokens on a grid of 1/4096, so that steps of 1/1024 are exact in
/// FP32; some ratios inside the clip range and some outside, on either side, for both signs of the
/// advantage. No ratio or weight is within a step of a bound.
Arrays example() {
  const std::vector<float> delta{100, -1400, 1500, 300, -400, 1700, -2000, 150};
  const std::vector<float> off_policy{200, -900, 3100, 40, -300, 0, 1000, -3500};
  const std::vector<float> ref{-500, 800, 2500, -60, 0, 700, -1200, 3000};
  Arrays arrays;
  for (size_t t = 0; t < delta.size(); ++t) {
    const float old = -1.0F - 0.25F * static_cast<float>(t);
    arrays.old.push_back(old);
    arrays.logprobs.push_back(old + delta[t] / 4096);
    arrays.rollout.push_back(old - off_policy[t] / 4096);
    arrays.ref.push_back(old + ref[t] / 4096);
  }
  arrays.advantages = {1.5F, -0.75F, -1.25F};
  arrays.offsets = {0, 3, 4, 8};
  return arrays;
}

void expect_gradient_of_finite_differences(const Arrays& arrays, const PolicyLossOptions& options) {
  constexpr float kStep = 1.0F / 1024;
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), options);
  for (size_t t = 0; t < arrays.logprobs.size(); ++t) {
    Arrays up = arrays, down = arrays;
    up.logprobs[t] += kStep;
    down.logprobs[t] -= kStep;
    const double slope = (policy_loss(up.batch(), up.size(), options).loss -
                          policy_loss(down.batch(), down.size(), options).loss) /
                         (2.0 * kStep);
    EXPECT_NEAR(result.grad[t], slope, 2e-6 * std::max(1.0, std::abs(slope))) << "token " << t;
  }
}

TEST(PolicyLoss, OneTokenByHand) {
  Arrays arrays{.logprobs = {-1}, .old = {-1.125}, .advantages = {2}, .offsets = {0, 1}};
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), {});
  EXPECT_NEAR(result.loss, -2 * std::exp(0.125), 1e-14);
  EXPECT_FLOAT_EQ(result.grad[0], static_cast<float>(-2 * std::exp(0.125)));
  EXPECT_EQ(result.stats.num_clipped, 0);
  EXPECT_NEAR(result.stats.ratio_mean(), std::exp(0.125), 1e-15);
  EXPECT_NEAR(result.stats.approx_kl(), std::exp(0.125) - 1.125, 1e-15);
}

TEST(PolicyLoss, OnPolicyIsMinusTheMeanAdvantage) {
  Arrays arrays = example();
  arrays.logprobs = arrays.old;
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), {});
  EXPECT_DOUBLE_EQ(result.loss, -(1.5 - 0.75 - 1.25) / 3);
  EXPECT_FLOAT_EQ(result.grad[0], -1.5F / 9);
  EXPECT_FLOAT_EQ(result.grad[3], 0.75F / 3);
  EXPECT_FLOAT_EQ(result.grad[7], 1.25F / 12);
  EXPECT_EQ(result.stats.clip_fraction(), 0.0);
  EXPECT_EQ(result.stats.ratio_mean(), 1.0);
  EXPECT_EQ(result.stats.ratio_max, 1.0);
  EXPECT_EQ(result.stats.approx_kl(), 0.0);
  EXPECT_EQ(result.stats.effective_sample_size(), 1.0);
}

TEST(PolicyLoss, ClipsOnlyWhereThePessimisticBoundIs) {
  // Ratios e^.5, e^-.5 with A > 0 and the same with A < 0.
  Arrays arrays{.logprobs = {-1, -2, -1, -2},
                .old = {-1.5, -1.5, -1.5, -1.5},
                .advantages = {1, -1},
                .offsets = {0, 2, 4}};
  const PolicyLossOptions options{.eps_clip_high = 0.28};
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_NEAR(result.loss, (-1.28 - std::exp(-0.5) + std::exp(0.5) + 0.8) / 4, 1e-14);
  EXPECT_EQ(result.grad[0], 0.0F);
  EXPECT_FLOAT_EQ(result.grad[1], static_cast<float>(-std::exp(-0.5) / 4));
  EXPECT_FLOAT_EQ(result.grad[2], static_cast<float>(std::exp(0.5) / 4));
  EXPECT_EQ(result.grad[3], 0.0F);
  EXPECT_EQ(result.stats.clip_fraction(), 0.5);
}

TEST(PolicyLoss, AggregationsWeighTokensAsDefined) {
  Arrays arrays = example();
  arrays.logprobs = arrays.old;
  PolicyLossOptions options{.aggregation = LossAggregation::kTokenMean};
  EXPECT_NEAR(policy_loss(arrays.batch(), arrays.size(), options).loss,
              -(3 * 1.5 - 0.75 - 4 * 1.25) / 8, 1e-15);
  options.aggregation = LossAggregation::kConstant;
  options.max_response_length = 10;
  EXPECT_NEAR(policy_loss(arrays.batch(), arrays.size(), options).loss,
              -(3 * 1.5 - 0.75 - 4 * 1.25) / 30, 1e-15);
}

TEST(PolicyLoss, GspoClipsTheGeometricMeanOfTheSequence) {
  Arrays arrays{.logprobs = {-1, -1, -1, -1},
                .old = {-1.25, -0.875, -1.5, -1.5},
                .advantages = {1, 1},
                .offsets = {0, 2, 4}};
  const PolicyLossOptions options{.ratio_level = RatioLevel::kSequence};
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), options);
  const double ratio = std::exp(0.0625);  // mean of 0.25 and -0.125; the other is e^.5, clipped
  EXPECT_NEAR(result.loss, (-ratio - 1.2) / 2, 1e-14);
  EXPECT_FLOAT_EQ(result.grad[0], static_cast<float>(-ratio / 4));
  EXPECT_FLOAT_EQ(result.grad[1], static_cast<float>(-ratio / 4));
  EXPECT_EQ(result.grad[2], 0.0F);
  EXPECT_EQ(result.stats.clip_fraction(), 0.5);
}

TEST(PolicyLoss, KlEstimatorsByHand) {
  Arrays arrays{.logprobs = {-1}, .old = {-1}, .ref = {-1.5}, .advantages = {0}, .offsets = {0, 1}};
  const auto term = [&](KlEstimator estimator) {
    const PolicyLoss result =
        policy_loss(arrays.batch(), arrays.size(), {.kl_estimator = estimator, .kl_coef = 0.1});
    EXPECT_DOUBLE_EQ(result.loss, 0.1 * result.kl_loss);
    EXPECT_DOUBLE_EQ(result.stats.ref_kl(), result.kl_loss);
    return std::pair(result.kl_loss, result.grad[0]);
  };
  const auto [k1, k1_grad] = term(KlEstimator::kK1);
  EXPECT_DOUBLE_EQ(k1, 0.5);
  EXPECT_FLOAT_EQ(k1_grad, 0.1F);
  const auto [k2, k2_grad] = term(KlEstimator::kK2);
  EXPECT_DOUBLE_EQ(k2, 0.125);
  EXPECT_FLOAT_EQ(k2_grad, 0.05F);
  const auto [k3, k3_grad] = term(KlEstimator::kK3);
  EXPECT_NEAR(k3, std::exp(-0.5) - 0.5, 1e-15);
  EXPECT_FLOAT_EQ(k3_grad, static_cast<float>(0.1 * (1 - std::exp(-0.5))));
}

TEST(PolicyLoss, LowVarianceKlStopsAtTen) {
  Arrays arrays{.logprobs = {-9}, .old = {-9}, .ref = {-1}, .advantages = {0}, .offsets = {0, 1}};
  PolicyLossOptions options{.kl_estimator = KlEstimator::kLowVariance, .kl_coef = 1};
  const PolicyLoss clamped = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_EQ(clamped.kl_loss, 10.0);
  EXPECT_EQ(clamped.grad[0], 0.0F);
  options.kl_estimator = KlEstimator::kK3;
  EXPECT_NEAR(policy_loss(arrays.batch(), arrays.size(), options).kl_loss, std::exp(8) - 9, 1e-9);
}

TEST(PolicyLoss, K3HasNoGradientBeyondTheClampOfItsLogRatio) {
  for (float ref : {-0.0F, -50.0F}) {
    Arrays arrays{
        .logprobs = {-25}, .old = {-25}, .ref = {ref}, .advantages = {0}, .offsets = {0, 1}};
    const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), {.kl_coef = 1});
    const double clamped = ref > -25 ? 20 : -20;
    EXPECT_NEAR(result.kl_loss, std::exp(clamped) - 1 - clamped, 1e-6);
    EXPECT_EQ(result.grad[0], 0.0F);
  }
}

TEST(PolicyLoss, CorrectionWeighsThePolicyTermAndMisMasksTheKlToo) {
  // w = 1 and e^2.
  Arrays arrays{.logprobs = {-1, -1},
                .old = {-1, -1},
                .rollout = {-1, -3},
                .ref = {-2, -2},
                .advantages = {1},
                .offsets = {0, 2}};
  PolicyLossOptions options{.kl_estimator = KlEstimator::kK1, .kl_coef = 1};
  options.correction = default_correction(CorrectionKind::kTis);
  const PolicyLoss tis = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_DOUBLE_EQ(tis.policy_loss, -(1 + 2) / 2.0);
  EXPECT_DOUBLE_EQ(tis.kl_loss, 1.0);
  EXPECT_EQ(tis.stats.truncated_fraction(), 0.5);
  EXPECT_DOUBLE_EQ(tis.stats.weight_mean(), 1.5);
  EXPECT_DOUBLE_EQ(tis.stats.effective_sample_size(), 9.0 / (2 * 5));

  options.correction = default_correction(CorrectionKind::kMis);
  const PolicyLoss mis = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_DOUBLE_EQ(mis.policy_loss, -0.5);  // the masked token still counts in the denominator
  EXPECT_DOUBLE_EQ(mis.kl_loss, 0.5);
  EXPECT_EQ(mis.grad[1], 0.0F);
  EXPECT_EQ(mis.stats.masked_fraction(), 0.5);
  EXPECT_DOUBLE_EQ(mis.stats.effective_sample_size(), 0.5);

  options.correction = default_correction(CorrectionKind::kIcePop);
  const PolicyLoss icepop = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_DOUBLE_EQ(icepop.policy_loss, -0.5);
  EXPECT_DOUBLE_EQ(icepop.kl_loss, 1.0);
}

TEST(PolicyLoss, AllMaskedGivesNoPolicyLoss) {
  Arrays arrays{
      .logprobs = {-1}, .old = {-1}, .rollout = {-9}, .advantages = {1}, .offsets = {0, 1}};
  PolicyLossOptions options;
  options.correction = default_correction(CorrectionKind::kIcePop);
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_EQ(result.loss, 0.0);
  EXPECT_EQ(result.grad[0], 0.0F);
  EXPECT_EQ(result.stats.effective_sample_size(), 0.0);
}

using Case = std::tuple<RatioLevel, LossAggregation, KlEstimator, CorrectionKind, CorrectionLevel>;

class PolicyLossGradient : public testing::TestWithParam<Case> {};

TEST_P(PolicyLossGradient, EqualsFiniteDifferences) {
  const auto [ratio, aggregation, kl, correction, level] = GetParam();
  if (correction == CorrectionKind::kIcePop && level != CorrectionLevel::kToken) return;
  PolicyLossOptions options{.ratio_level = ratio,
                            .eps_clip = 0.2,
                            .eps_clip_high = 0.28,
                            .aggregation = aggregation,
                            .max_response_length = 16,
                            .kl_estimator = kl,
                            .kl_coef = 0.3};
  options.correction = default_correction(correction, level);
  expect_gradient_of_finite_differences(example(), options);
}

INSTANTIATE_TEST_SUITE_P(
    All, PolicyLossGradient,
    testing::Combine(testing::Values(RatioLevel::kToken, RatioLevel::kSequence),
                     testing::Values(LossAggregation::kTokenMean, LossAggregation::kSequenceMean,
                                     LossAggregation::kConstant),
                     testing::Values(KlEstimator::kK1, KlEstimator::kK2, KlEstimator::kK3,
                                     KlEstimator::kLowVariance),
                     testing::Values(CorrectionKind::kNone, CorrectionKind::kTis,
                                     CorrectionKind::kMis, CorrectionKind::kIcePop),
                     testing::Values(CorrectionLevel::kToken, CorrectionLevel::kSequence,
                                     CorrectionLevel::kGeometric)));

TEST(PolicyLoss, GspoGradientHoldsForAdvantagesPerToken) {
  Arrays arrays = example();
  const std::vector<float> advantages{1, -2, 0.5, 1, 0, -1, 2, -0.5};
  const auto batch = [&](const Arrays& a) {
    PolicyBatch batch = a.batch();
    batch.sequence_advantages = {};
    batch.token_advantages = advantages;
    return batch;
  };
  for (RatioLevel ratio : {RatioLevel::kToken, RatioLevel::kSequence}) {
    const PolicyLossOptions options{.ratio_level = ratio};
    const PolicyLoss result = policy_loss(batch(arrays), arrays.size(), options);
    for (size_t t = 0; t < arrays.logprobs.size(); ++t) {
      Arrays up = arrays, down = arrays;
      up.logprobs[t] += 0x1p-10F;
      down.logprobs[t] -= 0x1p-10F;
      const double slope = (policy_loss(batch(up), up.size(), options).loss -
                            policy_loss(batch(down), down.size(), options).loss) /
                           0x1p-9;
      EXPECT_NEAR(result.grad[t], slope, 2e-6) << "token " << t;
    }
  }
}

TEST(PolicyLoss, MicroBatchesAddUpToTheGlobalBatch) {
  const Arrays whole = example();
  Arrays first = whole, second = whole;
  const auto cut = [](std::vector<float>& values, size_t begin, size_t end) {
    values = std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(begin),
                                values.begin() + static_cast<std::ptrdiff_t>(end));
  };
  for (auto member : {&Arrays::logprobs, &Arrays::old, &Arrays::rollout, &Arrays::ref}) {
    cut(first.*member, 0, 4);
    cut(second.*member, 4, 8);
  }
  cut(first.advantages, 0, 2);
  cut(second.advantages, 2, 3);
  first.offsets = {0, 3, 4};
  second.offsets = {0, 4};
  for (LossAggregation aggregation :
       {LossAggregation::kTokenMean, LossAggregation::kSequenceMean, LossAggregation::kConstant}) {
    PolicyLossOptions options{.aggregation = aggregation, .max_response_length = 7, .kl_coef = 0.5};
    options.correction = default_correction(CorrectionKind::kTis);
    const PolicyLoss expected = policy_loss(whole.batch(), whole.size(), options);
    const PolicyLoss a = policy_loss(first.batch(), whole.size(), options);
    const PolicyLoss b = policy_loss(second.batch(), whole.size(), options);
    EXPECT_NEAR(a.loss + b.loss, expected.loss, 1e-14);
    std::vector<float> grad = a.grad;
    grad.insert(grad.end(), b.grad.begin(), b.grad.end());
    EXPECT_EQ(grad, expected.grad);
    PolicyLossStats stats = a.stats;
    stats.merge(b.stats);
    EXPECT_EQ(stats.clip_fraction(), expected.stats.clip_fraction());
    EXPECT_EQ(stats.truncated_fraction(), expected.stats.truncated_fraction());
    EXPECT_EQ(stats.ratio_max, expected.stats.ratio_max);
    EXPECT_NEAR(stats.ratio_mean(), expected.stats.ratio_mean(), 1e-14);
    EXPECT_NEAR(stats.approx_kl(), expected.stats.approx_kl(), 1e-14);
    EXPECT_NEAR(stats.ref_kl(), expected.stats.ref_kl(), 1e-14);
    EXPECT_NEAR(stats.effective_sample_size(), expected.stats.effective_sample_size(), 1e-14);
  }
}

TEST(PolicyLoss, StaysFiniteForExtremeRatios) {
  Arrays arrays{.logprobs = {0, -1e30F, 0, -1e30F},
                .old = {-1e30F, 0, -1e30F, 0},
                .rollout = {0, 0, 0, -3e38F},
                .ref = {-1e30F, 0, 0, 0},
                .advantages = {1, -1},
                .offsets = {0, 2, 4}};
  for (RatioLevel ratio : {RatioLevel::kToken, RatioLevel::kSequence}) {
    for (KlEstimator kl : {KlEstimator::kK1, KlEstimator::kK3, KlEstimator::kLowVariance}) {
      PolicyLossOptions options{.ratio_level = ratio, .kl_estimator = kl, .kl_coef = 1};
      options.correction = {CorrectionKind::kTis, CorrectionLevel::kToken, 0, 1e300};
      const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), options);
      EXPECT_TRUE(std::isfinite(result.loss));
      for (float value : result.grad) EXPECT_TRUE(std::isfinite(value)) << value;
      EXPECT_TRUE(std::isfinite(result.stats.ratio_mean()));
      EXPECT_TRUE(std::isfinite(result.stats.approx_kl()));
    }
  }
}

TEST(PolicyLoss, GradientIsZeroBeyondTheClampOfTheRatio) {
  Arrays arrays{.logprobs = {0}, .old = {-20.5}, .advantages = {-1}, .offsets = {0, 1}};
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), {});
  EXPECT_NEAR(result.loss, std::exp(20), 1e-6);
  EXPECT_EQ(result.grad[0], 0.0F);
}

TEST(PolicyLoss, OfNoTokensIsZero) {
  for (std::vector<int32_t> offsets : {std::vector<int32_t>{0}, std::vector<int32_t>{0, 0}}) {
    Arrays arrays{.advantages = std::vector<float>(offsets.size() - 1, 1.0F), .offsets = offsets};
    const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), {});
    EXPECT_EQ(result.loss, 0.0);
    EXPECT_TRUE(result.grad.empty());
    EXPECT_EQ(result.stats.clip_fraction(), 0.0);
    EXPECT_EQ(result.stats.effective_sample_size(), 1.0);
  }
}

TEST(PolicyLoss, HasTheSameBitsOnEveryMachine) {
  PolicyLossOptions options{.eps_clip_high = 0.28, .kl_coef = 0.1};
  options.correction = default_correction(CorrectionKind::kTis);
  const Arrays arrays = example();
  const PolicyLoss result = policy_loss(arrays.batch(), arrays.size(), options);
  EXPECT_EQ(result.loss, -0x1.a94b31fd7d352p-6) << std::hexfloat << result.loss;
  EXPECT_EQ(result.stats.approx_kl_sum, 0x1.5a25eb2be32a1p-2)
      << std::hexfloat << result.stats.approx_kl_sum;
}

TEST(PolicyLoss, EmptySequenceCountsAsASequence) {
  Arrays arrays{.logprobs = {-1}, .old = {-1}, .advantages = {5, 1}, .offsets = {0, 0, 1}};
  EXPECT_DOUBLE_EQ(policy_loss(arrays.batch(), arrays.size(), {}).loss, -0.5);
}

TEST(PolicyLoss, DoesNotReadTheReferenceWithoutACoefficient) {
  Arrays arrays = example();
  arrays.ref.clear();
  arrays.rollout.clear();
  EXPECT_EQ(policy_loss(arrays.batch(), arrays.size(), {}).kl_loss, 0.0);
}

TEST(PolicyLoss, NamesWhatIsWrongWithTheBatch) {
  const auto error = [](auto change) {
    Arrays arrays = example();
    GlobalBatchSize size = arrays.size();
    PolicyLossOptions options{.kl_coef = 1};
    change(arrays, size, options);
    return error_of([&] { policy_loss(arrays.batch(), size, options); });
  };
  using A = Arrays&;
  using S = GlobalBatchSize&;
  using O = PolicyLossOptions&;
  EXPECT_EQ(error([](A a, S, O) { a.logprobs[2] = std::nanf(""); }),
            "logprobs: token 2 is nan, expected a finite value");
  EXPECT_EQ(error([](A a, S, O) { a.old[7] = -INFINITY; }),
            "old_logprobs: token 7 is -inf, expected a finite value");
  EXPECT_EQ(error([](A a, S, O) { a.ref[0] = INFINITY; }),
            "ref_logprobs: token 0 is inf, expected a finite value");
  EXPECT_EQ(error([](A a, S, O) { a.advantages[1] = std::nanf(""); }),
            "sequence_advantages: sequence 1 is nan, expected a finite value");
  EXPECT_EQ(error([](A a, S, O) { a.old.pop_back(); }), "old_logprobs: 7 values, expected 8");
  EXPECT_EQ(error([](A a, S, O) { a.ref.clear(); }), "ref_logprobs: 0 values, expected 8");
  EXPECT_EQ(error([](A a, S, O) { a.advantages.pop_back(); }),
            "sequence_advantages: 2 values, expected 3");
  EXPECT_EQ(error([](A a, S, O) { a.offsets = {}; }),
            "sequence_offsets: empty, expected num_sequences + 1 values");
  EXPECT_EQ(error([](A a, S, O) {
              a.offsets = {1, 3, 4, 8};
            }),
            "sequence_offsets: starts at 1, expected 0");
  EXPECT_EQ(error([](A a, S, O) {
              a.offsets = {0, 5, 4, 8};
            }),
            "sequence_offsets: entry 2 is 4, less than 5 before it");
  EXPECT_EQ(error([](A a, S, O) {
              a.offsets = {0, 3, 4, 9};
            }),
            "sequence_offsets: ends at 9, expected 8 (the number of tokens)");
  EXPECT_EQ(error([](A, S s, O) { s.num_tokens = 7; }),
            "global batch of 7 tokens in 3 sequences is smaller than this micro-batch of 8 in 3");
  EXPECT_EQ(error([](A, S, O o) { o.aggregation = LossAggregation::kConstant; }),
            "max_response_length is 0, expected at least 1 for the constant aggregation");
  EXPECT_EQ(error([](A, S, O o) {
              o.aggregation = LossAggregation::kConstant;
              o.max_response_length = 3;
            }),
            "a response of 4 tokens is longer than max_response_length 3");
  EXPECT_EQ(error([](A, S, O o) { o.eps_clip = 1; }), "--eps-clip is 1, expected 0 <= x < 1");
  EXPECT_EQ(error([](A, S, O o) { o.eps_clip_high = -0.1; }),
            "--eps-clip-high is -0.1, expected a finite value of at least 0");
  EXPECT_EQ(error([](A, S, O o) { o.kl_coef = -1; }),
            "--kl-loss-coef is -1, expected a finite value of at least 0");
}

TEST(PolicyLoss, RefusesTwoKindsOfAdvantages) {
  const Arrays arrays = example();
  PolicyBatch batch = arrays.batch();
  batch.token_advantages = arrays.logprobs;
  expect_error([&] { policy_loss(batch, arrays.size(), {}); }, "expected one of them");
}

}  // namespace
}  // namespace quads
