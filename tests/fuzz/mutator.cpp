#include "fuzz/mutator.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace quads {
namespace {

constexpr std::string_view kNumberSigns = "0123456789+-.eE";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

Mutator::Mutator(uint64_t seed, std::vector<std::string> corpus, std::vector<std::string> words)
    : random_(seed, RandomStream::kTask, 0),
      corpus_(std::move(corpus)),
      num_good_(corpus_.size()),
      words_(std::move(words)) {}

std::string Mutator::next() {
  // From the good ones, from all that took a new path, and from the latest of these, which leads
  // furthest.
  const size_t size = corpus_.size();
  const size_t choice = below(3);
  std::string input = corpus_[choice == 0   ? below(num_good_)
                              : choice == 1 ? below(size)
                                            : size - 1 - below(std::min<size_t>(size, 32))];
  // A single change is refused for one reason; several reach further in.
  const size_t changes = below(2) == 0 ? 1 : size_t{1} << below(4);
  for (size_t i = 0; i < changes; ++i) change(input);
  input.resize(std::min(input.size(), kMaxBytes));
  return input;
}

// Short ones more often than long ones.
Mutator::Range Mutator::any_range(std::string_view text) {
  const size_t begin = below(text.size() + 1);
  const size_t most = std::min(text.size() - begin, size_t{1} << below(14));
  return {begin, below(most + 1)};
}

// A string, number, array or object of a JSON text, as far as brackets and quotation marks go.
Mutator::Range Mutator::any_value(std::string_view text) {
  const size_t from = below(text.size());
  const size_t begin = text.find_first_of("{[\"0123456789-", from);
  if (begin == std::string_view::npos) return any_range(text);
  size_t end = begin + 1;
  if (text[begin] == '"') {
    while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    end = std::min(end + 1, text.size());
  } else if (text[begin] == '{' || text[begin] == '[') {
    for (size_t depth = 1; end < text.size() && depth > 0; ++end) {
      if (text[end] == '{' || text[end] == '[') ++depth;
      if (text[end] == '}' || text[end] == ']') --depth;
    }
  } else {
    end = std::min(text.find_first_not_of(kNumberSigns, begin), text.size());
  }
  return {begin, end - begin};
}

std::string Mutator::extreme_number() {
  static constexpr auto kNumbers = std::to_array<std::string_view>({"0",
                                                                    "1",
                                                                    "-1",
                                                                    "-0",
                                                                    "0.0",
                                                                    "-0.5",
                                                                    "1e308",
                                                                    "1e309",
                                                                    "-1e309",
                                                                    "1e-400",
                                                                    "5e-324",
                                                                    "127",
                                                                    "128",
                                                                    "255",
                                                                    "256",
                                                                    "65535",
                                                                    "65536",
                                                                    "2147483647",
                                                                    "2147483648",
                                                                    "-2147483648",
                                                                    "-2147483649",
                                                                    "4294967295",
                                                                    "4294967296",
                                                                    "9007199254740993",
                                                                    "9223372036854775807",
                                                                    "9223372036854775808",
                                                                    "-9223372036854775808",
                                                                    "-9223372036854775809",
                                                                    "18446744073709551615",
                                                                    "18446744073709551616",
                                                                    "1e999999999999",
                                                                    "00",
                                                                    "1.",
                                                                    ".5",
                                                                    "1e",
                                                                    "NaN",
                                                                    "Infinity",
                                                                    "0x10",
                                                                    "1000000",
                                                                    "16777216"});
  const size_t choice = below(kNumbers.size() + 1);
  return choice < kNumbers.size() ? std::string(kNumbers[choice])
                                  : std::string(1 + below(400), static_cast<char>('0' + below(10)));
}

void Mutator::change(std::string& input) {
  if (input.empty()) input = any(corpus_);
  const size_t at = below(input.size() + 1);
  switch (below(14)) {
    case 0:
      if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
      break;
    case 1:
      if (at < input.size()) input[at] = static_cast<char>(below(256));
      break;
    case 2: {
      const Range range = any_range(input);
      input.erase(range.begin, range.size);
      break;
    }
    case 3: {
      const Range range = any_range(input);
      const std::string copy = input.substr(range.begin, range.size);
      const size_t times = size_t{1} << below(below(16) == 0 ? 9 : 2);
      for (size_t i = 0; i < times && input.size() < kMaxBytes; ++i) input.insert(at, copy);
      break;
    }
    case 4:
      input.resize(at);
      break;
    case 5:
    case 6:
      input.insert(at, any(words_));
      break;
    case 7: {
      const Range range = any_value(input);
      input.replace(range.begin, range.size, any(words_));
      break;
    }
    case 8: {
      const size_t digit = input.find_first_of("0123456789", at);
      if (digit == std::string::npos) break;
      size_t end = digit;
      while (end < input.size() && is_digit(input[end])) ++end;
      input.replace(digit, end - digit, extreme_number());
      break;
    }
    case 9: {
      // A length in binary, at the beginning as often as elsewhere.
      static constexpr auto kLengths = std::to_array<uint64_t>(
          {0, 1, 7, 255, 65535, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF,
           0x8000000000000000, 0xFFFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFF8});
      const size_t choice = below(kLengths.size() + 1);
      const uint64_t value = choice < kLengths.size()
                                 ? kLengths[choice]
                                 : input.size() - std::min<size_t>(input.size(), below(20));
      const size_t place = below(2) == 0 ? 0 : at;
      const size_t bytes = std::min(size_t{1} << below(4), input.size() - place);
      std::memcpy(input.data() + place, &value, bytes);
      break;
    }
    case 10: {
      const std::string& other = any(corpus_);
      const Range range = any_range(other);
      input.insert(at, other, range.begin, range.size);
      break;
    }
    case 11:
    case 12: {
      const std::string& other = any(corpus_);
      const Range from = any_value(other);
      const Range to = any_value(input);
      input.replace(to.begin, to.size, other, from.begin, from.size);
      break;
    }
    case 13: {
      const Range range = any_value(input);
      static constexpr auto kBrackets = std::to_array<std::array<std::string_view, 2>>(
          {{"[", "]"}, {"{", "}"}, {"(", ")"}, {"{\"a\":", "}"}, {"\"", "\""}});
      const auto& [open, close] = kBrackets[below(kBrackets.size())];
      const size_t times = size_t{1} << below(below(16) == 0 ? 9 : 3);
      std::string left;
      std::string right;
      for (size_t i = 0; i < times; ++i) {
        left += open;
        right += close;
      }
      input.insert(range.begin + range.size, right);
      input.insert(range.begin, left);
      break;
    }
  }
}

}  // namespace quads
