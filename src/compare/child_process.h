// A program run as a child of this one.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace quads {

/// Started by the constructor, in a process group of its own: Ctrl-C on the terminal reaches this
/// program alone, which decides what to pass on.
class ChildProcess {
 public:
  /// Runs `program` with `arguments`; standard input is empty, standard output and error go to
  /// `log` (emptied first). Error if it cannot be started.
  ChildProcess(const std::filesystem::path& program, const std::vector<std::string>& arguments,
               const std::filesystem::path& log);
  /// A child that still runs is told to stop (SIGTERM) and waited for.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept { swap(other); }
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    swap(other);
    return *this;
  }

  /// The exit status once it has ended (128 + the signal's number if one ended it).
  std::optional<int> poll();
  void signal(int number);

 private:
  void swap(ChildProcess& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(status_, other.status_);
  }

  pid_t pid_ = 0;  // 0: none
  std::optional<int> status_;
};

/// The executable of this process.
std::filesystem::path this_program();

/// The last line of a file that is not blank; empty if there is none.
std::string last_line(const std::filesystem::path& file);

}  // namespace quads
