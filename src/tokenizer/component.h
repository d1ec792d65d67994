// What the components of a tokenizer.json have in common when they are read.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "io/json.h"

namespace quads {

/// The component's "type". Error if there is none.
std::string component_type(const Json& json, const std::string& where);

/// Error for a key of the component beside "type" and `keys` that has a value: an option that is
/// not known might change the result.
void check_options(const Json& json, std::initializer_list<std::string_view> keys,
                   const std::string& where);

/// The value of `key`, without a copy. Error if it is absent.
const Json& member(const Json& json, const std::string& key, const std::string& where);

/// The elements of the array `key`. Error if it is none.
const Json& array_of(const Json& json, const std::string& key, const std::string& where);

/// The option `key` as a text of exactly one character.
char32_t character_of(const Json& json, const std::string& key, const std::string& where);

}  // namespace quads
