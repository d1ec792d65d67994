// Lists of modules as quantised checkpoints write them: names, parents' names, wildcards, regular
// expressions.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace quads {

/// Each entry is a module's name ("lm_head"), that of a parent ("model.layers.0.self_attn"), a
/// shell wildcard ("*.self_attn.*") or "re:" and a regular expression that matches from the name's
/// start, as compressed-tensors has them.
class ModulePatterns {
 public:
  /// Error (with `where` in front) for an empty entry or a regular expression that is none.
  ModulePatterns(std::vector<std::string> entries, const std::string& where);

  /// Error when a regular expression takes too long.
  bool match(const std::string& module) const;
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  struct Regex {
    std::string text;
    std::shared_ptr<void> code;  // a pcre2_code
  };

  std::vector<std::string> entries_;
  std::set<std::string, std::less<>> names_;
  std::vector<std::string> wildcards_;
  std::vector<Regex> regexes_;
};

}  // namespace quads
