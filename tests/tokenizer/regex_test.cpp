// What of Oniguruma's syntax is translated, what is refused, and that no search runs on forever.
#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include "io/test_files.h"

namespace quads {
namespace {

std::vector<std::string> matches(std::string_view pattern, const std::string& text) {
  std::vector<std::string> found;
  for (const Span& span : Regex(pattern, "test").find_all(text)) {
    found.push_back(text.substr(span.begin, span.end - span.begin));
  }
  return found;
}

using Strings = std::vector<std::string>;

TEST(Regex, ReadsOnigurumasSyntax) {
  EXPECT_EQ(matches(R"(\h+)", "x1f g"), (Strings{"1f"}));
  EXPECT_EQ(matches(R"(\p{^L}+)", "ab12c"), (Strings{"12"}));
  EXPECT_EQ(matches(R"(\u00e9|\x{e8})", "éèe"), (Strings{"é", "è"}));
  EXPECT_EQ(matches("(?m:a.b)", "a\nb"), (Strings{"a\nb"}));
  EXPECT_EQ(matches("a.b", "a\nb a\rb"), (Strings{"a\rb"}));
  EXPECT_EQ(matches("^b$", "a\nb\nc"), (Strings{"b"}));
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches("a{x}", "a{x}"), (Strings{"a{x}"}));
  EXPECT_EQ(matches(R"([^\S\n]+)", "a \t\n b"), (Strings{" \t", " "}));
  EXPECT_EQ(matches(R"(\s)", "a\u180Eb\u0085"), (Strings{"\u0085"}));
  EXPECT_EQ(matches("(?i:'S)", "'s 'ſ"), (Strings{"'s", "'ſ"}));
  EXPECT_EQ(matches(R"(\p{Han})", "a\U00031350漢"), (Strings{"\U00031350", "漢"}));
}

TEST(Regex, EmptyMatchesStandBetweenCharactersAndNotBehindAMatch) {
  const auto spans = Regex("", "test").find_all("é!");
  EXPECT_EQ(spans, (std::vector<Span>{{0, 0}, {2, 2}, {3, 3}}));
  EXPECT_EQ(Regex("a*", "test").find_all("aab"), (std::vector<Span>{{0, 2}, {3, 3}}));
}

TEST(Regex, RefusesWhatHasNoTranslationAndNamesIt) {
  const auto message = [](std::string_view pattern) {
    return error_of([&] { Regex regex(pattern, "file"); });
  };
  expect_contains(message("[a&&b]"), "file: regular expression '[a&&b]': an intersection");
  expect_contains(message("x[a[b]]"), "a class within a class at byte 3 is not supported");
  expect_contains(message(R"([^\W])"), "a negated set within a class");
  expect_contains(message(R"([\P{L}])"), "a negated set within a class");
  expect_contains(message(R"(\p{Mn})"), R"(\p{Mn})");
  expect_contains(message(R"(\p{Klingon})"), R"(\p{Klingon})");
  expect_contains(message(R"(\R)"), R"(\R)");
  expect_contains(message(R"(\X)"), R"(\X)");
  expect_contains(message(R"(\xE3\x81)"), "a byte beyond ASCII");
  expect_contains(message(R"(\u12)"), "a code point that is none");
  expect_contains(message(R"(\x{D800})"), "a code point that is none");
  expect_contains(message("(?~ab)"), "this kind of group");
  expect_contains(message("(?<n>a)"), "this kind of group");
  expect_contains(message("a(?i)b"), "this kind of group");
  expect_contains(message("(?i:ss)"), "one character in another case");
  expect_contains(message("(?i:é)"), "beyond ASCII where case is ignored");
  expect_contains(message(R"((?i:\p{L}))"), "a set of characters where case is ignored");
  expect_contains(message(R"((?i:[\w]))"), "a set of characters where case is ignored");
  expect_contains(message("a{2}+"), "a quantifier of a quantifier");
  expect_contains(message("a**"), "a quantifier of a quantifier");
  expect_contains(message("*a"), "a quantifier of nothing");
  expect_contains(message("[]a]"), "] at the start");
  expect_contains(message("[a-c-e]"), "a - after a range");
  expect_contains(message("[z-a]"), "the end of this range");
  expect_contains(message("[a"), "is not closed");
  expect_contains(message("(a"), "is not closed");
  expect_contains(message("a)"), "closes nothing");
  expect_contains(message("a\\"), "ends with");
  expect_contains(message("\xff"), "not valid UTF-8");
  expect_contains(message(R"((?<=a+)b)"), "lookbehind");
}

TEST(Regex, ASearchThatWouldNeverEndIsAnError) {
  expect_contains(error_of([] { Regex("(a+a+)+$", "file").find_all(std::string(64, 'a') + "b"); }),
                  "file: regular expression '(a+a+)+$' on a text of 65 bytes");
}

TEST(Regex, LongRunsPassThePatternsInUse) {
  const Regex gpt4(
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
      "test");
  const std::string run(1'000'000, ' ');
  EXPECT_EQ(gpt4.find_all(run).size(), 1U);
  EXPECT_EQ(gpt4.find_all(run + "x").size(), 2U);
  EXPECT_EQ(gpt4.find_all(std::string(1'000'000, 'a')).size(), 1U);
  EXPECT_EQ(gpt4.find_all(std::string(1'000'000, '\n')).size(), 1U);
  EXPECT_EQ(gpt4.find_all(std::string(300'000, '1')).size(), 100'000U);
}

}  // namespace
}  // namespace quads
