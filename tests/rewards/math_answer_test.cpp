// The final answer in responses and labels, and that hostile ones take linear time.
#include "rewards/math_answer.h"

#include <gtest/gtest.h>

#include <string>

namespace quads {
namespace {

std::string found(std::string_view response) {
  return std::string(response_answer(response).value_or("(none)"));
}

std::string repeated(std::string_view text, size_t times) {
  std::string result;
  result.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) result += text;
  return result;
}

TEST(MathAnswer, IsTheContentOfTheLastBox) {
  EXPECT_EQ(found("\\boxed{5}"), "5");
  EXPECT_EQ(found("$\\boxed{ 5\n}$ and more"), "5");
  EXPECT_EQ(found("\\boxed{4} ... \\boxed{5}"), "5");
  EXPECT_EQ(found("\\boxed{4} ... \\fbox{5}"), "5");
  EXPECT_EQ(found("\\fbox{4} ... \\boxed{5}"), "5");
  EXPECT_EQ(found("\\boxed  {5}"), "5");
  EXPECT_EQ(found("\\boxed{x=\\fbox{5}}"), "5");
  EXPECT_EQ(found("the answer is 4, \\boxed{5}, the answer is 6"), "5");
  EXPECT_EQ(found("\\boxed{5} \\boxedtext{6} \\boxeds"), "5");
}

TEST(MathAnswer, KeepsBracesThatBelongToTheAnswer) {
  EXPECT_EQ(found("\\boxed{\\frac{1}{\\sqrt{2}}} {x}"), "\\frac{1}{\\sqrt{2}}");
  EXPECT_EQ(found("\\boxed{\\left\\{ 1, 2 \\right.}"), "\\left\\{ 1, 2 \\right.");
  EXPECT_EQ(found("\\boxed{a \\\\ b}"), "a \\\\ b");
}

TEST(MathAnswer, EndsAtTheFormulaForABoxWithoutBraces) {
  EXPECT_EQ(found("so $\\boxed 5$ it is"), "5");
  EXPECT_EQ(found("\\boxed5"), "5");
  EXPECT_EQ(found("\\(\\boxed \\frac12\\)."), "\\frac12");
  EXPECT_EQ(found("\\boxed 5.\nBye"), "5");
}

TEST(MathAnswer, IsMissingFromAnEmptyOrUnclosedLastBox) {
  for (const char* response :
       {"", " ", "5", "\\boxed", "\\boxed{}", "\\boxed{ \n}", "\\boxed{5} \\boxed{}", "\\boxed{5",
        "\\boxed{\\frac{1}{2}", "\\boxed{5} \\boxed{6", "\\boxed{5\\}", "\\boxed{\\",
        "the answer is 5, \\boxed{6"}) {
    EXPECT_EQ(found(response), "(none)") << response;
  }
}

TEST(MathAnswer, FollowsTheLastAnswerWordWhereThereIsNoBox) {
  EXPECT_EQ(found("The answer is 5."), "5");
  EXPECT_EQ(found("The answer is 4. No, the ANSWER IS 5!\nBye"), "5!");
  EXPECT_EQ(found("**Answer:** 3.5. Done"), "3.5");
  EXPECT_EQ(found("**Answer**: 5"), "5");
  EXPECT_EQ(found("The answer is: $\\frac{1}{2}$."), "\\frac{1}{2}");
  EXPECT_EQ(found("The final answer is $5$. I hope it is correct."), "5");
  EXPECT_EQ(found("The answer is\n\\[ x\n= 5 \\]\n"), "x\n= 5");
  EXPECT_EQ(found("The answer is $5$ or $6$."), "$5$ or $6$");
  EXPECT_EQ(found("The answer is $1,000"), "$1,000");
  EXPECT_EQ(found("the answer is 5<|im_end|>"), "5");
}

TEST(MathAnswer, IsMissingWhereTheAnswerWordIsAnother) {
  for (const char* response : {"answer", "answer is", "answer: ", "answer 5", "answering: 5",
                               "the answer isn't 5", "answeris 5", "The answer is ."}) {
    EXPECT_EQ(found(response), "(none)") << response;
  }
}

TEST(MathAnswer, OfALabelIsItsBoxOrItsLastMarkOrAllOfIt) {
  EXPECT_EQ(label_answer(" 42\n"), "42");
  EXPECT_EQ(label_answer("Because. $\\boxed{42}$."), "42");
  EXPECT_EQ(label_answer("2 + 40 = 42\n#### 42"), "42");
  EXPECT_EQ(label_answer("#### 42"), "42");
  EXPECT_EQ(label_answer("the answer is 42"), "the answer is 42");
  for (const char* label : {"", " ", "\\boxed{}", "\\boxed{1", "####", "a\n####"}) {
    EXPECT_FALSE(label_answer(label).has_value()) << label;
  }
}

// Quadratic time would take minutes on each of these.
TEST(MathAnswer, TakesLinearTimeOnHostileResponses) {
  constexpr size_t kMany = 200'000;
  for (const char* unit :
       {"\\boxed{", "\\boxed", "\\fbox\\boxed{", "\\boxedx", "\\boxed ", "{", "\\", "answer",
        "answer is ", "Answer: $", "answer * * * ", "answer is\n"}) {
    response_answer(repeated(unit, kMany));
    label_answer(repeated(unit, kMany));
  }
  const std::string deep = repeated("{", kMany) + repeated("}", kMany);
  EXPECT_EQ(found("\\boxed{" + deep + "}"), deep);
  EXPECT_EQ(found("\\boxed{" + std::string(10'000'000, '1') + "}").size(), 10'000'000U);
}

}  // namespace
}  // namespace quads
