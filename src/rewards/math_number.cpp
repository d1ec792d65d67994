#include "rewards/math_number.h"

#include <fmt/format.h>
#include <gmpxx.h>

#include <algorithm>
#include <array>

namespace quads {
namespace {

// The largest power of 2 and 5 that text() multiplies out and rounding considers.
constexpr int64_t kMaxExponent = 20000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

mpz_class power(unsigned base, uint64_t exponent) {
  mpz_class result;
  mpz_ui_pow_ui(result.get_mpz_t(), base, exponent);
  return result;
}

// Takes all factors `prime` out of `value` and returns how many there were.
int64_t remove_factor(mpz_class& value, unsigned long prime) {
  return static_cast<int64_t>(
      mpz_remove(value.get_mpz_t(), value.get_mpz_t(), mpz_class(prime).get_mpz_t()));
}

// A fraction times a power of ten, while a number is being read.
struct Value {
  mpz_class numerator = 0;
  mpz_class denominator = 1;
  int64_t tens = 0;
  bool point = false;
  bool digits_only = false;  // neither sign, point nor separator
};

MathNumber normal_form(const Value& value) {
  MathNumber number;
  number.point = value.point;
  mpz_class n = abs(value.numerator);
  if (n == 0) return number;
  number.negative = (value.numerator < 0) != (value.denominator < 0);
  mpz_class d = abs(value.denominator);
  number.twos = value.tens + remove_factor(n, 2) - remove_factor(d, 2);
  number.fives = value.tens + remove_factor(n, 5) - remove_factor(d, 5);
  const mpz_class common = gcd(n, d);
  number.numerator = mpz_class(n / common).get_str();
  number.denominator = mpz_class(d / common).get_str();
  return number;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::optional<MathNumber> read() {
    unwrap();
    const bool minus = eat("-");
    if (!minus) eat("+");
    skip_spaces();
    auto value = unsigned_value();
    if (!value || value->denominator == 0) return std::nullopt;
    if (minus) value->numerator = -value->numerator;
    bool percent = false;
    if (!read_suffix(percent)) return std::nullopt;
    MathNumber number = normal_form(*value);
    number.percent = percent;
    return number;
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool at_end() const { return at_ == text_.size(); }
  bool eat(std::string_view token) {
    if (!text_.substr(at_).starts_with(token)) return false;
    at_ += token.size();
    return true;
  }
  bool eat_any(std::initializer_list<std::string_view> tokens) {
    return std::any_of(tokens.begin(), tokens.end(), [&](auto token) { return eat(token); });
  }
  void skip_spaces() { at_ = std::min(text_.find_first_not_of(' ', at_), text_.size()); }

  // The end of the group that the '{' at `begin` opens: the position of its '}', or npos.
  size_t closing(size_t begin) const {
    int depth = 0;
    for (size_t i = begin; i < text_.size(); ++i) {
      if (text_[i] == '{') ++depth;
      if (text_[i] == '}' && --depth == 0) return i;
    }
    return std::string_view::npos;
  }

  // {5}, \text{5}, \mathbf{5}: 5. Bounded, so that a heap of braces costs no quadratic time.
  void unwrap() {
    for (int i = 0; i < 4; ++i) {
      size_t open = 0;
      for (const std::string_view command : kTexts) {
        if (text_.starts_with(command)) open = std::max(open, command.size());
      }
      if (open >= text_.size() || text_[open] != '{' || closing(open) != text_.size() - 1) return;
      text_ = text_.substr(open + 1, text_.size() - open - 2);
      while (text_.starts_with(' ')) text_.remove_prefix(1);
      while (text_.ends_with(' ')) text_.remove_suffix(1);
    }
  }

  std::string digits() {
    const size_t begin = at_;
    while (is_digit(peek())) ++at_;
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Digits, in groups of three where the first group allows it. Empty if there are none.
  std::string grouped_digits() {
    std::string first = digits();
    if (first.empty() || first.size() > 3 || first[0] == '0') return first;
    const char separator = peek();
    if (separator != ',' && separator != ' ') return first;
    const size_t ungrouped = at_;
    std::string all = first;
    while (peek() == separator) {
      const size_t before = at_++;
      const std::string group = digits();
      if (group.empty() && separator == ' ') {
        at_ = before;
        break;
      }
      if (group.size() != 3) {  // "1,00" and "1,000,00" are lists, "1 1/2" is mixed
        at_ = ungrouped;
        return first;
      }
      all += group;
    }
    return all;
  }

  // 12, 1,234.5, .5, 5., 0.1\overline{6}
  std::optional<Value> decimal() {
    const size_t begin = at_;
    const std::string whole = grouped_digits();
    std::string fraction, repeating;
    Value value;
    if (eat(".")) {
      value.point = true;
      fraction = digits();
      for (const std::string_view bar : {"\\overline{", "\\bar{", "\\dot{"}) {
        if (!eat(bar)) continue;
        repeating = digits();
        if (repeating.empty() || !eat("}")) return std::nullopt;
        break;
      }
    }
    if (whole.empty() && fraction.empty() && repeating.empty()) return std::nullopt;
    value.digits_only = at_ - begin == whole.size();
    value.tens = -static_cast<int64_t>(fraction.size());
    value.numerator = mpz_class(std::string("0").append(whole).append(fraction), 10);
    if (!repeating.empty()) {
      const mpz_class nines = power(10, repeating.size()) - 1;
      value.numerator = value.numerator * nines + mpz_class(repeating, 10);
      value.denominator = nines;
      value.point = false;  // exact
    }
    return value;
  }

  // An exponent: digits with a sign, 18 at most.
  std::optional<int64_t> exponent() {
    const bool minus = eat("-");
    if (!minus) eat("+");
    const std::string text = digits();
    if (text.empty() || text.size() > 18) return std::nullopt;
    return minus ? -std::stoll(text) : std::stoll(text);
  }

  // ^3, ^{-3}. ^34 is left to others: TeX raises the 3 alone.
  std::optional<int64_t> superscript() {
    if (!eat("^")) return std::nullopt;
    if (eat("{")) {
      skip_spaces();
      const auto result = exponent();
      skip_spaces();
      return eat("}") ? result : std::nullopt;
    }
    if (!is_digit(peek())) return std::nullopt;
    const int64_t result = peek() - '0';
    ++at_;
    return is_digit(peek()) ? std::nullopt : std::optional(result);
  }

  // \frac{a}{b}, \frac12, \frac{1}2 behind the command
  std::optional<Value> fraction(bool plain_digits) {
    const auto part = [&]() -> std::optional<Value> {
      skip_spaces();
      if (is_digit(peek())) {
        Value value{.numerator = peek() - '0', .digits_only = true};
        ++at_;
        return value;
      }
      if (!eat("{")) return std::nullopt;
      skip_spaces();
      const bool minus = !plain_digits && eat("-");
      if (!minus && !plain_digits) eat("+");
      skip_spaces();
      auto value = decimal();
      skip_spaces();
      if (!value || !eat("}") || (plain_digits && !value->digits_only)) return std::nullopt;
      if (minus) value->numerator = -value->numerator;
      return value;
    };
    const auto above = part();
    const auto below = above ? part() : std::nullopt;
    return below ? std::optional(quotient(*above, *below)) : std::nullopt;
  }

  static Value quotient(const Value& above, const Value& below) {
    return {.numerator = above.numerator * below.denominator,
            .denominator = above.denominator * below.numerator,
            .tens = above.tens - below.tens};
  }

  static Value mixed(const Value& whole, const Value& part) {
    return {.numerator = whole.numerator * part.denominator + part.numerator,
            .denominator = part.denominator};
  }

  std::optional<Value> unsigned_value() {
    if (eat("\\frac")) return fraction(false);
    const size_t begin = at_;
    auto value = decimal();
    if (!value) return std::nullopt;
    if (peek() == '^' && text_.substr(begin, at_ - begin) == "10") {
      const size_t before = at_;
      if (const auto tens = superscript()) return Value{.numerator = 1, .tens = *tens};
      at_ = before;  // a degree sign, maybe
    }
    if ((peek() == 'e' || peek() == 'E') && at_ + 1 < text_.size()) {
      ++at_;
      const auto tens = exponent();
      if (!tens) return std::nullopt;
      value->tens += *tens;
      return value;
    }
    const size_t end = at_;
    skip_spaces();
    if (eat("/")) {
      if (text_.substr(begin, end - begin).find(' ') != std::string_view::npos) {
        return std::nullopt;  // 3 100/200 may be mixed
      }
      skip_spaces();
      const bool minus = eat("-");
      auto below = decimal();
      if (!below) return std::nullopt;
      if (minus) below->numerator = -below->numerator;
      return quotient(*value, *below);
    }
    if (eat_any({"\\times", "\\cdot", "*", "\xC3\x97"})) {
      skip_spaces();
      if (!eat("10")) return std::nullopt;
      const auto tens = superscript();
      if (!tens) return std::nullopt;
      value->tens += *tens;
      value->point = false;  // math-verify multiplies it out
      return value;
    }
    if (value->digits_only) {
      if (eat("\\frac")) {
        const auto part = fraction(true);
        return part ? std::optional(mixed(*value, *part)) : std::nullopt;
      }
      if (at_ > end && is_digit(peek())) return mixed_with_slash(*value);
    }
    at_ = end;
    return value;
  }

  // 1 1/2 behind the whole part
  std::optional<Value> mixed_with_slash(const Value& whole) {
    const std::string above = digits();
    skip_spaces();
    if (!eat("/")) return std::nullopt;
    skip_spaces();
    const std::string below = digits();
    if (below.empty()) return std::nullopt;
    return mixed(whole, {.numerator = mpz_class(above, 10), .denominator = mpz_class(below, 10)});
  }

  // What may stand behind a number. False if there is more than that.
  bool read_suffix(bool& percent) {
    skip_spaces();
    if (eat_any({"\\%", "%", "percent"}) || percent_in_text()) {
      percent = true;
      skip_spaces();
      return at_end();
    }
    eat_any({"^\\circ", "^{\\circ}", "\\degree", "\xC2\xB0"});
    skip_spaces();
    return at_end() || (unit_text() && at_end());
  }

  // The content of a \text{...} that begins here, if it has no braces inside.
  std::optional<std::string_view> text_group() {
    for (const std::string_view command : kTexts) {
      if (!eat(command)) continue;
      skip_spaces();
      const size_t open = at_;
      const size_t close = peek() == '{' ? closing(open) : std::string_view::npos;
      if (close == std::string_view::npos) return std::nullopt;
      at_ = close + 1;
      const std::string_view content = text_.substr(open + 1, close - open - 1);
      return content.find('{') == std::string_view::npos ? std::optional(content) : std::nullopt;
    }
    return std::nullopt;
  }

  bool percent_in_text() {
    const size_t begin = at_;
    if (const auto content = text_group()) {
      for (const std::string_view word : {"percent", " percent", "%", "\\%", " \\%", " %"}) {
        if (*content == word) return true;
      }
    }
    at_ = begin;
    return false;
  }

  // \text{ cm}, \mathrm{m}^2
  bool unit_text() {
    const auto content = text_group();
    if (!content || names_another_answer(*content)) return false;
    if (eat("^")) {
      const bool braces = eat("{");
      if (braces) eat("-");
      if (!is_digit(peek())) return false;
      ++at_;
      if (braces && !eat("}")) return false;
    }
    return true;
  }

  // No command before those that it begins.
  static constexpr std::array<std::string_view, 8> kTexts = {
      "\\textbf", "\\textit", "\\textrm", "\\text", "\\mathrm", "\\mathbf", "\\mathit", "\\mbox"};

  std::string_view text_;
  size_t at_ = 0;
};

mpz_class multiplied_out(const std::string& digits, int64_t twos, int64_t fives) {
  return mpz_class(digits, 10) * power(2, std::max<int64_t>(twos, 0)) *
         power(5, std::max<int64_t>(fives, 0));
}

bool is_small(const MathNumber& number) {
  return std::abs(number.twos) <= kMaxExponent && std::abs(number.fives) <= kMaxExponent;
}

bool same_value(const MathNumber& a, const MathNumber& b) {
  return a.numerator == b.numerator && a.denominator == b.denominator && a.twos == b.twos &&
         a.fives == b.fives && a.negative == b.negative;
}

// The value in millionths, rounded half away from zero.
mpz_class millionths(const MathNumber& number) {
  const mpz_class n = multiplied_out(number.numerator, number.twos + 6, number.fives + 6);
  const mpz_class d = multiplied_out(number.denominator, -number.twos - 6, -number.fives - 6);
  const mpz_class rounded = (2 * n + d) / (2 * d);
  return number.negative ? mpz_class(-rounded) : rounded;
}

bool agree(const MathNumber& a, const MathNumber& b) {
  if (same_value(a, b)) return true;
  const auto exact = [](const MathNumber& x) { return x.is_integer() && !x.point; };
  if ((!a.point && !b.point) || exact(a) || exact(b) || !is_small(a) || !is_small(b)) return false;
  const mpz_class rounded = millionths(a);
  return abs(rounded) >= 100 && rounded == millionths(b);
}

MathNumber hundredth(MathNumber number) {
  if (number.numerator != "0") {
    number.twos -= 2;
    number.fives -= 2;
  }
  return number;
}

}  // namespace

std::string MathNumber::text() const {
  const char* sign = negative ? "-" : "";
  const char* unit = percent ? "%" : "";
  if (!is_small(*this)) {
    return fmt::format("{}{}/{}*2^{}*5^{}{}", sign, numerator, denominator, twos, fives, unit);
  }
  const std::string n = multiplied_out(numerator, twos, fives).get_str();
  const std::string d = multiplied_out(denominator, -twos, -fives).get_str();
  return d == "1" ? fmt::format("{}{}{}", sign, n, unit)
                  : fmt::format("{}{}/{}{}", sign, n, d, unit);
}

bool names_another_answer(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  for (size_t i = 0; i < text.size(); ++i) {
    const char before = i == 0 ? ' ' : text[i - 1];
    if (is_digit(text[i]) && !letter(before) && !is_digit(before) && before != '^') return true;
    if (text.substr(i).starts_with("or") && !letter(before) &&
        (i + 2 == text.size() || !letter(text[i + 2]))) {
      return true;
    }
  }
  return false;
}

std::optional<MathNumber> parse_math_number(std::string_view tidy_answer) {
  return Reader(tidy_answer).read();
}

bool same_number(const MathNumber& a, const MathNumber& b) {
  if (a.percent == b.percent) return agree(a, b);
  return agree(a, b) || (a.percent ? agree(hundredth(a), b) : agree(a, hundredth(b)));
}

}  // namespace quads
