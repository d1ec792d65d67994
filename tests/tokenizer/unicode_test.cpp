// UTF-8 scanning and normal forms on hostile input.
#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

#include "tokenizer/utf8.h"

namespace quads {
namespace {

using Kind = Utf8Sequence::Kind;

TEST(Utf8, LengthsFollowTheStandard) {
  EXPECT_EQ(utf8_length("a", 0), 1U);
  EXPECT_EQ(utf8_length("é", 0), 2U);
  EXPECT_EQ(utf8_length("€", 0), 3U);
  EXPECT_EQ(utf8_length("😀", 0), 4U);
  for (const std::string_view bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xc3(", "\xff"}) {
    EXPECT_EQ(utf8_length(bad, 0), 0U);
  }
}

TEST(Utf8, AnInvalidSequenceIsAsLongAsWhatOneReplacementStandsFor) {
  const auto check = [](std::string_view text, Kind kind, size_t length) {
    const Utf8Sequence sequence = utf8_sequence(text, 0);
    EXPECT_EQ(sequence.kind, kind);
    EXPECT_EQ(sequence.length, length);
  };
  check("\xf0\x9f\x98", Kind::kCut, 3);
  check("\xf0\x9f\x98x", Kind::kInvalid, 3);
  check("\xf0\x9f\x98\x80", Kind::kValid, 4);
  check("\xf0\x80\x80\x80", Kind::kInvalid, 1);
  check("\xe2", Kind::kCut, 1);
  check("\xed\xa0\x80", Kind::kInvalid, 1);
  check("\x80", Kind::kInvalid, 1);
  check("\xff", Kind::kInvalid, 1);
}

TEST(Utf8, CodePointsGoBothWays) {
  for (const char32_t c : {U'\0', U'a', U'\x7F', U'\x80', U'\u07FF', U'\u0800', U'\uFFFF',
                           U'\U00010000', U'\U0010FFFF'}) {
    std::string text = "x";
    utf8_append(text, c);
    EXPECT_EQ(utf8_code_point(text, 1).value, c);
    EXPECT_EQ(utf8_code_point(text, 1).length, text.size() - 1);
    EXPECT_EQ(utf8_code_point_before(text, text.size()).value, c);
  }
}

TEST(NormalForm, OrdersAndComposes) {
  EXPECT_EQ(normal_form("e\u0301\u0323", NormalForm::kNfc), "\u1EB9\u0301");
  EXPECT_EQ(normal_form("\u1EB9\u0301", NormalForm::kNfd), "e\u0323\u0301");
  EXPECT_EQ(normal_form("\uFB01", NormalForm::kNfkc), "fi");
  EXPECT_EQ(normal_form("\uFB01", NormalForm::kNfc), "\uFB01");
  EXPECT_EQ(normal_form("", NormalForm::kNfd), "");
  EXPECT_EQ(normal_form(std::string_view("a\0\u00e9", 4), NormalForm::kNfd),
            std::string_view("a\0e\u0301", 5));
}

// Two marks in turn, the higher class first: sorting them by insertion would take 10^11 steps.
TEST(NormalForm, ALongRunOfMarksIsSortedInReasonableTime) {
  std::string text = "a";
  std::string expected = "\u1EA1";
  constexpr int kMarks = 500'000;
  for (int i = 0; i < kMarks; ++i) {
    text += "\u0301\u0323";
  }
  for (int i = 0; i < kMarks - 1; ++i) {
    expected += "\u0323";
  }
  for (int i = 0; i < kMarks; ++i) {
    expected += "\u0301";
  }
  EXPECT_EQ(normal_form(text, NormalForm::kNfc), expected);
}

TEST(Lowercase, MapsEachCodePointByItself) {
  EXPECT_EQ(lowercase("ABCÉ ΣΑΣ \u0130 \u1C89"), "abcé σασ i\u0307 \u1C8A");
}

TEST(Properties, AreThoseOfTheTables) {
  EXPECT_TRUE(is_word('_') && is_word(U'é') && is_word(0x200D) && !is_word(U'²') && !is_word('-'));
  EXPECT_TRUE(is_numeric(U'²') && is_numeric(U'१') && !is_numeric('a'));
  EXPECT_TRUE(is_punctuation('$') && is_punctuation(U'。') && !is_punctuation(U'€'));
  EXPECT_TRUE(is_whitespace(0x3000) && is_whitespace(0x85) && !is_whitespace(0x180E) &&
              !is_whitespace(0x200B));
}

}  // namespace
}  // namespace quads
