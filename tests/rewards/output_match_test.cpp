// LiveCodeBench's comparison of outputs, of programs and of functions.
#include "rewards/output_match.h"

#include <gtest/gtest.h>

#include <string>

namespace quads {
namespace {

TEST(SameOutput, WhiteSpaceAtTheEndsOfTextAndLinesDoesNotCount) {
  EXPECT_TRUE(same_output("a\nb\n", "a\nb"));
  EXPECT_TRUE(same_output("\n\n a \r\n\tb  \n \n", "a\nb"));
  EXPECT_TRUE(same_output("", " \n"));
  EXPECT_FALSE(same_output("a\n\nb", "a\nb"));
  EXPECT_FALSE(same_output("a b", "a\nb"));
  EXPECT_FALSE(same_output("a  b", "a b"));  // words are compared only where all are numbers
  EXPECT_FALSE(same_output("YES", "Yes"));
  EXPECT_FALSE(same_output("", "0"));
  EXPECT_FALSE(same_output("1\n2", "1"));
}

TEST(SameOutput, NumbersAreComparedByTheirExactDecimalValues) {
  for (const auto& [a, b] : {std::pair{"1", "1.0"},
                             {"1  2", "1 2"},
                             {"+1 -0", "1.000 0"},
                             {"100", "1e2"},
                             {"0.05", "5E-2"},
                             {".5", "0.50"},
                             {"5.", "5"},
                             {"1_000", "1000"},
                             {"inf -Infinity", "INF -inf"},
                             {"0e99", "0"},
                             {"00012", "12"}}) {
    EXPECT_TRUE(same_output(a, b)) << a << " and " << b;
    EXPECT_TRUE(same_output(b, a)) << a << " and " << b;
  }
  for (const auto& [a, b] : {std::pair{"0.1", "0.10000000000000001"},
                             {"50000000000000000", "50000000000000001"},
                             {"1", "-1"},
                             {"1 2", "1"},
                             {"nan", "NaN"},
                             {"inf", "-inf"},
                             {"1e", "1"},
                             {".", "0"},
                             {"1.2.3", "1.2.30"},
                             {"0x10", "16"},
                             {"1,0", "1,00"},
                             {"a 1", "a 1.0"},
                             {"10", "1"},
                             {"1e1000000000000000000", "1e1000000000000000000.0"}}) {
    EXPECT_FALSE(same_output(a, b)) << a << " and " << b;
    EXPECT_FALSE(same_output(b, a)) << a << " and " << b;
  }
}

TEST(SameValue, ValuesAreEqualAsInPython) {
  for (const auto& [a, b] : {std::pair{"1", "1.0"},
                             {"true", "1"},
                             {"0", "false"},
                             {"[1, \"a\", null]", "[1,\"a\",null]"},
                             {R"({"a": 1, "b": [2]})", R"({"b": [2.0], "a": 1})"},
                             {"1000000000000000000000000000000", "1000000000000000000000000000000"},
                             {"18446744073709551615", "18446744073709551615"},
                             {"\"\\u00e9\"", "\"\xC3\xA9\""},
                             {"0.1", "0.1"},
                             {"1e-1", "0.1"},
                             {"-0.0", "0"},
                             {"-0", "0.0e5"},
                             {"-9223372036854775808", "-9223372036854775808.0"},
                             {"9223372036854775808", "9.223372036854775808e18"},
                             {"1180591620717411303424", "1180591620717411303424.0"},
                             {"9007199254740992", "9007199254740993.0"},  // the double is rounded
                             {"[Infinity, -Infinity]", "[1e999, -1e999]"},
                             {"{\"[\\\"1\": \"{2\\\\\"}", "{\"[\\\"1\":\"{2\\\\\"}"}}) {
    EXPECT_TRUE(same_value(a, b)) << a << " and " << b;
  }
  for (const auto& [a, b] : {std::pair{"1", "2"},
                             {"1", "\"1\""},
                             {"[]", "null"},
                             {"[1]", "[1, 1]"},
                             {"[1, 2]", "[2, 1]"},
                             {"1000000000000000000000000000001", "1000000000000000000000000000000"},
                             {"9007199254740993", "9007199254740992.0"},
                             {"9223372036854775807", "9223372036854775808.0"},
                             {"-1", "18446744073709551615"},
                             {"[-2]", "[18446744073709551614]"},
                             {"-9223372036854775808", "9223372036854775808"},
                             {"1180591620717411303425", "1180591620717411303424.0"},
                             {"Infinity", "-Infinity"},
                             {"0.1", "0.10000000000000002"},
                             {"[NaN]", "[NaN]"},
                             {"[\"1\"]", "1"},
                             {"[\"$1\"]", "1"},
                             {"\"true\"", "true"},
                             {"{1: 2}", "{1: 2}"},
                             {"01", "01"},
                             {"1.", "1."},
                             {"+1", "+1"},
                             {"1e", "1e"},
                             {"-", "-"},
                             {"True", "True"},
                             {"1\"1\"", "1\"1\""},
                             {"\"1", "\"1"},
                             {"\"1\\", "\"1\\"},
                             {R"({"a": 1})", R"({"a": 2})"},
                             {R"({"a": 1})", R"({"a": 1, "b": 1})"},
                             {"NaN", "NaN"},
                             {"", ""},
                             {"1 2", "1 2"},
                             {"[1", "[1"},
                             {"\"\xFF\"", "\"\xFF\""}}) {
    EXPECT_FALSE(same_value(a, b)) << a << " and " << b;
    EXPECT_FALSE(same_value(b, a)) << a << " and " << b;
  }
}

TEST(SameValue, HugeAndDeepOutputsAreNoTrouble) {
  EXPECT_FALSE(same_value(std::string(5'000'000, '['), "[1]"));
  const std::string deep(500, '[');
  EXPECT_FALSE(same_value(deep + std::string(500, ']'), "[[1]]"));
  EXPECT_FALSE(same_value("[" + std::string(3'000'000, ' ') + "]", "[]"));
  const std::string big(5000, '9');  // beyond a double
  EXPECT_TRUE(same_value(big, big));
  EXPECT_FALSE(same_value(big, big + "9"));
  EXPECT_FALSE(same_value(big, "Infinity"));
}

}  // namespace
}  // namespace quads
