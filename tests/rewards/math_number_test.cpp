// Numbers as answers write them: what is read, what is refused, and when two are the same.
#include "rewards/math_number.h"

#include <gtest/gtest.h>

namespace quads {
namespace {

std::string read(std::string_view answer) {
  const auto number = parse_math_number(answer);
  return number ? number->text() : "(none)";
}

bool same(std::string_view a, std::string_view b) {
  const auto x = parse_math_number(a);
  const auto y = parse_math_number(b);
  EXPECT_TRUE(x.has_value()) << a;
  EXPECT_TRUE(y.has_value()) << b;
  EXPECT_EQ(same_number(*x, *y), same_number(*y, *x)) << a << " and " << b;
  return same_number(*x, *y);
}

TEST(MathNumber, HasOneTextForEachValue) {
  for (const char* half : {"1/2",
                           "0.5",
                           ".5",
                           "00.50",
                           "\\frac{1}{2}",
                           "\\frac12",
                           "\\frac 1 2",
                           "\\frac{-1}{-2}",
                           "\\frac{0.5}{1}",
                           "2/4",
                           "5e-1",
                           "5E-1",
                           "5 \\times 10^{-1}",
                           "0.4\\overline{9}",
                           "+1/2",
                           "{1/2}",
                           "\\text{0.5}",
                           "0.5^\\circ",
                           "0.5 \\text{ cm}",
                           "\\frac{1}{2}\\mathrm{m}^{2}"}) {
    EXPECT_EQ(read(half), "1/2") << half;
  }
  for (const char* thousand :
       {"1000", "1,000", "1 000", "01000", "1000.", "1,000.00", "10^3", "10^{3}", "1e3", "0.001e6",
        "1*10^3", "10 \\cdot 10^{2}", "2000/2"}) {
    EXPECT_EQ(read(thousand), "1000") << thousand;
  }
  for (const char* zero : {"0", "-0", "+0", "000", "0.0", "-.0", "0/5", "\\frac{0}{-5}", "0e99"}) {
    EXPECT_EQ(read(zero), "0") << zero;
  }
  EXPECT_EQ(read("-3"), "-3");
  EXPECT_EQ(read("- 3"), "-3");
  EXPECT_EQ(read("-10^2"), "-100");
  EXPECT_EQ(read("0.\\overline{3}"), "1/3");
  EXPECT_EQ(read("0.1\\overline{6}"), "1/6");
  EXPECT_EQ(read("1,234,567.5"), "2469135/2");
  EXPECT_EQ(read("12.5\\%"), "25/2%");
  EXPECT_EQ(read("50\\text{ percent}"), "50%");
}

TEST(MathNumber, ReadsMixedNumbers) {
  EXPECT_EQ(read("1\\frac{1}{2}"), "3/2");
  EXPECT_EQ(read("-1 \\frac12"), "-3/2");
  EXPECT_EQ(read("1 1/2"), "3/2");
  EXPECT_EQ(read("12 3/4"), "51/4");
  for (const char* other : {"1.5\\frac{1}{2}", "1\\frac{-1}{2}", "1\\frac{0.5}{2}", "1 1",
                            "1/2 1/2", "1 -1/2", "3 100/200"}) {
    EXPECT_EQ(read(other), "(none)") << other;
  }
}

TEST(MathNumber, RefusesAllThatIsNotOneNumber) {
  for (const char* text : {"",
                           " ",
                           "-",
                           "+",
                           ".",
                           "--1",
                           "+-1",
                           "x",
                           "1x",
                           "x=1",
                           "1,2",
                           "1,23",
                           "1,2345",
                           "1,000,00",
                           "0,123",
                           "1, 000",
                           "1.2.3",
                           "1..2",
                           "1/2/3",
                           "1/",
                           "/2",
                           "1/x",
                           "3/0",
                           "\\frac{1}{0}",
                           "\\frac{0}{0}",
                           "\\frac",
                           "\\frac{1}",
                           "\\frac{1}{",
                           "\\frac{1}{2",
                           "\\frac{}{2}",
                           "\\frac{x}{2}",
                           "\\frac123",
                           "10^",
                           "10^{}",
                           "10^{x}",
                           "10^{1",
                           "10^12",
                           "10^-1",
                           "2^3",
                           "1 \\times 10",
                           "1 \\times 11^{2}",
                           "1 \\times",
                           "e5",
                           "1e",
                           "1e+",
                           "1e5.5",
                           "1 e5",
                           "1e1234567890123456789",
                           "\\infty",
                           "nan",
                           "inf",
                           "0x10",
                           "1_000",
                           "\\sqrt{4}",
                           "5!",
                           "|5|",
                           "(5)",
                           "5%%",
                           "5\\%5",
                           "5\\text{ or 6}",
                           "5\\text{ or }",
                           "5\\text{a}\\text{b}",
                           "5\\text{cm",
                           "5\\text{a{b}c}",
                           "5\\text{cm}^",
                           "5\\text{cm}^{2",
                           "5\\text{cm}^22",
                           "0.\\overline{}",
                           "0.\\overline{x}",
                           "0.\\overline{3",
                           "\\overline{3}",
                           "\xC2\xBD",
                           "\xD9\xA3",
                           "{",
                           "}",
                           "{}",
                           "{1",
                           "1}",
                           "\\text{}",
                           "\\text",
                           "{1}{2}"}) {
    EXPECT_EQ(read(text), "(none)") << text;
  }
  EXPECT_EQ(read(std::string_view("1\0", 2)), "(none)");
  EXPECT_EQ(read(std::string(4000, '{') + "5" + std::string(4000, '}')), "(none)");
}

TEST(MathNumber, IsExactAtAnySize) {
  const std::string nines(4000, '9');
  EXPECT_EQ(read(nines), nines);
  EXPECT_EQ(read(nines + "/" + nines), "1");
  EXPECT_FALSE(same(nines, nines.substr(1) + "8"));
  EXPECT_TRUE(same(nines + "0", "9." + nines.substr(1) + " \\times 10^{4000}"));
  EXPECT_FALSE(same("100000000000000000000000001", "100000000000000000000000000"));
}

TEST(MathNumber, TakesHugeExponentsAsTheyAre) {
  EXPECT_EQ(read("1e999999999"), "1/1*2^999999999*5^999999999");
  EXPECT_TRUE(same("1e999999999", "100 \\times 10^{999999997}"));
  EXPECT_FALSE(same("1e999999999", "1e999999998"));
  EXPECT_FALSE(same("1e-999999999", "0"));
  EXPECT_FALSE(same("1.5e-999999999", "1.5e-999999998"));
  EXPECT_TRUE(same("0e999999999", "0"));
  EXPECT_EQ(read("1e999999999999999999"), "1/1*2^999999999999999999*5^999999999999999999");
  EXPECT_TRUE(same("1e-999999999999999999\\%", "10e-999999999999999999") == false);
}

TEST(MathNumber, ComparesDecimalsRoundedToSixPlaces) {
  EXPECT_TRUE(same("1/3", "0.333333"));
  EXPECT_TRUE(same("1/3", "0.33333333"));
  EXPECT_FALSE(same("1/3", "0.33333"));
  EXPECT_TRUE(same("2/3", "0.666667"));
  EXPECT_FALSE(same("2/3", "0.666666"));
  EXPECT_TRUE(same("-2/3", "-0.666667"));
  EXPECT_FALSE(same("2/3", "-0.666667"));
  EXPECT_TRUE(same("1.5", "1.5000001"));
  EXPECT_FALSE(same("1.5", "1.500001"));
  EXPECT_TRUE(same("1.0", "1.0000001"));
}

TEST(MathNumber, ComparesExactlyWhatIsNotRounded) {
  EXPECT_FALSE(same("5", "4.9999999"));
  EXPECT_TRUE(same("5", "5.0000000"));
  EXPECT_FALSE(same("1/3", "33333333/100000000"));
  EXPECT_FALSE(same("0.\\overline{3}", "33333333/100000000"));
}

TEST(MathNumber, DoesNotRoundSmallNumbersToOneAnother) {
  EXPECT_FALSE(same("0.0000001", "0.0000002"));
  EXPECT_FALSE(same("0.0000001", "0.0"));
  EXPECT_FALSE(same("0.00001", "0.0000104"));
  EXPECT_TRUE(same("0.0001", "0.0001000001"));
}

TEST(MathNumber, TakesAPercentSignForAHundredthOrForNothing) {
  EXPECT_TRUE(same("50\\%", "50"));
  EXPECT_TRUE(same("50%", "1/2"));
  EXPECT_TRUE(same("50 percent", "0.5"));
  EXPECT_TRUE(same("-12.5\\%", "-1/8"));
  EXPECT_TRUE(same("50\\%", "50.0%"));
  EXPECT_FALSE(same("50\\%", "0.5%"));
  EXPECT_FALSE(same("50\\%", "5"));
  EXPECT_FALSE(same("50\\%", "5000"));
  EXPECT_TRUE(same("0\\%", "0"));
}

TEST(MathNumber, SeesAnotherAnswerInATextButNotInAUnit) {
  for (const char* text : {" or 6", "6", " maybe 6 cm", "or", " cm or m", "x=6"}) {
    EXPECT_TRUE(names_another_answer(text)) << text;
  }
  for (const char* text : {"", " cm", "m2", "m/s^2", " floors", " orders", " per hour"}) {
    EXPECT_FALSE(names_another_answer(text)) << text;
  }
}

}  // namespace
}  // namespace quads
