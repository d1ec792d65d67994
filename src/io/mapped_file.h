// A file mapped read-only into memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

namespace quads {

/// Pages are read when first touched. The file must not be shortened by others while it is mapped
/// (the kernel answers a touch beyond the new end with SIGBUS); writers of this project never
/// shorten a file in place, they rename a new one over it.
class MappedFile {
 public:
  /// Error if `path` is not a readable regular file.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  bool contains(const std::byte* place) const {
    return place >= bytes_.data() && place < bytes_.data() + bytes_.size();
  }
  /// Takes the pages that hold `part`, which lies in it, and those that the kernel mapped around
  /// them out of this process's memory. They are read again when they are touched.
  void release(std::span<const std::byte> part) const;
  std::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace quads
