// Temporary directory, fsync of all that is in it, rename.
#include "io/atomic_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/error.h"
#include "io/atomic_file.h"

namespace quads {
namespace {

namespace fs = std::filesystem;

void sync_tree(const fs::path& directory) {
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_symlink()) {
      sync_path(entry.path());
    }
  }
  sync_path(directory);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  require(!error, "{}: cannot remove: {}", path.string(), error.message());
}

// Removes `path` if nobody holds its lock.
bool remove_if_stale(const fs::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (fd.get() < 0 || !try_lock(fd)) {
    return false;
  }
  remove_tree(path);
  return true;
}

template <class IsMeant>
int remove_stale(const fs::path& parent, const IsMeant& is_meant) {
  int removed = 0;
  if (!fs::is_directory(parent)) return removed;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent)) {
    if (is_meant(entry.path().filename().string()))
      removed += remove_if_stale(entry.path()) ? 1 : 0;
  }
  return removed;
}

// The directory's own name for "a/b/" is "b".
fs::path without_trailing_slash(fs::path path) {
  if (!path.has_filename()) return path.parent_path();
  return path;
}

}  // namespace

AtomicDir::AtomicDir(fs::path path, Existing existing)
    : path_(without_trailing_slash(std::move(path))),
      temporary_(temporary_sibling(path_)),
      existing_(existing) {
  require_parent(path_);
  std::error_code error;
  require(existing == Existing::kReplace || !fs::exists(fs::symlink_status(path_, error)),
          "{}: already exists: remove it or choose another name", path_.string());
  if (fs::exists(temporary_, error)) {
    require(remove_if_stale(temporary_), "{}: is being written by another process", path_.string());
  }
  const bool made = ::mkdir(temporary_.c_str(), 0755) == 0;
  require(made, "{}: cannot create: {}", temporary_.string(), errno_text());
  lock_ = open_file(temporary_, O_RDONLY | O_DIRECTORY);
  const bool locked = try_lock(lock_);
  require(locked, "{}: cannot lock: {}", temporary_.string(), errno_text());
}

AtomicDir::~AtomicDir() {
  if (lock_.get() >= 0) {
    std::error_code ignored;  // a destructor cannot report; what stays is found as stale later
    fs::remove_all(temporary_, ignored);
  }
}

void AtomicDir::commit() {
  require(lock_.get() >= 0, "{}: committed twice", path_.string());
  sync_tree(temporary_);
  const bool exchange = existing_ == Existing::kReplace && fs::exists(path_);
  int status = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(),
                           exchange ? RENAME_EXCHANGE : RENAME_NOREPLACE);
  if (status != 0 && errno == EINVAL && !exchange) {
    // A file system without RENAME_NOREPLACE (NFS): rename refuses a directory that is not empty.
    status = ::rename(temporary_.c_str(), path_.c_str());
  }
  require(status == 0, "{}: cannot {} {}: {}", path_.string(),
          exchange ? "exchange with" : "rename to it", temporary_.string(), errno_text());
  lock_.reset();
  sync_path(parent_of(path_));
  if (exchange) {
    remove_tree(temporary_);  // the old contents
  }
}

int remove_stale_temporaries(const fs::path& parent) {
  return remove_stale(parent, [](const std::string& name) { return name.starts_with(".tmp-"); });
}

int remove_stale_temporaries_of(const fs::path& path) {
  const fs::path named = without_trailing_slash(path);
  const std::string prefix = fmt::format(".tmp-{}-", named.filename().string());
  return remove_stale(parent_of(named), [&](const std::string& name) {
    return name.size() > prefix.size() && name.starts_with(prefix) &&
           name.find_first_not_of("0123456789", prefix.size()) == std::string::npos;
  });
}

}  // namespace quads
