// maj@k on votes by hand.
#include "eval/majority.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace quads {
namespace {

Vote vote(const char* answer, bool right) { return {.answer = answer, .right = right}; }

TEST(Majority, TheMostFrequentAnswerDecides) {
  const std::vector<Vote> votes = {vote("1", false), vote("2", true), vote("2", true),
                                   vote("3", false)};
  EXPECT_EQ(majority_at_k(votes, 4), 1.0);
  const std::vector<Vote> wrong = {vote("1", false), vote("1", false), vote("2", true)};
  EXPECT_EQ(majority_at_k(wrong, 3), 0.0);
}

TEST(Majority, EquallyFrequentAnswersShare) {
  EXPECT_EQ(majority_at_k(std::vector{vote("1", false), vote("2", true)}, 2), .5);
  EXPECT_EQ(majority_at_k(std::vector{vote("1", false), vote("2", true), vote("3", true)}, 3),
            2.0 / 3.0);
}

TEST(Majority, BlocksAreAveragedAndWhatIsLeftOverIsNotUsed) {
  const std::vector<Vote> votes = {vote("1", false), vote("1", false), vote("2", true),
                                   vote("2", true), vote("2", true)};
  EXPECT_EQ(majority_at_k(votes, 2), .5);
  EXPECT_EQ(majority_at_k(votes, 1), .6);
}

TEST(Majority, WithoutAnAnswerThereIsNoVote) {
  const std::vector<Vote> votes = {Vote{}, Vote{}, vote("2", true)};
  EXPECT_EQ(majority_at_k(votes, 3), 1.0);
  EXPECT_EQ(majority_at_k(std::vector<Vote>(3), 3), 0.0);
}

TEST(Majority, KMustBeWithinTheVotes) {
  EXPECT_THROW(majority_at_k(std::vector<Vote>(3), 4), Error);
  EXPECT_THROW(majority_at_k(std::vector<Vote>(3), 0), Error);
  EXPECT_THROW(majority_at_k({}, 1), Error);
}

}  // namespace
}  // namespace quads
