#include "rewards/output_match.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "io/json.h"

namespace quads {
namespace {

constexpr std::string_view kSpace = "\t\n\v\f\r\x1c\x1d\x1e\x1f ";  // str.isspace within ASCII

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  text = trimmed(text, kSpace);
  while (true) {
    const size_t end = text.find('\n');
    lines.push_back(trimmed(text.substr(0, end), kSpace));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

/// sign x 0.digits x 10^exponent; digits without zeros at either end. Zero: no digits, no exponent,
/// no sign. Infinity: digits "inf".
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
  bool operator==(const Decimal&) const = default;
};

/// Part of a number or a name, in JSON outside of strings.
bool is_word(char c) {
  return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '-' ||
         c == '+' || c == '.';
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool equal_ignoring_case(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((text[i] | 0x20) != lower[i]) return false;
  }
  return true;
}

/// What Python's Decimal reads, without NaNs, which equal nothing.
std::optional<Decimal> parse_decimal(std::string_view text) {
  std::string joined;
  if (text.find('_') != std::string_view::npos) {
    for (const char c : text) {
      if (c != '_') joined.push_back(c);
    }
    text = joined;
  }
  Decimal result;
  if (!text.empty() && (text[0] == '+' || text[0] == '-')) {
    result.negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (equal_ignoring_case(text, "inf") || equal_ignoring_case(text, "infinity")) {
    result.digits = "inf";
    return result;
  }
  bool any = false;
  bool point = false;
  size_t i = 0;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !point)); ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    any = true;
    if (text[i] == '0' && result.digits.empty()) {
      if (point) --result.exponent;
      continue;
    }
    result.digits.push_back(text[i]);
    if (!point) ++result.exponent;
  }
  if (!any) return std::nullopt;
  if (i < text.size()) {
    if ((text[i] | 0x20) != 'e') return std::nullopt;
    ++i;
    const bool minus = i < text.size() && text[i] == '-';
    if (i < text.size() && (text[i] == '-' || text[i] == '+')) ++i;
    if (i == text.size()) return std::nullopt;
    int64_t exponent = 0;
    for (; i < text.size(); ++i) {
      if (!is_digit(text[i])) return std::nullopt;
      exponent = 10 * exponent + (text[i] - '0');
      if (exponent > 999'999'999'999'999'999) return std::nullopt;  // Python's limit, too
    }
    result.exponent += minus ? -exponent : exponent;
  }
  while (result.digits.ends_with('0')) result.digits.pop_back();
  if (result.digits.empty()) return Decimal();
  return result;
}

bool same_numbers(std::string_view output, std::string_view expected) {
  while (true) {
    output = trimmed(output, kSpace);
    expected = trimmed(expected, kSpace);
    if (output.empty() || expected.empty()) return output.empty() && expected.empty();
    const std::string_view left = output.substr(0, output.find_first_of(kSpace));
    const std::string_view right = expected.substr(0, expected.find_first_of(kSpace));
    const std::optional<Decimal> number = parse_decimal(left);
    if (!number || number != parse_decimal(right)) return false;
    output.remove_prefix(left.size());
    expected.remove_prefix(right.size());
  }
}

enum class NumberKind { kNone, kInteger, kReal };

/// By JSON's grammar: -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?
NumberKind number_kind(std::string_view text) {
  const auto digits = [&] {
    const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(count);
    return count;
  };
  if (text.starts_with('-')) text.remove_prefix(1);
  const bool zero = text.starts_with('0');
  const size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return NumberKind::kNone;
  if (text.empty()) return NumberKind::kInteger;
  if (text[0] == '.') {
    text.remove_prefix(1);
    if (digits() == 0) return NumberKind::kNone;
  }
  if (!text.empty() && (text[0] | 0x20) == 'e') {
    text.remove_prefix(1);
    if (text.starts_with('+') || text.starts_with('-')) text.remove_prefix(1);
    if (digits() == 0) return NumberKind::kNone;
  }
  return text.empty() ? NumberKind::kReal : NumberKind::kNone;
}

/// One text for all that Python finds equal to a number or truth value of JSON: digits for a whole
/// number of any size, "inf", or the double's shortest digits. Nothing for other words, and for
/// NaN.
std::optional<std::string> number_text(std::string_view word) {
  if (word == "true") return "1";
  if (word == "false" || word == "-0") return "0";
  if (word == "Infinity") return "inf";
  if (word == "-Infinity") return "-inf";
  const NumberKind kind = number_kind(word);
  if (kind == NumberKind::kNone) return std::nullopt;
  if (kind == NumberKind::kInteger) return std::string(word);
  const double value = std::strtod(std::string(word).c_str(), nullptr);
  if (value == 0) return "0";  // without a sign
  if (value == std::trunc(value) && std::isfinite(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

/// The document, every number and truth value in it as a list of its text, which no other list
/// equals: strings begin with a '$'. A JSON library would round numbers, and knows no infinity.
std::optional<Json> parse_value(std::string_view text) {
  std::string rewritten;
  for (size_t i = 0; i < text.size();) {
    const size_t start = i;
    if (text[i] == '"') {
      rewritten += "\"$";
      for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1 : 0;
      i = std::min(i + 1, text.size());
      rewritten += text.substr(start + 1, i - start - 1);
    } else if (is_word(text[i])) {
      while (i < text.size() && is_word(text[i])) ++i;
      const std::string_view word = text.substr(start, i - start);
      if (word == "null") {
        rewritten += word;
      } else if (const auto number = number_text(word)) {
        rewritten += fmt::format("[\"{}\"]", *number);
      } else {
        return std::nullopt;
      }
    } else {
      rewritten.push_back(text[i++]);
    }
  }
  Json result = Json::parse(rewritten, nullptr, false);
  return result.is_discarded() ? std::nullopt : std::optional(std::move(result));
}

}  // namespace

bool same_output(std::string_view output, std::string_view expected) {
  const std::vector<std::string_view> lines = split_lines(output);
  const std::vector<std::string_view> right = split_lines(expected);
  if (lines.size() != right.size()) return false;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] != right[i] && !same_numbers(lines[i], right[i])) return false;
  }
  return true;
}

bool same_value(std::string_view output, std::string_view expected) {
  // An equal value is at most so much longer, in escapes and spaces; parsed, a text takes many
  // times its size.
  if (output.size() > 16 * expected.size() + 1024) return false;
  const std::optional<Json> value = parse_value(output);
  const std::optional<Json> right = parse_value(expected);
  return value && right && *value == *right;
}

}  // namespace quads
