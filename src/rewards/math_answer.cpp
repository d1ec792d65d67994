#include "rewards/math_answer.h"

#include <algorithm>

#include "base/text.h"

namespace quads {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Without the dots, stars and white space that end a sentence.
std::string_view without_end(std::string_view text) {
  const size_t last = text.find_last_not_of(" \t\r\n.*");
  return last == std::string_view::npos ? std::string_view() : trimmed(text.substr(0, last + 1));
}

std::optional<std::string_view> unless_empty(std::string_view text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

// The position of the last command `name` (with its backslash), or npos. \boxedx is another one.
size_t find_last_command(std::string_view text, std::string_view name) {
  size_t at = text.rfind(name);
  while (at != std::string_view::npos && at + name.size() < text.size() &&
         is_letter(text[at + name.size()])) {
    at = at == 0 ? std::string_view::npos : text.rfind(name, at - 1);
  }
  return at;
}

// What follows the '{' that `text` begins with, up to its '}', or nothing if there is none. Braces
// behind a backslash do not count, as in TeX.
std::optional<std::string_view> braced(std::string_view text) {
  int64_t depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '{') {
      ++depth;
    } else if (text[i] == '}' && --depth == 0) {
      return text.substr(1, i - 1);
    }
  }
  return std::nullopt;
}

// `text` up to the first of `ends`, all of it if there is none.
std::string_view until(std::string_view text, std::initializer_list<std::string_view> ends) {
  size_t size = text.size();
  for (const std::string_view end : ends) size = std::min(size, text.substr(0, size).find(end));
  return text.substr(0, size);
}

struct Box {
  bool found = false;
  std::string_view content;  // empty if the box is empty or never closed
};

Box last_box(std::string_view text) {
  const size_t boxed = find_last_command(text, "\\boxed");
  const size_t fbox = find_last_command(text, "\\fbox");
  if (boxed == std::string_view::npos && fbox == std::string_view::npos) return {};
  const bool is_boxed =
      fbox == std::string_view::npos || (boxed != std::string_view::npos && boxed > fbox);
  const std::string_view rest = trimmed(text.substr(is_boxed ? boxed + 6 : fbox + 5));
  if (rest.starts_with('{')) return {true, trimmed(braced(rest).value_or(std::string_view()))};
  return {true, without_end(until(rest, {"$", "\n", "\\)", "\\]"}))};
}

// The text behind the last "answer is" or "answer:", in any case and with Markdown's stars.
std::optional<std::string_view> behind_answer_word(std::string_view text) {
  constexpr std::string_view kWord = "answer";
  const auto same = [](char a, char b) { return (a | 0x20) == b; };
  for (auto end = text.end();;) {
    const auto at = std::find_end(text.begin(), end, kWord.begin(), kWord.end(), same);
    if (at == end) return std::nullopt;
    const std::string_view rest = text.substr(at - text.begin() + kWord.size());
    const size_t next = rest.substr(0, 64).find_first_not_of(" \t*");
    if (next != std::string_view::npos) {
      const std::string_view tail = rest.substr(next);
      size_t skipped = 0;
      if (tail.starts_with(':')) skipped = 1;
      if (next > 0 && tail.size() > 2 && same(tail[0], 'i') && same(tail[1], 's') &&
          !is_letter(tail[2])) {
        skipped = 2;
      }
      const size_t begin =
          skipped == 0 ? std::string_view::npos : tail.find_first_not_of(" \t\r\n:*", skipped);
      if (begin != std::string_view::npos) return tail.substr(begin);
      if (skipped > 0) return std::nullopt;
    }
    end = at;
  }
}

std::optional<std::string_view> stated_answer(std::string_view text) {
  const auto found = behind_answer_word(text);
  if (!found) return std::nullopt;
  constexpr std::string_view kFormulas[][2] = {
      {"$$", "$$"}, {"$", "$"}, {"\\[", "\\]"}, {"\\(", "\\)"}};
  for (const auto& [open, close] : kFormulas) {
    if (!found->starts_with(open)) continue;
    const std::string_view rest = found->substr(open.size());
    const size_t end = rest.find(close);
    // "$5" is money, and "$5$ and $6$" is all of it.
    const std::string_view behind = end == std::string_view::npos
                                        ? std::string_view("?")
                                        : trimmed(until(rest.substr(end + close.size()), {"\n"}));
    if (behind.find_first_not_of(".*") == std::string_view::npos || behind.starts_with(". ")) {
      return unless_empty(trimmed(rest.substr(0, end)));
    }
    break;
  }
  return unless_empty(without_end(until(*found, {"\n", ". ", "<|"})));
}

}  // namespace

std::optional<std::string_view> response_answer(std::string_view response) {
  const Box box = last_box(response);
  return box.found ? unless_empty(box.content) : stated_answer(response);
}

std::optional<std::string_view> label_answer(std::string_view label) {
  const Box box = last_box(label);
  if (box.found) return unless_empty(box.content);
  constexpr std::string_view kMark = "####";
  const size_t line = label.rfind("\n####");
  if (line != std::string_view::npos) return unless_empty(trimmed(label.substr(line + 5)));
  label = trimmed(label);
  if (label.starts_with(kMark)) label = trimmed(label.substr(kMark.size()));
  return unless_empty(label);
}

}  // namespace quads
