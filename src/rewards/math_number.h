// Numbers as answers write them, exactly: integers, decimals, fractions, percentages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace quads {

/// A rational number of any size, in one normal form: + or - `numerator` / `denominator` x
/// 2^`twos` x 5^`fives`, where numerator and denominator have no common factor and neither 2 nor 5.
/// 1e999999999 costs no more than 1.
struct MathNumber {
  bool negative = false;
  std::string numerator{"0"};  // decimal digits without leading zeros
  std::string denominator{"1"};
  int64_t twos = 0;
  int64_t fives = 0;
  bool percent = false;  // the value is in per cent: 50% has the value 50
  bool point = false;    // written with a decimal point: rounded, maybe

  bool is_integer() const { return denominator == "1" && twos >= 0 && fives >= 0; }

  /// The same text for the same value (and percent sign): "-3", "3/2", "50%", and "3*2^a*5^b" where
  /// it would be long.
  std::string text() const;
};

/// Reads an answer, as tidy_answer leaves it, that is one number and nothing else:
///   [+-] 1234 | 1,234 | 1 234 | 1.5 | .5 | 0.1\overline{6} | a/b | \frac{a}{b} | \frac12
///        | 1\frac{1}{2} | 1 1/2 | 10^{3} | 1.5 \times 10^{-3} | 1.5e-3
/// with a percent sign (or "percent"), a degree sign or a unit in \text or \mathrm behind it, which
/// is dropped as math-verify drops it. Braces or \text around it do not matter. Nothing for all
/// else: several numbers, 3/0, exponents of more than 18 digits.
std::optional<MathNumber> parse_math_number(std::string_view tidy_answer);

/// Whether two numbers are the same answer, as math-verify decides:
/// - equal values are equal;
/// - where one has a percent sign, 50% equals both 50 and 1/2;
/// - where one has a decimal point and neither is an integer written without one, values are equal
///   that agree when rounded to 6 decimals; but the rounded value must have three digits.
bool same_number(const MathNumber& a, const MathNumber& b);

/// Whether a text behind an answer, such as a unit, has a number of its own or the word "or": "5 or
/// 6" must not pass for 5 with a unit. Digits in "m2" and "s^2" belong to the unit.
bool names_another_answer(std::string_view text);

}  // namespace quads
