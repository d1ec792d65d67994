// JSON from files that are not trusted: strict parsing with limits, and typed access with errors
// that name file and key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quads {

using Json = nlohmann::json;

struct JsonLimits {
  size_t max_bytes = size_t{256} << 20;
  int max_depth = 64;              // nested arrays and objects
  size_t max_values = 16'000'000;  // everything in the document; bounds the memory it takes
};

/// Parses one document of RFC 8259 JSON. Error (with `where` in front) for a syntax error, text
/// after the document, invalid UTF-8, a number out of range, a key twice in one object, or more
/// than the limits allow.
Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits = {});
Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits = {});

/// Writes `json`, indented by two spaces, as a whole or not at all (see atomic_file.h).
void write_json_file(const std::filesystem::path& path, const Json& json);

/// `json` on one line for an error message, cut after some 60 characters. It is made when the
/// message is, so that a check that holds costs nothing; `json` must live until then.
struct JsonExcerpt {
  const Json& json;
};
inline JsonExcerpt json_excerpt(const Json& json) { return {json}; }
std::string to_string(const JsonExcerpt& excerpt);

}  // namespace quads

template <>
struct fmt::formatter<quads::JsonExcerpt> : fmt::formatter<fmt::string_view> {
  auto format(const quads::JsonExcerpt& excerpt, fmt::format_context& context) const {
    return fmt::formatter<fmt::string_view>::format(quads::to_string(excerpt), context);
  }
};

namespace quads {

namespace detail {

template <class T>
struct IsVector : std::false_type {};
template <class T>
struct IsVector<std::vector<T>> : std::true_type {};

}  // namespace detail

/// `value` as T: bool, an integer (JSON integers in T's range only), a floating-point type (any
/// number), std::string, Json (anything), or a std::vector of these. `what` opens the error
/// message.
template <class T>
T json_to(const Json& value, const std::string& what) {
  if constexpr (std::is_same_v<T, Json>) {
    return value;
  } else if constexpr (std::is_same_v<T, bool>) {
    require(value.is_boolean(), "{}: {} is not true or false", what, json_excerpt(value));
    return value.get<bool>();
  } else if constexpr (std::is_integral_v<T>) {
    require(value.is_number_integer(), "{}: {} is not an integer", what, json_excerpt(value));
    const bool fits = value.is_number_unsigned() ? std::in_range<T>(value.get<uint64_t>())
                                                 : std::in_range<T>(value.get<int64_t>());
    require(fits, "{}: {} is out of range", what, json_excerpt(value));
    return value.get<T>();
  } else if constexpr (std::is_floating_point_v<T>) {
    require(value.is_number(), "{}: {} is not a number", what, json_excerpt(value));
    return value.get<T>();
  } else if constexpr (std::is_same_v<T, std::string>) {
    require(value.is_string(), "{}: {} is not a string", what, json_excerpt(value));
    return value.get<std::string>();
  } else {
    static_assert(detail::IsVector<T>::value, "unsupported type");
    require(value.is_array(), "{}: {} is not an array", what, json_excerpt(value));
    T result;
    result.reserve(value.size());
    for (const Json& element : value) {
      result.push_back(
          json_to<typename T::value_type>(element, fmt::format("{}[{}]", what, result.size())));
    }
    return result;
  }
}

/// object[key] as T, or nothing if the key is absent or null.
template <class T>
std::optional<T> find_key(const Json& object, const std::string& key, const std::string& where) {
  require(object.is_object(), "{}: {} is not an object", where, json_excerpt(object));
  const auto it = object.find(key);
  if (it == object.end() || it->is_null()) {
    return std::nullopt;
  }
  return json_to<T>(*it, fmt::format("{}: '{}'", where, key));
}

/// object[key] as T; Error if it is absent or null.
template <class T>
T get(const Json& object, const std::string& key, const std::string& where) {
  std::optional<T> value = find_key<T>(object, key, where);
  require(value.has_value(), "{}: key '{}' is missing", where, key);
  return *std::move(value);
}

/// object[key] as T, or `fallback` if the key is absent or null.
template <class T>
T get_or(const Json& object, const std::string& key, T fallback, const std::string& where) {
  return find_key<T>(object, key, where).value_or(std::move(fallback));
}

}  // namespace quads
