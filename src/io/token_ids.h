// Token ids as config.json and generation_config.json write them: absent, one number, or a list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json.h"

namespace quads {

/// Empty if the key is absent or null.
inline std::vector<int32_t> read_token_ids(const Json& object, const std::string& key,
                                           const std::string& where) {
  const auto value = find_key<Json>(object, key, where);
  if (!value) {
    return {};
  }
  const std::string what = fmt::format("{}: '{}'", where, key);
  return value->is_array() ? json_to<std::vector<int32_t>>(*value, what)
                           : std::vector{json_to<int32_t>(*value, what)};
}

/// null for none, a number for one, else a list.
inline Json token_ids_to_json(const std::vector<int32_t>& ids) {
  if (ids.empty()) {
    return nullptr;
  }
  return ids.size() == 1 ? Json(ids[0]) : Json(ids);
}

template <class T>
Json optional_to_json(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace quads
