// Reads and applies post-processors.
#include "tokenizer/post_processor.h"

#include "tokenizer/component.h"

namespace quads {

PostProcessor::PostProcessor(const Json& json, int64_t vocab_size, const std::string& where) {
  if (!json.is_null()) {
    read(json, vocab_size, where);
  }
}

void PostProcessor::read(const Json& json, int64_t vocab_size, const std::string& where) {
  const std::string type = component_type(json, where);
  const std::string what = fmt::format("{} {}", where, type);
  if (type == "ByteLevel") {
    check_options(json, {"add_prefix_space", "trim_offsets", "use_regex"}, what);
  } else if (type == "TemplateProcessing") {
    check_options(json, {"single", "pair", "special_tokens"}, what);
    require(!template_.has_value(), "{}: a second template is not supported", what);
    read_template(json, vocab_size, what);
  } else {
    require(type == "Sequence",
            "{}: type '{}' is not supported (ByteLevel, TemplateProcessing, Sequence are)", where,
            type);
    check_options(json, {"processors"}, what);
    for (const Json& part : array_of(json, "processors", what)) {
      read(part, vocab_size, where);
    }
  }
}

void PostProcessor::read_template(const Json& json, int64_t vocab_size, const std::string& where) {
  template_.emplace();
  const Json& special = member(json, "special_tokens", where);
  for (const Json& piece : array_of(json, "single", where)) {
    if (const auto text = find_key<Json>(piece, "Sequence", where)) {
      const auto id = get<std::string>(*text, "id", where);
      require(id == "A", "{}: the template of a single text has the text '{}'", where, id);
      template_->push_back({.is_text = true});
      continue;
    }
    const auto token = get<Json>(piece, "SpecialToken", where);
    const auto name = get<std::string>(token, "id", where);
    const Json& entry = member(special, name, where + ": special_tokens");
    const std::string what = fmt::format("{}: special token '{}'", where, name);
    Part part{.ids = get<std::vector<int32_t>>(entry, "ids", what)};
    for (const int32_t id : part.ids) {
      require(id >= 0 && id < vocab_size, "{}: id {} is not below {}", what, id, vocab_size);
    }
    template_->push_back(std::move(part));
  }
}

std::vector<int32_t> PostProcessor::process(std::vector<int32_t> ids,
                                            bool add_special_tokens) const {
  if (!template_) {
    return ids;
  }
  std::vector<int32_t> result;
  for (const Part& part : *template_) {
    if (part.is_text) {
      result.insert(result.end(), ids.begin(), ids.end());
    } else if (add_special_tokens) {
      result.insert(result.end(), part.ids.begin(), part.ids.end());
    }
  }
  return result;
}

}  // namespace quads
