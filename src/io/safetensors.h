// Reading safetensors files: a length, a JSON header, and the tensors' bytes. Nothing in the file
// is believed before it has been checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/dtype.h"
#include "io/mapped_file.h"

namespace quads {

/// A tensor in mapped memory, row-major, little-endian.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty for a scalar
  /// Not necessarily aligned to the element: files by other writers may start their data anywhere.
  /// copy_to() is safe for any; is_aligned() tells whether `data` may be read in place.
  const std::byte* data = nullptr;
  size_t nbytes = 0;

  int64_t num_elements() const { return static_cast<int64_t>(nbytes / dtype_size(dtype)); }
  bool is_aligned() const { return reinterpret_cast<uintptr_t>(data) % dtype_size(dtype) == 0; }
  /// Copies all `nbytes` bytes.
  void copy_to(void* destination) const;
};

/// "BF16 [64, 128]" for messages.
std::string describe(const TensorView& tensor);

struct SafetensorsHeader {
  std::vector<TensorView> tensors;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

/// Parses and checks a whole file in memory; the views point into `file`. Errors, with `where` in
/// front and the tensor's name where there is one: a file that is empty, truncated, or something
/// else (a pickle, a zip); a header of more than 100 MB or beyond the file's end; JSON that is
/// malformed or has a key twice; an unknown dtype or field; a shape whose product overflows or
/// disagrees with the offsets; offsets out of range, reversed, overlapping, or with gaps (the
/// format allows none).
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where = "safetensors");

/// One memory-mapped file.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);
  const std::vector<TensorView>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  const MappedFile& file() const { return file_; }

 private:
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace quads
