// Temporary file, fsync, rename.
#include "io/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>

#include "base/error.h"

namespace quads {

std::filesystem::path temporary_sibling(const std::filesystem::path& path) {
  return parent_of(path) / fmt::format(".tmp-{}-{}", path.filename().string(), ::getpid());
}

void require_writable_target(const std::filesystem::path& path) {
  require_parent(path);
  // A rename would put a plain file in the place of a device or a link (/dev/stdout is one) and
  // fails on a directory.
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
  require(!std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
          "{}: is there already and is no regular file", path.string());
  const std::filesystem::path parent = parent_of(path);
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    fail("{}: cannot be written: {}", path.string(), errno_text());
  }
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_sibling(path_)) {
  require_writable_target(path_);
  fd_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  require(fd_.get() >= 0, "{}: cannot be written: {}", path_.string(), errno_text());
  if (!try_lock(fd_)) {
    fd_.reset();
    fail("{}: is being written by another process or thread", path_.string());
  }
  const bool cut = ::ftruncate(fd_.get(), 0) == 0;
  require(cut, "{}: cannot write: {}", path_.string(), errno_text());
}

AtomicFile::~AtomicFile() {
  if (fd_.get() >= 0) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  require(fd_.get() >= 0, "{}: write after commit", path_.string());
  write_all(fd_.get(), bytes, path_);
}

void AtomicFile::commit() {
  require(fd_.get() >= 0, "{}: committed twice", path_.string());
  const bool synced = ::fsync(fd_.get()) == 0;
  require(synced, "{}: cannot sync to disk: {}", path_.string(), errno_text());
  const bool renamed = ::rename(temporary_.c_str(), path_.c_str()) == 0;
  require(renamed, "{}: cannot rename {} to it: {}", path_.string(), temporary_.string(),
          errno_text());
  fd_.reset();
  sync_path(parent_of(path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace quads
