#include "rewards/output_match.h"

#include <cmath>
#include <cstdint>
#include <limits>
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

/// Builds a document in which an integer that 64 bits do not hold is a binary value, its digits: as
/// a double it would equal its neighbours. JSON itself has no binary values.
class ExactIntegers : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;
  explicit ExactIntegers(Json& result) : Base(result, false) {}

  bool number_float(double value, const std::string& text) {
    if (text.find_first_of(".eE") != std::string::npos) return Base::number_float(value, text);
    Json::binary_t digits(std::vector<uint8_t>(text.begin(), text.end()));
    return Base::binary(digits);
  }
};

std::optional<Json> parse_value(std::string_view text) {
  Json result;
  ExactIntegers handler(result);
  if (!Json::sax_parse(text, &handler)) return std::nullopt;
  return result;
}

/// A truth value as the number that it is in Python.
Json as_number(const Json& value) {
  return value.is_boolean() ? Json(value.get<bool>() ? 1 : 0) : value;
}

bool same_number(const Json& a, const Json& b) {
  if (a.is_number_float() == b.is_number_float()) return a == b;
  const double real = (a.is_number_float() ? a : b).get<double>();
  const Json& integer = a.is_number_float() ? b : a;
  if (real != std::trunc(real) || std::abs(real) >= 0x1p63) return false;
  return integer == Json(static_cast<int64_t>(real));
}

bool same(const Json& a, const Json& b) {
  if (a.is_array() && b.is_array()) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!same(a[i], b[i])) return false;
    }
    return true;
  }
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.items()) {
      const auto other = b.find(key);
      if (other == b.end() || !same(value, *other)) return false;
    }
    return true;
  }
  const Json x = as_number(a);
  const Json y = as_number(b);
  return x.is_number() && y.is_number() ? same_number(x, y) : x == y;
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
  return value && right && same(*value, *right);
}

}  // namespace quads
