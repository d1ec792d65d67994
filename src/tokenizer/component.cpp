// Checked access to the components of a tokenizer.json.
#include "tokenizer/component.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace quads {

std::string component_type(const Json& json, const std::string& where) {
  return get<std::string>(json, "type", where);
}

void check_options(const Json& json, std::initializer_list<std::string_view> keys,
                   const std::string& where) {
  for (const auto& [key, value] : json.items()) {
    require(
        key == "type" || value.is_null() || std::find(keys.begin(), keys.end(), key) != keys.end(),
        "{}: option '{}' with value {} is not supported", where, key, json_excerpt(value));
  }
}

const Json& member(const Json& json, const std::string& key, const std::string& where) {
  require(json.is_object(), "{}: {} is not an object", where, json_excerpt(json));
  const auto it = json.find(key);
  require(it != json.end(), "{}: key '{}' is missing", where, key);
  return *it;
}

const Json& array_of(const Json& json, const std::string& key, const std::string& where) {
  const Json& array = member(json, key, where);
  require(array.is_array(), "{}: '{}' is {}, not an array", where, key, json_excerpt(array));
  return array;
}

char32_t character_of(const Json& json, const std::string& key, const std::string& where) {
  const auto text = get<std::string>(json, key, where);
  require(!text.empty() && utf8_length(text, 0) == text.size(),
          "{}: '{}' is '{}', not one character", where, key, text);
  return utf8_code_point(text, 0).value;
}

}  // namespace quads
