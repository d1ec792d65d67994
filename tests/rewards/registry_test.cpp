// Rewards by name, weighted sums, and what all of them have in common.
#include <gtest/gtest.h>

#include <cmath>

#include "io/test_files.h"
#include "rewards/combined_reward.h"
#include "rewards/exact_reward.h"
#include "rewards/routed_reward.h"

namespace quads {
namespace {

double score_one(Reward& reward, std::string_view response, std::string_view label) {
  const RewardRequest request{.prompt = "p", .response = response, .label = label};
  const std::vector<RewardResult> results = reward.score({&request, 1});
  EXPECT_EQ(results.size(), 1U);
  EXPECT_EQ(results.front().failure, "");
  return results.front().value;
}

// Gives every response the same result, and counts.
class Fixed : public Reward {
 public:
  Fixed(RewardResult result, int& asked) : result_(std::move(result)), asked_(asked) {}
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override {
    asked_ += static_cast<int>(requests.size());
    return std::vector<RewardResult>(requests.size(), result_);
  }

 private:
  RewardResult result_;
  int& asked_;
};

TEST(ExactReward, IsAMatchButForOuterWhiteSpace) {
  const auto reward = make_reward({});
  for (const char* right : {"a b", " a b ", "\ta b\n\n"}) {
    EXPECT_EQ(score_one(*reward, right, " a b\n"), 1.0) << right;
  }
  for (const char* wrong : {"", "a", "ab", "a  b", "A b", "a b$", "a b."}) {
    EXPECT_EQ(score_one(*reward, wrong, "a b"), 0.0) << wrong;
  }
  EXPECT_EQ(score_one(*reward, " ", ""), 1.0);
}

TEST(MakeReward, OneStopTokenIsTakenOffTheEnd) {
  const auto reward = make_reward({.stops = {"", "<end>", "$"}});
  EXPECT_EQ(score_one(*reward, "a b $", "a b"), 1.0);
  EXPECT_EQ(score_one(*reward, "a b<end>", "a b"), 1.0);
  EXPECT_EQ(score_one(*reward, "a b", "a b"), 1.0);
  EXPECT_EQ(score_one(*reward, "a b$$", "a b"), 0.0);
  EXPECT_EQ(score_one(*reward, "$a b", "a b"), 0.0);
  EXPECT_EQ(reward->normal_answer({.prompt = "", .response = " 7 $", .label = "8"}), "7");
}

TEST(MakeReward, NoRequestsGiveNoResults) { EXPECT_TRUE(make_reward({})->score({}).empty()); }

TEST(MakeReward, OptionsAreChecked) {
  const auto message = [](const RewardOptions& options) {
    return error_of([&] { make_reward(options); });
  };
  expect_contains(message({.types = {}}), "no reward is named");
  expect_contains(message({.types = {"exakt"}}), "unknown reward 'exakt'; there are: ");
  expect_contains(message({.types = {"exact", "exact"}}), "'exact' is named twice");
  expect_contains(message({.by_source = {{"x", "exakt"}}}), "--rm-by-source: unknown reward");
  expect_contains(message({.by_problem = {"exakt"}}), "'rm_type': unknown reward 'exakt'");
  expect_contains(message({.weights = {1, 2}}), "2 weights for 1 rewards (exact)");
  expect_contains(message({.weights = {NAN}}), "--rm-weights: nan is not finite");
}

TEST(MakeReward, WeightScalesTheValue) {
  EXPECT_EQ(score_one(*make_reward({.weights = {.25}}), "a", "a"), .25);
}

TEST(OwnReward, MetadataThatNameNoneHaveNone) {
  for (const Json& metadata : {Json::object(), Json{{"data_source", "x"}},
                               Json{{"rm_type", nullptr}}, Json::array(), Json("rm_type")}) {
    EXPECT_EQ(own_reward(&metadata), std::nullopt) << metadata;
  }
  EXPECT_EQ(own_reward(nullptr), std::nullopt);
}

TEST(RewardsOf, TheProblemsOwnNameComesBeforeItsSource) {
  const RewardOptions options{.types = {"exact"}, .by_source = {{"lcb", "code"}}};
  const auto names = [&](const Json& metadata) { return rewards_of(options, &metadata).front(); };
  EXPECT_EQ(rewards_of(options, nullptr).front(), "exact");
  EXPECT_EQ(names({{"data_source", "gsm8k"}}), "exact");
  EXPECT_EQ(names({{"data_source", "lcb"}}), "code");
  EXPECT_EQ(names({{"data_source", "lcb"}, {"rm_type", "math"}}), "math");
  EXPECT_EQ(names({{"data_source", 3}, {"rm_type", nullptr}}), "exact");
  for (const Json& wrong : {Json(5), Json(true), Json::array({"math"}), Json::object()}) {
    expect_contains(error_of([&] {
                      names({{"rm_type", wrong}});
                    }),
                    "expected the name of a reward");
  }
}

TEST(RoutedReward, EachProblemGoesToItsRewardAndComesBackInOrder) {
  int sum = 0, code = 0;
  std::map<std::string, std::shared_ptr<Reward>> named;
  named["code"] = std::make_shared<Fixed>(RewardResult{.value = 3}, code);
  RoutedReward reward(std::make_unique<Fixed>(RewardResult{.value = 1}, sum), std::move(named),
                      {.types = {"exact"}, .by_source = {{"lcb", "code"}}});
  const Json lcb = {{"data_source", "lcb"}}, other = {{"rm_type", "other"}};
  std::vector<RewardRequest> requests(4);
  requests[1].metadata = requests[3].metadata = &lcb;
  std::vector<double> values;
  for (const RewardResult& result : reward.score(requests)) values.push_back(result.value);
  EXPECT_EQ(values, (std::vector<double>{1, 3, 1, 3}));
  EXPECT_EQ(sum, 2);
  EXPECT_EQ(code, 2);
  requests[0].metadata = &other;
  expect_contains(error_of([&] { reward.score(requests); }), "'rm_type' is 'other'");
}

TEST(RoutedReward, AValueThatIsNotFiniteIsNone) {
  for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    int asked = 0;
    RoutedReward reward(std::make_unique<Fixed>(RewardResult{.value = value}, asked), {}, {});
    const RewardRequest request{.prompt = "p"};
    expect_contains(reward.score({&request, 1}).front().failure, "not a finite number");
  }
}

TEST(CombinedReward, AddsUpAndKeepsTheFirstFailureWithItsName) {
  const RewardRequest request{.prompt = "", .response = "a", .label = "a"};
  int asked = 0;
  const auto combined = [&](RewardResult first, RewardResult second, double weight) {
    std::vector<CombinedReward::Part> parts;
    parts.push_back({"one", 1, std::make_unique<Fixed>(std::move(first), asked)});
    parts.push_back({"two", weight, std::make_unique<Fixed>(std::move(second), asked)});
    return CombinedReward(std::move(parts)).score({&request, 1}).front();
  };
  EXPECT_DOUBLE_EQ(combined({.value = .5}, {.value = 2}, .25).value, 1.0);
  EXPECT_EQ(combined({.value = .5}, {.failure = "died"}, 1).failure, "two: died");
  EXPECT_EQ(combined({.failure = "slow"}, {.failure = "died"}, 1).failure, "one: slow");
  asked = 0;
  EXPECT_EQ(combined({.value = .5}, {.failure = "died"}, 0).failure, "");
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace quads
