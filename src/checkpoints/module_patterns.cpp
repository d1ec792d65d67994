#include "checkpoints/module_patterns.h"

#include <fnmatch.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace quads {

ModulePatterns::ModulePatterns(std::vector<std::string> entries, const std::string& where)
    : entries_(std::move(entries)) {
  constexpr std::string_view kRegex = "re:";
  for (const std::string& entry : entries_) {
    require(!entry.empty(), "{}: an entry is empty", where);
    if (!entry.starts_with(kRegex)) {
      if (entry.find_first_of("*?[") != std::string::npos) wildcards_.push_back(entry);
      names_.insert(entry);
      continue;
    }
    const std::string text = entry.substr(kRegex.size());
    int code = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                         PCRE2_ANCHORED, &code, &at, nullptr);
    if (compiled == nullptr) {
      unsigned char message[256] = "";
      pcre2_get_error_message(code, message, sizeof(message));
      fail("{}: '{}' is not a regular expression: {} at {}", where, text,
           reinterpret_cast<const char*>(message), at);
    }
    regexes_.push_back(
        {text, {compiled, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); }}});
  }
}

bool ModulePatterns::match(const std::string& module) const {
  for (size_t end = module.size(); end != std::string::npos && end > 0;
       end = module.rfind('.', end - 1)) {
    if (names_.contains(std::string_view(module).substr(0, end))) return true;
  }
  for (const std::string& wildcard : wildcards_) {
    if (fnmatch(wildcard.c_str(), module.c_str(), 0) == 0) return true;
  }
  for (const Regex& regex : regexes_) {
    const auto* code = static_cast<const pcre2_code*>(regex.code.get());
    const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
        pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
    const int result = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(module.data()), module.size(),
                                   0, 0, data.get(), nullptr);
    if (result >= 0) return true;
    require(result == PCRE2_ERROR_NOMATCH,
            "the regular expression '{}' could not be matched with {} (PCRE2 error {})", regex.text,
            module, result);
  }
  return false;
}

}  // namespace quads
