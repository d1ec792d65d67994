// mmap of a whole file.
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/error.h"
#include "io/file.h"

namespace quads {

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must give an error below, not wait for a writer.
  const UniqueFd fd = open_file(path, O_RDONLY | O_NONBLOCK);
  struct stat info {};
  const bool known = ::fstat(fd.get(), &info) == 0;
  require(known, "{}: cannot stat: {}", path.string(), errno_text());
  require(S_ISREG(info.st_mode), "{}: not a regular file", path.string());
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    return;  // mmap refuses empty ranges
  }
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  require(address != MAP_FAILED, "{}: cannot map {} bytes: {}", path.string(), size, errno_text());
  bytes_ = {static_cast<const std::byte*>(address), size};
}

void MappedFile::release(std::span<const std::byte> part) const {
  // A touch may map all that the page cache holds in one piece around it: a huge page at the most.
  constexpr size_t kAround = size_t{2} << 20;
  constexpr size_t kPage = 4096;
  const auto offset = static_cast<size_t>(part.data() - bytes_.data());
  const size_t begin = (offset - std::min(offset, kAround)) / kPage * kPage;
  const size_t end = std::min(bytes_.size(), offset + part.size() + kAround);
  ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
}

}  // namespace quads
