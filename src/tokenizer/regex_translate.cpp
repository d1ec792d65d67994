// A parser for the part of Oniguruma's syntax that PCRE2 can say as well; the rest is refused.
#include "tokenizer/regex_translate.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <vector>

#include "base/error.h"
#include "tokenizer/unicode_tables.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// The insides of character classes.
constexpr const char* kSpace =
    R"(\x{9}-\x{D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}\x{21}-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF})"
    R"(\x{200B}-\x{2027}\x{202A}-\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
constexpr const char* kHexDigit = "0-9A-Fa-f";

std::string code(char32_t c) { return fmt::format("\\x{{{:X}}}", static_cast<uint32_t>(c)); }

std::string range(const CodePointRange& r) { return code(r.first) + "-" + code(r.last); }

// What PCRE2 has to add to its own idea of `property`; of all its subcategories for one letter.
std::string added(std::string_view property) {
  std::string text;
  for (const PropertyRange& entry : added_property_ranges()) {
    const std::string_view name = entry.property;
    if (name == property || (property.size() == 1 && name.size() == 2 && name[0] == property[0])) {
      text += range(entry.range);
    }
  }
  return text;
}

// The inside of a class for \w. Oniguruma has superscripts and fractions of Latin-1 among them
// where \w stands alone, and not within a class.
std::string word_set(bool alone) {
  std::string text = R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc})";
  for (const PropertyRange& entry : added_property_ranges()) {
    if (std::string_view(entry.property) == "Word" && (alone || entry.range.first >= 0x100)) {
      text += range(entry.range);
    }
  }
  return text;
}

// The inside of a class for a general category or a script, or nothing for an unknown name.
std::optional<std::string> property_set(std::string_view name) {
  // C and Mn would have to lose characters that newer versions of Unicode moved.
  static constexpr std::string_view kCategories[] = {
      "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mc", "Me", "N",  "Nd",
      "Nl", "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",
      "Sm", "Sc", "Sk", "So", "Z",  "Zs", "Zl", "Zp", "Cc", "Cf", "Co"};
  static constexpr std::string_view kScripts[] = {"Han",      "Hiragana", "Katakana", "Hangul",
                                                  "Bopomofo", "Latin",    "Greek",    "Cyrillic",
                                                  "Arabic",   "Hebrew",   "Thai",     "Devanagari"};
  static constexpr std::pair<std::string_view, std::string_view> kLongNames[] = {
      {"Letter", "L"}, {"Mark", "M"},      {"Number", "N"},          {"Punctuation", "P"},
      {"Symbol", "S"}, {"Separator", "Z"}, {"Nonspacing_Mark", "Mn"}};
  for (const auto& [long_name, short_name] : kLongNames) {
    if (name == long_name) {
      name = short_name;
    }
  }
  if (std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories)) {
    return fmt::format("\\p{{{}}}{}", name, added(name));
  }
  if (std::find(std::begin(kScripts), std::end(kScripts), name) != std::end(kScripts)) {
    return fmt::format("\\p{{sc:{}}}{}", name, added(name));
  }
  return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string run() {
    groups_ = {Options{}};
    while (!at_end()) {
      atom();
    }
    require(groups_.size() == 1, "{}: regular expression {}: a ( is not closed", where_, shown());
    return std::move(result_);
  }

 private:
  struct Options {
    bool caseless = false;
    bool dot_all = false;
  };
  // A class's element: one code point or a set.
  struct Element {
    std::optional<char32_t> code_point;
    std::string set;
  };

  bool at_end() const { return position_ == pattern_.size(); }
  char peek() const { return at_end() ? '\0' : pattern_[position_]; }
  bool take(std::string_view text) {
    if (!pattern_.substr(position_).starts_with(text)) {
      return false;
    }
    position_ += text.size();
    return true;
  }
  char32_t take_code_point() {
    const auto [c, length] = utf8_code_point(pattern_, position_);
    position_ += length;
    return c;
  }
  std::string shown() const {
    return fmt::format("'{}{}'", pattern_.substr(0, 60), pattern_.size() > 60 ? "..." : "");
  }
  [[noreturn]] void refuse(size_t position, std::string_view what) const {
    fail("{}: regular expression {}: {} at byte {} is not supported", where_, shown(), what,
         position);
  }

  void atom() {
    const size_t begin = position_;
    const char c = peek();
    char32_t literal = 0;  // of a plain character, for the pairs that fold into one
    switch (c) {
      case '(':
        open_group();
        previous_ = 0;
        return;
      case ')':
        require(groups_.size() > 1, "{}: regular expression {}: ) at byte {} closes nothing",
                where_, shown(), begin);
        groups_.pop_back();
        ++position_;
        result_ += ')';
        break;
      case '|':
      case '^':
      case '$':
        ++position_;
        result_ += c;
        previous_ = 0;
        if (c == '|') {
          return;
        }
        break;
      case '.':
        ++position_;
        result_ += groups_.back().dot_all ? "(?s:.)" : ".";
        break;
      case '[':
        character_class();
        break;
      case '\\':
        literal = escape();
        break;
      case '*':
      case '+':
      case '?':
        refuse(begin, "a quantifier of nothing or of a quantifier");
      default:
        literal = take_code_point();
        add_literal(literal, begin);
    }
    check_folding(literal, begin);
    quantifier();
  }

  void add_literal(char32_t c, size_t begin) {
    if (groups_.back().caseless && c >= 0x80) {
      refuse(begin, "a character beyond ASCII where case is ignored");
    }
    result_ += c < 0x80 && std::isalnum(static_cast<int>(c)) != 0
                   ? std::string(1, static_cast<char>(c))
                   : code(c);
  }

  // Where case is ignored, Oniguruma lets "ss" match one sharp s and "fi" a ligature; PCRE2 does
  // not.
  void check_folding(char32_t literal, size_t begin) {
    if (groups_.back().caseless && literal != 0) {
      const auto low = [](char32_t c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; };
      const char32_t a = low(previous_);
      const char32_t b = low(literal);
      if ((a == 'f' && (b == 'f' || b == 'i' || b == 'l')) ||
          (a == 's' && (b == 's' || b == 't'))) {
        refuse(begin, "a pair of letters that is one character in another case");
      }
    }
    previous_ = literal;
  }

  void open_group() {
    const size_t begin = position_;
    Options options = groups_.back();
    for (const std::string_view plain : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
      if (take(plain)) {
        result_ += plain;
        groups_.push_back(options);
        return;
      }
    }
    if (take("(?#")) {
      const size_t end = pattern_.find(')', position_);
      require(end != std::string_view::npos, "{}: regular expression {}: a comment is not closed",
              where_, shown());
      position_ = end + 1;
      return;
    }
    if (!take("(?")) {
      ++position_;
      result_ += '(';
      groups_.push_back(options);
      return;
    }
    bool on = true;
    for (;; ++position_) {
      const char c = peek();
      if (c == 'i') {
        options.caseless = on;
      } else if (c == 'm') {
        options.dot_all = on;
      } else if (c == '-') {
        on = false;
      } else {
        break;
      }
    }
    const std::string pcre = options.caseless ? "(?i" : "(?-i";
    if (take(":")) {
      result_ += pcre + ":";
      groups_.push_back(options);
    } else if (peek() == ')' && begin == 0) {
      // Elsewhere the two differ in how far it reaches.
      ++position_;
      result_ += pcre + ")";
      groups_.back() = options;
    } else {
      refuse(begin, "this kind of group");
    }
  }

  void quantifier() {
    const size_t begin = position_;
    bool interval = false;
    bool fixed = false;
    if (peek() == '*' || peek() == '+' || peek() == '?') {
      result_ += pattern_[position_++];
    } else if (peek() == '{' && interval_at(position_)) {
      const size_t end = pattern_.find('}', position_);
      std::string_view bounds = pattern_.substr(position_ + 1, end - position_ - 1);
      fixed = bounds.find(',') == std::string_view::npos;
      interval = true;
      result_ +=
          bounds.starts_with(',') ? fmt::format("{{0{}}}", bounds) : fmt::format("{{{}}}", bounds);
      position_ = end + 1;
    } else {
      return;
    }
    previous_ = 0;
    const bool lazy = peek() == '?' && !fixed, possessive = peek() == '+' && !interval;
    if (lazy || possessive) result_ += pattern_[position_++];
    if (peek() == '*' || peek() == '+' || peek() == '?' ||
        (peek() == '{' && interval_at(position_))) {
      refuse(begin, "a quantifier of a quantifier");
    }
  }

  // {n}, {n,}, {,m} or {n,m}; anything else is plain text to Oniguruma.
  bool interval_at(size_t position) const {
    const size_t end = pattern_.find('}', position);
    if (end == std::string_view::npos) {
      return false;
    }
    const std::string_view inside = pattern_.substr(position + 1, end - position - 1);
    const size_t commas = static_cast<size_t>(std::count(inside.begin(), inside.end(), ','));
    return std::any_of(inside.begin(), inside.end(), is_digit) && commas <= 1 &&
           std::all_of(inside.begin(), inside.end(),
                       [](char c) { return is_digit(c) || c == ','; });
  }

  // An escape outside of a class; returns its character if it is one.
  char32_t escape() {
    const size_t begin = position_;
    const char c = position_ + 1 < pattern_.size() ? pattern_[position_ + 1] : '\0';
    switch (c) {
      case 'b':
      case 'B': {
        position_ += 2;
        const std::string word = fmt::format("[{}]", word_set(true));
        result_ += c == 'b' ? fmt::format("(?:(?<={0})(?!{0})|(?<!{0})(?={0}))", word)
                            : fmt::format("(?:(?<={0})(?={0})|(?<!{0})(?!{0}))", word);
        return 0;
      }
      case 'A':
      case 'z':
      case 'Z':
        position_ += 2;
        result_ += {'\\', c};
        return 0;
      case '1':
      case '2':
      case '3':
      case '4':
      case '5':
      case '6':
      case '7':
      case '8':
      case '9':
        if (position_ + 2 < pattern_.size() && is_digit(pattern_[position_ + 2])) {
          refuse(begin, "a reference of two digits");
        }
        position_ += 2;
        result_ += fmt::format("\\g{{{}}}", c);
        return 0;
      default:
        break;
    }
    bool negated = false;
    const Element element = class_escape(&negated);
    if (element.code_point) {
      add_literal(*element.code_point, begin);
      return *element.code_point;
    }
    if (groups_.back().caseless) {
      refuse(begin, "a set of characters where case is ignored");
    }
    result_ += fmt::format("[{}{}]", negated ? "^" : "", element.set);
    return 0;
  }

  // An escape as it may stand in a class too. `negated` is null there: sets have to be positive.
  Element class_escape(bool* negated) {
    const size_t begin = position_;
    ++position_;
    require(!at_end(), "{}: regular expression {}: it ends with \\", where_, shown());
    const char32_t c = take_code_point();
    const auto set = [&](std::string inside, bool negative) -> Element {
      if (negative && negated == nullptr) {
        refuse(begin, "a negated set within a class");
      }
      if (negated != nullptr) {
        *negated = negative;
      }
      return {std::nullopt, std::move(inside)};
    };
    switch (c) {
      case 's':
        return set(kSpace, false);
      case 'S':
        return set(kNoSpace, false);
      case 'd':
      case 'D':
        return set(*property_set("Nd"), c == 'D');
      case 'w':
      case 'W':
        return set(word_set(negated != nullptr), c == 'W');
      case 'h':
      case 'H':
        return set(kHexDigit, c == 'H');
      case 'p':
      case 'P':
        return property(begin, c == 'P', set);
      case 't':
        return {U'\t', ""};
      case 'n':
        return {U'\n', ""};
      case 'r':
        return {U'\r', ""};
      case 'f':
        return {U'\f', ""};
      case 'v':
        return {U'\v', ""};
      case 'a':
        return {U'\a', ""};
      case 'e':
        return {U'\x1b', ""};
      case 'x':
        return {hexadecimal(begin), ""};
      case 'u':
        return {hex_digits(begin, 4, 4), ""};
      default:
        if (c < 0x80 && std::isalnum(static_cast<int>(c)) != 0) {
          refuse(begin, fmt::format("\\{}", static_cast<char>(c)));
        }
        return {c, ""};
    }
  }

  template <class Set>
  Element property(size_t begin, bool negative, const Set& set) {
    const size_t end = pattern_.find('}', position_);
    if (peek() != '{' || end == std::string_view::npos) {
      refuse(begin, "a property without a name");
    }
    std::string_view name = pattern_.substr(position_ + 1, end - position_ - 1);
    position_ = end + 1;
    if (name.starts_with('^')) {
      name.remove_prefix(1);
      negative = !negative;
    }
    const std::optional<std::string> inside = property_set(name);
    if (!inside) {
      refuse(begin, fmt::format("\\p{{{}}}", name));
    }
    return set(*inside, negative);
  }

  char32_t hexadecimal(size_t begin) {
    if (!take("{")) {
      const char32_t c = hex_digits(begin, 1, 2);
      if (c >= 0x80) {
        refuse(begin, "a byte beyond ASCII");
      }
      return c;
    }
    const char32_t c = hex_digits(begin, 1, 8);
    if (!take("}")) {
      refuse(begin, "\\x{ without }");
    }
    return c;
  }

  char32_t hex_digits(size_t begin, int at_least, int at_most) {
    uint64_t value = 0;
    int count = 0;
    while (count < at_most && std::isxdigit(static_cast<unsigned char>(peek())) != 0) {
      const char c = pattern_[position_++];
      value = value * 16 + static_cast<uint64_t>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
      ++count;
    }
    if (count < at_least || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) {
      refuse(begin, "a code point that is none");
    }
    return static_cast<char32_t>(value);
  }

  void character_class() {
    const size_t begin = position_++;
    std::string inside;
    const bool negated = take("^");
    if (peek() == ']') {
      refuse(position_, "] at the start of a class");
    }
    while (!take("]")) {
      require(!at_end(), "{}: regular expression {}: the [ at byte {} is not closed", where_,
              shown(), begin);
      class_element(inside);
    }
    result_ += fmt::format("[{}{}]", negated ? "^" : "", inside);
  }

  void class_element(std::string& inside) {
    const size_t begin = position_;
    if (pattern_.substr(position_).starts_with("&&")) {
      refuse(begin, "an intersection of classes");
    }
    const Element first = class_operand();
    if (first.code_point && groups_.back().caseless && *first.code_point >= 0x80) {
      refuse(begin, "a character beyond ASCII where case is ignored");
    }
    if (!first.code_point) {
      if (groups_.back().caseless) {
        refuse(begin, "a set of characters where case is ignored");
      }
      if (peek() == '-' && !pattern_.substr(position_).starts_with("-]")) {
        refuse(position_, "a range that starts with a set");
      }
      inside += first.set;
      return;
    }
    if (peek() != '-' || pattern_.substr(position_).starts_with("-]")) {
      inside += code(*first.code_point);
      return;
    }
    // A - that is neither first nor last and no range's is read differently.
    if (pattern_[begin] == '-' && position_ == begin + 1) {
      refuse(begin, "a - that opens a range");
    }
    ++position_;
    const size_t second_begin = position_;
    const Element last = class_operand();
    if (!last.code_point || *last.code_point < *first.code_point ||
        (groups_.back().caseless && *last.code_point >= 0x80)) {
      refuse(second_begin, "the end of this range");
    }
    if (peek() == '-' && !pattern_.substr(position_).starts_with("-]")) {
      refuse(position_, "a - after a range");
    }
    inside += code(*first.code_point) + "-" + code(*last.code_point);
  }

  Element class_operand() {
    const size_t begin = position_;
    require(!at_end(), "{}: regular expression {}: a [ is not closed", where_, shown());
    if (peek() == '\\') {
      const char next = position_ + 1 < pattern_.size() ? pattern_[position_ + 1] : '\0';
      if (next == 'b') {  // a backspace
        position_ += 2;
        return {U'\b', ""};
      }
      return class_escape(nullptr);
    }
    if (peek() == '[') {
      if (take("[:space:]")) return {std::nullopt, kSpace};
      if (take("[:digit:]")) return {std::nullopt, *property_set("Nd")};
      if (take("[:word:]")) return {std::nullopt, word_set(false)};
      refuse(begin, "a class within a class");
    }
    return {take_code_point(), ""};
  }

  std::string_view pattern_;
  const std::string& where_;
  size_t position_ = 0;
  std::string result_;
  std::vector<Options> groups_;
  char32_t previous_ = 0;  // the literal in front
};

}  // namespace

std::string translate_regex(std::string_view pattern, const std::string& where) {
  const size_t valid = utf8_valid_prefix(pattern);
  require(valid == pattern.size(), "{}: regular expression: byte {} is not valid UTF-8", where,
          valid);
  return Translator(pattern, where).run();
}

}  // namespace quads
