// Reads the options of Metaspace.
#include "tokenizer/metaspace.h"

#include "tokenizer/component.h"
#include "tokenizer/utf8.h"

namespace quads {

Metaspace read_metaspace(const Json& json, const std::string& where) {
  check_options(json, {"replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"},
                where);
  Metaspace options;
  utf8_append(options.replacement, character_of(json, "replacement", where));
  const auto scheme = get_or<std::string>(json, "prepend_scheme", "always", where);
  require(scheme == "always" || scheme == "first" || scheme == "never",
          "{}: prepend_scheme '{}' is none of always, first, never", where, scheme);
  options.prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                    : scheme == "first" ? Metaspace::Prepend::kFirst
                                        : Metaspace::Prepend::kNever;
  if (!get_or(json, "add_prefix_space", true, where)) {
    require(scheme == "never" || !json.contains("prepend_scheme"),
            "{}: add_prefix_space false contradicts prepend_scheme '{}'", where, scheme);
    options.prepend = Metaspace::Prepend::kNever;
  }
  options.split = get_or(json, "split", true, where);
  return options;
}

}  // namespace quads
