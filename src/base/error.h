// The one exception type of the project and the helpers that throw it.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace quads {

/// What went wrong, where (file, tensor, key, row), the value seen and what would be right, in one
/// line. Libraries throw it and never exit; main prints it and returns 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws Error with a formatted message.
template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

/// Throws Error unless `condition` holds.
template <class... Args>
void require(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw Error(fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace quads
