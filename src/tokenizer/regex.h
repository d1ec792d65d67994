// Regular expressions over UTF-8 text, by PCRE2 with a bound on its backtracking.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace quads {

/// Bytes [begin, end) of a text.
struct Span {
  size_t begin;
  size_t end;
  bool operator==(const Span&) const = default;
};

/// Any thread may use it.
class Regex {
 public:
  /// `pattern` in Oniguruma's syntax (see regex_translate.h). Error, naming `where`, for one that
  /// is not valid or cannot be translated.
  Regex(std::string_view pattern, const std::string& where);

  /// The matches in `text` (valid UTF-8) from left to right, none overlapping; an empty one is not
  /// taken where the last match ended. Error if the search takes more steps than a bound that is
  /// linear in the length of the text.
  std::vector<Span> find_all(std::string_view text) const;

 private:
  struct Free {
    void operator()(void* code) const;
  };
  std::string where_;
  std::string pattern_;
  std::unique_ptr<void, Free> code_;  // pcre2_code
};

}  // namespace quads
