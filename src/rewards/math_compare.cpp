#include "rewards/math_compare.h"

#include <algorithm>
#include <optional>

#include "rewards/math_number.h"

namespace quads {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// A part of a word or a number in any language: needs a space to be told from its like.
bool is_word(char c) {
  return is_letter(c) || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
}

struct Replacement {
  std::string_view from;
  std::string_view to;
};

// A command is replaced only where no letter follows it.
constexpr Replacement kReplacements[] = {
    {"\\!", ""},
    {"\\$", ""},
    {"\\displaystyle", ""},
    {"\\left", ""},
    {"\\right", ""},
    {"\\dfrac", "\\frac"},
    {"\\tfrac", "\\frac"},
    {"\\cfrac", "\\frac"},
    {"\\,", " "},
    {"\\;", " "},
    {"\\:", " "},
    {"\\ ", " "},
    {"\\quad", " "},
    {"\\qquad", " "},
    {"{,}", ","},
    {"$", ""},
    {"~", " "},
    {"\xC2\xA0", " "},
    {"\xE2\x80\x89", " "},
    {"\xE2\x80\xAF", " "},
    {"\xE2\x88\x92", "-"},
};

const Replacement* replacement_at(std::string_view rest) {
  if (std::string_view("\\{$~\xC2\xE2").find(rest[0]) == std::string_view::npos) return nullptr;
  for (const Replacement& candidate : kReplacements) {
    if (!rest.starts_with(candidate.from)) continue;
    const bool command = is_letter(candidate.from.back());
    if (command && rest.size() > candidate.from.size() && is_letter(rest[candidate.from.size()])) {
      continue;
    }
    return &candidate;
  }
  return nullptr;
}

// Without the spaces that TeX does not need.
std::string without_spaces(std::string_view tidy) {
  std::string text;
  text.reserve(tidy.size());
  for (size_t i = 0; i < tidy.size(); ++i) {
    const bool needed =
        i > 0 && i + 1 < tidy.size() && is_word(tidy[i - 1]) && is_word(tidy[i + 1]);
    if (tidy[i] != ' ' || needed) text += tidy[i];
  }
  return text;
}

struct Parsed {
  std::string tidy;
  std::optional<MathNumber> number;
  std::string normal;
};

Parsed parse(std::string_view answer) {
  Parsed parsed{.tidy = tidy_answer(answer), .number = {}, .normal = {}};
  if (parsed.tidy.size() <= kMaxMathAnswer) parsed.number = parse_math_number(parsed.tidy);
  parsed.normal = parsed.number ? parsed.number->text() : without_spaces(parsed.tidy);
  return parsed;
}

// Whether math-verify would cut another answer off as a unit: it drops everything from the first
// text that is not "and" or "or" to a closing brace (and an exponent) at the end.
bool hides_another_answer(std::string_view tidy) {
  const bool exponent = tidy.size() > 2 && tidy[tidy.size() - 2] == '^';
  if (!tidy.substr(0, tidy.size() - (exponent ? 2 : 0)).ends_with('}')) return false;
  for (size_t at = 1; (at = tidy.find('\\', at)) != std::string_view::npos; ++at) {
    const std::string_view rest = tidy.substr(at);
    const bool text = rest.starts_with("\\text") || rest.starts_with("\\mbox") ||
                      rest.starts_with("\\mathrm") || rest.starts_with("\\mathit") ||
                      rest.starts_with("\\mathbf");
    if (!text) continue;
    const size_t open = std::min(rest.find('{'), rest.size() - 1);
    std::string_view word = rest.substr(open + 1, rest.find('}', open) - open - 1);
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    if (word != "and" && word != "or") return names_another_answer(rest);
  }
  return false;
}

}  // namespace

std::string tidy_answer(std::string_view answer) {
  std::string tidy;
  tidy.reserve(answer.size());
  const auto append_space = [&] {
    if (!tidy.empty() && tidy.back() != ' ') tidy += ' ';
  };
  for (size_t i = 0; i < answer.size();) {
    const char c = answer[i];
    if (c == '\\' && answer.substr(i).starts_with("\\\\")) {
      tidy += "\\\\";  // a new row, whatever follows
      i += 2;
    } else if (c == ' ' || (c >= '\t' && c <= '\r')) {
      append_space();
      ++i;
    } else if (const Replacement* replacement = replacement_at(answer.substr(i))) {
      replacement->to == " " ? append_space() : void(tidy += replacement->to);
      i += replacement->from.size();
    } else {
      tidy += c;
      ++i;
    }
  }
  while (tidy.ends_with(' ')) tidy.pop_back();
  if (tidy.size() > 1 && tidy.ends_with('.')) tidy.pop_back();
  while (tidy.ends_with(' ')) tidy.pop_back();
  for (const std::string_view sign : {"=", "\\approx "}) {
    if (tidy.size() > sign.size() && tidy.starts_with(sign)) {
      tidy.erase(0, tidy.find_first_not_of(' ', sign.size()));
    }
  }
  return tidy;
}

std::string normal_answer_text(std::string_view answer) { return parse(answer).normal; }

MathVerdict compare_math_answers(std::string_view label, std::string_view answer) {
  const Parsed gold = parse(label);
  const Parsed given = parse(answer);
  if (gold.normal == given.normal && !gold.normal.empty()) return MathVerdict::kEqual;
  if (gold.number && given.number) {
    return same_number(*gold.number, *given.number) ? MathVerdict::kEqual : MathVerdict::kDifferent;
  }
  for (const std::string& tidy : {gold.tidy, given.tidy}) {
    if (tidy.size() > kMaxMathAnswer || hides_another_answer(tidy)) return MathVerdict::kDifferent;
  }
  return MathVerdict::kUndecided;
}

}  // namespace quads
