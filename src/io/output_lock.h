// One writer an output: a second process that would write to the same place is refused.
#pragma once

#include <filesystem>

#include "io/file.h"

namespace quads {

/// Holds the lock of an output as long as it lives. A process that dies gives it back; the lock
/// file that it leaves behind is taken over by the next one.
class OutputLock {
 public:
  /// For a file or directory that is written under another name first: ".lock-<name>" beside it.
  /// Removes what processes that died have left of it under such names.
  static OutputLock beside(const std::filesystem::path& output);
  /// For an existing directory that is written into: ".lock" in it.
  static OutputLock inside(const std::filesystem::path& directory);
  ~OutputLock();
  OutputLock(OutputLock&&) noexcept = default;
  OutputLock& operator=(OutputLock&&) = delete;

 private:
  /// Error that names `output` if another process holds the lock.
  OutputLock(std::filesystem::path file, const std::filesystem::path& output);

  std::filesystem::path file_;
  UniqueFd fd_;
};

}  // namespace quads
