// Answers compared in process: normal texts, the pairs that are held against math-verify, noise.
#include "rewards/math_compare.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <vector>

#include "io/json.h"
#include "rewards/math_answer.h"

namespace quads {
namespace {

std::vector<Json> pairs() {
  const std::string path = QUADS_SOURCE_DIR "/tests/data/math_pairs.jsonl";
  std::ifstream file(path);
  std::vector<Json> all;
  for (std::string line; std::getline(file, line);) all.push_back(parse_json(line, path));
  return all;
}

TEST(MathCompare, TidiesWhatHasNoMeaning) {
  EXPECT_EQ(tidy_answer(" $ \\dfrac{1}{2} $. "), "\\frac{1}{2}");
  EXPECT_EQ(tidy_answer("\\left( 1,\\,2 \\right)"), "( 1, 2 )");
  EXPECT_EQ(tidy_answer("\\leftarrow \\!x"), "\\leftarrow x");
  EXPECT_EQ(tidy_answer("1{,}000"), "1,000");
  EXPECT_EQ(tidy_answer("\xE2\x88\x92"
                        "5\xC2\xA0"
                        "cm"),
            "-5 cm");
  EXPECT_EQ(tidy_answer("\\approx 5"), "5");
  EXPECT_EQ(tidy_answer("= 5"), "5");
  EXPECT_EQ(tidy_answer("a\\\\ b \\\\,c"), "a\\\\ b \\\\,c");
  EXPECT_EQ(tidy_answer("\t\n x \r\n y\v"), "x y");
  for (const char* empty : {"", " ", "$", "$$", "\\!", "\\ "}) EXPECT_EQ(tidy_answer(empty), "");
  for (const char* kept : {".", "=", "\\", "\xE2", "\xC2"}) EXPECT_EQ(tidy_answer(kept), kept);
}

TEST(MathCompare, GivesEqualAnswersOneNormalText) {
  EXPECT_EQ(normal_answer_text("\\frac{2}{4}"), normal_answer_text("0.50"));
  EXPECT_EQ(normal_answer_text("$1{,}000$"), normal_answer_text("10^3"));
  EXPECT_EQ(normal_answer_text("x = 3"), "x=3");
  EXPECT_EQ(normal_answer_text("( 1 ,  2 )"), normal_answer_text("(1,2)"));
  EXPECT_EQ(normal_answer_text("2 \\pi"), normal_answer_text("2\\pi"));
}

TEST(MathCompare, KeepsDifferentAnswersApartInNormalTexts) {
  EXPECT_NE(normal_answer_text("1 2"), normal_answer_text("12"));
  EXPECT_NE(normal_answer_text("\\pi x"), normal_answer_text("\\pix"));
  EXPECT_NE(normal_answer_text("50\\%"), normal_answer_text("50"));
  EXPECT_NE(normal_answer_text("1. 5"), normal_answer_text("1.5"));
  EXPECT_NE(normal_answer_text("A"), normal_answer_text("a"));
}

TEST(MathCompare, DecidesNoSharedPairWrongly) {
  int decided = 0;
  const std::vector<Json> all = pairs();
  ASSERT_GT(all.size(), 300U);
  for (const Json& pair : all) {
    const auto label = label_answer(pair.at("label").get<std::string_view>());
    const auto answer = response_answer(pair.at("response").get<std::string_view>());
    ASSERT_TRUE(label.has_value()) << pair;
    if (!answer) {
      EXPECT_FALSE(pair.at("expected").get<bool>()) << pair;
      continue;
    }
    const MathVerdict verdict = compare_math_answers(*label, *answer);
    if (verdict == MathVerdict::kUndecided) continue;
    ++decided;
    EXPECT_EQ(verdict == MathVerdict::kEqual, pair.at("expected").get<bool>()) << pair;
  }
  EXPECT_GT(decided, 200);
}

TEST(MathCompare, LeavesToTheAlgebraSystemWhatIsNoNumber) {
  for (const auto& [label, answer] : std::vector<std::pair<const char*, const char*>>{
           {"x+1", "1+x"},
           {"\\{1,2\\}", "\\{2,1\\}"},
           {"2", "\\sqrt{4}"},
           {"3", "x=3"},
           {"2,\\frac{1}{2}", "2\\text{ or }\\frac{1}{2}"},
           {"3", "3/0"},
           {"5", "5 cm"}}) {
    EXPECT_EQ(compare_math_answers(label, answer), MathVerdict::kUndecided) << answer;
  }
}

TEST(MathCompare, ComparesLongAnswersAsTextsOnly) {
  const std::string digits(10'000'000, '7');
  EXPECT_EQ(compare_math_answers(digits, digits), MathVerdict::kEqual);
  EXPECT_EQ(compare_math_answers("7", digits), MathVerdict::kDifferent);
  EXPECT_EQ(compare_math_answers(digits, "7"), MathVerdict::kDifferent);
  EXPECT_EQ(compare_math_answers("7", std::string("7").append(10'000'000, ' ')),
            MathVerdict::kEqual);
  EXPECT_EQ(compare_math_answers("x", std::string(10'000'000, '{')), MathVerdict::kDifferent);
}

// Two random parts of answers, glued: no crash, no undefined behaviour, and an answer is itself.
TEST(MathCompare, HoldsOutAgainstNoise) {
  std::vector<std::string> texts;
  for (const Json& pair : pairs()) {
    texts.push_back(pair.at("label"));
    texts.push_back(pair.at("response"));
  }
  std::mt19937_64 random(1);
  const auto part = [&] {
    const std::string& text = texts[random() % texts.size()];
    const size_t begin = random() % (text.size() + 1);
    return text.substr(begin, random() % 16);
  };
  for (int i = 0; i < 5000; ++i) {
    std::string text = part() + part();
    if (!text.empty() && i % 4 == 0) text[random() % text.size()] = static_cast<char>(random());
    const std::string boxed = "\\boxed{" + text + "}";
    label_answer(text);
    for (const auto& answer : {response_answer(text), response_answer(boxed)}) {
      if (!answer) continue;
      const MathVerdict verdict = compare_math_answers(*answer, *answer);
      EXPECT_EQ(verdict == MathVerdict::kEqual, !normal_answer_text(*answer).empty()) << text;
      compare_math_answers(part(), *answer);
    }
  }
}

}  // namespace
}  // namespace quads
