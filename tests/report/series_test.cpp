// Curves and figures over seeds.
#include "report/series.h"

#include <gtest/gtest.h>

#include <cmath>

#include "report/charts.h"
#include "report/summary.h"

namespace quads {
namespace {

using Values = std::vector<std::pair<int64_t, double>>;

quads::Run run_of(const std::string& key, const Values& values) {
  quads::Run run;
  for (const auto& [step, value] : values) run.lines.push_back({step, {{key, value}}});
  return run;
}

TEST(Smooth, IsAnAverageWithoutTheBiasOfTheStart) {
  const auto smoothed = smooth({{0, 1}, {1, 0}, {2, 4}}, 0.5);
  EXPECT_DOUBLE_EQ(smoothed[0].value, 1);
  EXPECT_DOUBLE_EQ(smoothed[1].value, 0.5 / 1.5);
  EXPECT_DOUBLE_EQ(smoothed[2].value, (0.25 * 1 + 4) / 1.75);
  EXPECT_EQ(smoothed[2].step, 2);
}

TEST(Smooth, KeepsAConstantAndDoesNothingWithoutDecay) {
  for (const auto& point : smooth({{0, 0.3}, {1, 0.3}, {2, 0.3}}, 0.9)) {
    EXPECT_NEAR(point.value, 0.3, 1e-15);
  }
  EXPECT_EQ(smooth({{0, 1}, {1, 7}}, 0)[1].value, 7);
  EXPECT_TRUE(smooth({}, 0.9).empty());
}

TEST(Series, LeavesOutMissingAndNonFiniteValues) {
  quads::Run run = run_of("a", {{0, 1}, {1, std::nan("")}, {2, HUGE_VAL}, {3, 2}});
  run.lines.push_back({4, {{"b", 1}}});
  const auto points = series(run, "a");
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[1].step, 3);
}

TEST(Curve, IsMeanAndRangeOfTheRunsThatHaveTheStep) {
  const RunGroup group = {"x",
                          {run_of("a", {{0, 1}, {10, 2}}), run_of("a", {{0, 3}}), quads::Run{}}};
  const auto points = curve(group, "a");
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0].mean, 2);
  EXPECT_EQ(points[0].min, 1);
  EXPECT_EQ(points[0].max, 3);
  EXPECT_EQ(points[0].n, 2);
  EXPECT_EQ(points[1].mean, 2);
  EXPECT_EQ(points[1].n, 1);
  EXPECT_TRUE(curve(group, "none").empty());
}

CurvePoint point_of(double value) { return {0, value, value, value, 1}; }

TEST(LogAxis, GivesZeroAPlaceADecadeBelowTheSmallestValue) {
  const LogAxis axis = log_axis({{point_of(0), point_of(0.06)}, {point_of(11)}});
  EXPECT_TRUE(axis.has_zero);
  EXPECT_DOUBLE_EQ(axis.min, 1e-3);
  EXPECT_DOUBLE_EQ(axis.max, 100);
  EXPECT_EQ(axis.place(0), axis.min);
  EXPECT_EQ(axis.place(0.06), 0.06);
}

TEST(LogAxis, WithoutZerosSpansTheValues) {
  const LogAxis axis = log_axis({{point_of(0.06), point_of(0.5)}});
  EXPECT_FALSE(axis.has_zero);
  EXPECT_DOUBLE_EQ(axis.min, 0.01);
  EXPECT_DOUBLE_EQ(axis.max, 1);
}

TEST(LogAxis, IsNeverEmpty) {
  for (const LogAxis& axis : {log_axis({}), log_axis({{point_of(0)}}), log_axis({{point_of(1)}})}) {
    EXPECT_GT(axis.min, 0);
    EXPECT_GE(axis.max, axis.min * 10);
  }
  EXPECT_TRUE(log_axis({{point_of(0)}}).has_zero);
}

TEST(SpreadOf, IsTheSampleStandardDeviation) {
  const Spread spread = spread_of({1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(spread.mean, 2.5);
  EXPECT_DOUBLE_EQ(spread.std, std::sqrt(5.0 / 3));
  EXPECT_EQ(spread_of({7}).std, 0);
  EXPECT_EQ(spread_of({}).n(), 0);
  EXPECT_EQ(spread_of({}).mean, 0);
}

TEST(Summarize, TakesTheLastTenStepsTheLastEvaluationAndTheMedianSpeed) {
  quads::Run run;
  run.seed = "1";
  for (int step = 0; step < 20; ++step) {
    MetricsLine line{step,
                     {{"reward/mean", step < 10 ? 100.0 : step},
                      {"gap/max", step == 4 ? 0.5 : 0.0},
                      {"perf/rollout_tokens_per_s", step == 0 ? 1.0 : 500.0}}};
    if (step == 5) line.values["eval/pass@1"] = 0.2;
    if (step == 15) line.values["eval/pass@1"] = 0.8;
    run.lines.push_back(line);
  }
  quads::Run other = run;
  other.seed = "2";
  other.lines.resize(6);
  const Summary summary = summarize({"quads", {run, other, quads::Run{}}});
  EXPECT_EQ(summary.seeds, (std::vector<std::string>{"1", "2", ""}));
  EXPECT_EQ(summary.min_steps, 0);
  EXPECT_EQ(summary.max_steps, 20);
  EXPECT_EQ(summary.pass_at_1.values, (std::vector<double>{0.8, 0.2}));
  EXPECT_EQ(summary.reward.values, (std::vector<double>{14.5, 100}));
  EXPECT_EQ(summary.gap_max.values, (std::vector<double>{0, 0.5 / 6}));
  EXPECT_EQ(summary.tokens_per_s.mean, 500);
  EXPECT_EQ(summary.gap_steps, 26);
  EXPECT_EQ(summary.gap_zero_steps, 24);
}

TEST(Summarize, ANonFiniteGapIsAStepThatIsNotZero) {
  const Summary summary = summarize({"x", {run_of("gap/max", {{0, 0}, {1, std::nan("")}})}});
  EXPECT_EQ(summary.gap_steps, 2);
  EXPECT_EQ(summary.gap_zero_steps, 1);
}

}  // namespace
}  // namespace quads
