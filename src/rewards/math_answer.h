// Finds the final answer in a response or a label.
#pragma once

#include <optional>
#include <string_view>

namespace quads {

/// The answer that `response` gives, trimmed: the content of its last \boxed or \fbox, else what
/// follows its last "answer is" or "answer:", up to the end of the sentence, line or formula.
/// Nothing if there is neither, if it is empty, or if the last box is never closed: a response that
/// was cut there gave no answer. Reads the text a constant number of times.
std::optional<std::string_view> response_answer(std::string_view response);

/// The answer that a data set gives: the content of the last box, else what follows the last "####"
/// at the beginning of a line (GSM8K), else all of it; trimmed. Nothing if that is empty.
std::optional<std::string_view> label_answer(std::string_view label);

}  // namespace quads
