// POSIX calls with errors that name the path.
#include "io/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "io/mapped_file.h"

namespace quads {

void UniqueFd::reset() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
  fd_ = -1;
}

std::string errno_text() { return std::strerror(errno); }

UniqueFd open_file(const std::filesystem::path& path, int flags, unsigned mode) {
  UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC, mode));
  require(fd.get() >= 0, "{}: cannot open: {}", path.string(), errno_text());
  return fd;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    require(written > 0, "{}: cannot write: {}", path.string(),
            written == 0 ? "nothing was written" : errno_text());
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

bool try_lock(const UniqueFd& fd) { return ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0; }

void sync_path(const std::filesystem::path& path) {
  const UniqueFd fd = open_file(path, O_RDONLY);
  const bool synced = ::fsync(fd.get()) == 0;
  require(synced, "{}: cannot sync to disk: {}", path.string(), errno_text());
}

std::filesystem::path parent_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

void require_parent(const std::filesystem::path& path) {
  const std::filesystem::path parent = parent_of(path);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(parent, error);
  require(std::filesystem::exists(status), "{}: cannot be written: there is no folder {}",
          path.string(), parent.string());
  require(std::filesystem::is_directory(status), "{}: cannot be written: {} is no folder",
          path.string(), parent.string());
}

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  const MappedFile file(path);
  require(file.bytes().size() <= max_bytes, "{}: {} bytes, more than the {} allowed here",
          path.string(), file.bytes().size(), max_bytes);
  return std::string(file.text());
}

}  // namespace quads
