// Compares answers as far as this is possible without a computer algebra system.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace quads {

/// Answers longer than this (in bytes, tidied) are compared as texts only.
inline constexpr size_t kMaxMathAnswer = 4096;

/// Without what has no meaning in an answer: dollar signs, \left and \right, sizes of fractions,
/// runs of white space of any kind, a sign of equality in front, a dot at the end; with "-" for the
/// Unicode minus. Linear time.
std::string tidy_answer(std::string_view answer);

/// A text that is the same for answers that are equal as exact numbers or equal texts but for
/// tidy_answer and white space: "1/2" for 0.5, \frac{2}{4} and 1/2. For majority voting.
std::string normal_answer_text(std::string_view answer);

enum class MathVerdict { kEqual, kDifferent, kUndecided };

/// Whether `answer` is the answer `label`; neither is empty. Decided are equal normal texts, pairs
/// of numbers (same_number), texts that are too long, and those that name another answer behind the
/// first one (names_another_answer), which math-verify would take for a unit.
MathVerdict compare_math_answers(std::string_view label, std::string_view answer);

}  // namespace quads
