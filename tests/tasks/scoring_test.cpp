// Responses are scored with their problem's prompt, label and metadata.
#include "tasks/scoring.h"

#include <gtest/gtest.h>

#include "io/test_files.h"

namespace quads {
namespace {

// Gives as many results as it was told to, each failing with what was asked.
class Echo : public Reward {
 public:
  explicit Echo(size_t missing = 0) : missing_(missing) {}
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override {
    std::vector<RewardResult> results;
    for (const RewardRequest& r : requests.first(requests.size() - missing_)) {
      results.push_back({.failure = fmt::format("{}|{}|{}|{}", r.prompt, r.response, r.label,
                                                r.metadata ? r.metadata->dump() : "none")});
    }
    return results;
  }

 private:
  size_t missing_;
};

TEST(Scoring, EveryResponseGoesWithItsProblem) {
  const std::vector<Problem> problems = {
      {0, "p", "1", std::make_shared<const Json>(Json{{"a", 1}})}, {1, "q", "2"}};
  const std::vector<std::string> responses = {"a", "b", "c", "d"};
  Echo echo;
  const std::vector<RewardResult> results = score_responses(echo, problems, responses);
  ASSERT_EQ(results.size(), 4U);
  EXPECT_EQ(results[1].failure, R"(p|b|1|{"a":1})");
  EXPECT_EQ(results[2].failure, "q|c|2|none");
  EXPECT_TRUE(score_responses(echo, problems, {}).empty());
}

TEST(Scoring, ARewardThatForgetsAResponseIsAnError) {
  const std::vector<Problem> problems = {{0, "p", "1"}};
  const std::vector<std::string> responses = {"a", "b"};
  Echo forgetful(1);
  expect_contains(error_of([&] { score_responses(forgetful, problems, responses); }),
                  "1 results for 2 responses");
  expect_contains(error_of([&] { score_responses(forgetful, {}, responses); }),
                  "2 responses to 0 problems");
}

}  // namespace
}  // namespace quads
