// Writing a file so that its name holds either the old contents or the new ones, never a part.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "io/file.h"

namespace quads {

/// Collects writes in ".tmp-<name>-<pid>" beside `path`. commit() syncs it to disk and renames it
/// over `path`; without commit() the destructor removes it and `path` stays as it was. Errors name
/// the path (a full disk, a missing folder, no permission, a device, link or folder of that name).
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;
  UniqueFd fd_;
};

/// Error unless an AtomicFile can be made of `path`, as far as can be seen without writing: for
/// what is written at the end of a long computation.
void require_writable_target(const std::filesystem::path& path);

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

/// ".tmp-<name>-<pid>" beside `path`: the name that a thing has while it is being written.
std::filesystem::path temporary_sibling(const std::filesystem::path& path);

}  // namespace quads
