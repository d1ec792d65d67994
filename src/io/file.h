// The few POSIX calls that the writers and readers of this folder share, with errors that name the
// path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace quads {

/// Owns a file descriptor; -1 is none.
class UniqueFd {
 public:
  explicit UniqueFd(int fd = -1) : fd_(fd) {}
  ~UniqueFd() { reset(); }
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  int get() const { return fd_; }
  void reset();

 private:
  int fd_;
};

/// "No space left on device" for the current errno. Not in one expression with the call that sets
/// it: arguments are evaluated in any order.
std::string errno_text();

/// Opens with O_CLOEXEC added; an Error that names the path if it cannot.
UniqueFd open_file(const std::filesystem::path& path, int flags, unsigned mode = 0644);

/// Writes everything, through short writes and interrupts.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path);

/// Takes the exclusive lock of an open file or directory; false if another descriptor holds it.
/// Temporary files are locked while they are written: a lock that can be had tells that the writer
/// is gone. Its process id alone would not, since ids are used again (and are always 1 in a
/// container).
bool try_lock(const UniqueFd& fd);

/// fsync of a file or directory, so that it survives a loss of power.
void sync_path(const std::filesystem::path& path);

/// The folder in which `path` lies: "." for a bare name.
std::filesystem::path parent_of(const std::filesystem::path& path);

/// Error that names the folder in which `path` is to be written if there is none of that name.
void require_parent(const std::filesystem::path& path);

/// The whole of a regular file of at most `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes);

}  // namespace quads
