// Compiles and runs regular expressions with PCRE2.
#include "tokenizer/regex.h"

#include <algorithm>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"
#include "tokenizer/regex_translate.h"
#include "tokenizer/utf8.h"

namespace quads {
namespace {

// A search may look at each character some hundred times, not a number of times that grows with the
// text: no pattern in use comes near, and one that backtracks without end stops.
constexpr size_t kStepsPerSearch = 1'000'000;
constexpr size_t kStepsPerByte = 100;

std::string message_of(int error) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(error, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

using MatchData = std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)>;
using MatchContext = std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)>;

}  // namespace

void Regex::Free::operator()(void* code) const { pcre2_code_free(static_cast<pcre2_code*>(code)); }

Regex::Regex(std::string_view pattern, const std::string& where)
    : where_(where), pattern_(pattern) {
  const std::string translated = translate_regex(pattern, where);
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  require(context != nullptr, "{}: PCRE2 has no memory", where);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &error, &offset, context.get()));
  require(code_ != nullptr, "{}: regular expression '{}': {}", where, pattern.substr(0, 60),
          message_of(error));
  // Where there is no compiler for this machine, the interpreter runs.
  pcre2_jit_compile(static_cast<pcre2_code*>(code_.get()), PCRE2_JIT_COMPLETE);
}

std::vector<Span> Regex::find_all(std::string_view text) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const MatchData data(pcre2_match_data_create_from_pattern(code, nullptr), &pcre2_match_data_free);
  const MatchContext context(pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  require(data != nullptr && context != nullptr, "{}: PCRE2 has no memory", where_);
  const size_t steps = kStepsPerSearch + kStepsPerByte * text.size();
  pcre2_set_match_limit(context.get(), static_cast<uint32_t>(std::min<size_t>(steps, UINT32_MAX)));
  std::vector<Span> matches;
  size_t from = 0;
  while (from <= text.size()) {
    const auto search = [&](uint32_t options) {
      return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                         options | PCRE2_NO_UTF_CHECK, data.get(), context.get());
    };
    int result = search(0);
    if (result == PCRE2_ERROR_JIT_STACKLIMIT) {
      result = search(PCRE2_NO_JIT);
    }
    if (result == PCRE2_ERROR_NOMATCH) {
      break;
    }
    require(result >= 0, "{}: regular expression '{}' on a text of {} bytes: {}", where_,
            std::string_view(pattern_).substr(0, 60), text.size(), message_of(result));
    const size_t* found = pcre2_get_ovector_pointer(data.get());
    const Span match{found[0], found[1]};
    if (match.begin == match.end && !matches.empty() && matches.back().end == match.end) {
      from += from < text.size() ? utf8_length(text, from) : 1;
      continue;
    }
    matches.push_back(match);
    from = match.end;
  }
  return matches;
}

}  // namespace quads
