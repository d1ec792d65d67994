// Reads a vocabulary.
#include "tokenizer/vocabulary.h"

namespace quads {

Vocabulary::Vocabulary(const Json& json, const std::string& where) {
  require(json.is_object(), "{}: 'vocab' is {}, not an object", where, json_excerpt(json));
  tokens_.resize(json.size());
  std::vector<bool> taken(json.size());
  for (const auto& [token, value] : json.items()) {
    require(value.is_number_integer(), "{}: token '{}': id {} is not an integer", where, token,
            json_excerpt(value));
    const bool fits = value.is_number_unsigned() && value.get<uint64_t>() < json.size();
    require(fits, "{}: token '{}' has id {}, but {} tokens need the ids 0..{}", where, token,
            json_excerpt(value), json.size(), json.size() - 1);
    const auto id = value.get<size_t>();
    require(!taken[id], "{}: tokens '{}' and '{}' have the same id {}", where, tokens_[id], token,
            id);
    taken[id] = true;
    tokens_[id] = token;
  }
  ids_.reserve(tokens_.size());
  for (size_t id = 0; id < tokens_.size(); ++id) {
    ids_.emplace(tokens_[id], static_cast<int32_t>(id));
  }
}

}  // namespace quads
