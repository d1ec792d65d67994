#include "io/output_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "io/atomic_dir.h"

namespace quads {
namespace {

// The holder removes its file at the end, perhaps after this process opened it: then the lock is on
// a file that nobody will find.
bool is_still_there(const UniqueFd& fd, const std::filesystem::path& file) {
  struct stat opened {
  }, named{};
  return ::fstat(fd.get(), &opened) == 0 && ::stat(file.c_str(), &named) == 0 &&
         opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

}  // namespace

OutputLock OutputLock::beside(const std::filesystem::path& output) {
  const std::filesystem::path path = output.has_filename() ? output : output.parent_path();
  require_parent(path);
  OutputLock lock(parent_of(path) / fmt::format(".lock-{}", path.filename().string()), path);
  remove_stale_temporaries_of(path);
  return lock;
}

OutputLock OutputLock::inside(const std::filesystem::path& directory) {
  return {directory / ".lock", directory};
}

OutputLock::OutputLock(std::filesystem::path file, const std::filesystem::path& output)
    : file_(std::move(file)) {
  do {
    fd_ = open_file(file_, O_RDWR | O_CREAT);
    if (try_lock(fd_)) continue;
    fd_.reset();
    fail("{}: another process is writing to it and holds {}: wait for it, or choose another --out",
         output.string(), file_.string());
  } while (!is_still_there(fd_, file_));
}

OutputLock::~OutputLock() {
  if (fd_.get() >= 0) ::unlink(file_.c_str());
}

}  // namespace quads
