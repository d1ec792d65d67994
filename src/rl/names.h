// Option names on the command line and in configuration files, and the values they stand for.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace quads {

/// Name -> value for one option type; specialised beside each enum as `kNames<Enum>`.
template <class Enum>
inline constexpr std::array<std::pair<std::string_view, Enum>, 0> kNames{};

/// All names of an option type, in their order.
template <class Enum>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (const auto& [name, value] : kNames<Enum>) names.emplace_back(name);
  return names;
}

/// The value called `name`; an unknown name is an error that lists the known ones. `option` is what
/// the user set, for the message.
template <class Enum>
Enum parse_name(std::string_view option, std::string_view name) {
  std::string known;
  for (const auto& [candidate, value] : kNames<Enum>) {
    if (candidate == name) return value;
    if (!known.empty()) known += ", ";
    known += candidate;
  }
  fail("{}: '{}' is not one of: {}", option, name, known);
}

}  // namespace quads
