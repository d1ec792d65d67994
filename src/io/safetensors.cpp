// The safetensors header: https://github.com/huggingface/safetensors, README, "Format".
#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "io/json.h"

namespace quads {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// What a file that is no safetensors file looks like, to make the error helpful.
std::string_view kind_hint(std::string_view file) {
  if (file.starts_with("PK\x03\x04") || file.starts_with("\x80\x02") ||
      file.starts_with("\x80\x03") || file.starts_with("\x80\x04") ||
      file.starts_with("\x80\x05")) {
    return " (it looks like a PyTorch pickle, which is never loaded: convert it to safetensors)";
  }
  if (file.starts_with("version https://git-lfs")) {
    return " (it is a Git LFS pointer: run 'git lfs pull')";
  }
  if (file.starts_with("GGUF")) {
    return " (it is a GGUF file)";
  }
  return "";
}

// The product of the shape times the element size; Error if it does not fit.
size_t byte_size(const std::vector<int64_t>& shape, DType dtype, const std::string& what) {
  size_t size = dtype_size(dtype);
  for (const int64_t extent : shape) {
    require(extent >= 0, "{}: negative extent {} in its shape", what, extent);
    require(!__builtin_mul_overflow(size, static_cast<size_t>(extent), &size),
            "{}: the product of its shape overflows", what);
  }
  return size;
}

TensorView parse_tensor(const std::string& name, const Json& entry, std::span<const std::byte> data,
                        const std::string& where) {
  const std::string what = fmt::format("{}: tensor '{}'", where, name);
  require(entry.is_object(), "{}: {} is not an object", what, json_excerpt(entry));
  for (const auto& [key, value] : entry.items()) {
    require(key == "dtype" || key == "shape" || key == "data_offsets", "{}: unknown field '{}'",
            what, key);
  }
  const auto dtype_text = get<std::string>(entry, "dtype", what);
  const std::optional<DType> dtype = dtype_from_name(dtype_text);
  require(dtype.has_value(), "{}: dtype '{}' is unknown or not supported", what, dtype_text);

  TensorView tensor{
      .name = name, .dtype = *dtype, .shape = get<std::vector<int64_t>>(entry, "shape", what)};
  const size_t expected = byte_size(tensor.shape, *dtype, what);
  const auto offsets = get<std::vector<uint64_t>>(entry, "data_offsets", what);
  require(offsets.size() == 2, "{}: {} data_offsets instead of 2", what, offsets.size());
  const uint64_t begin = offsets[0];
  const uint64_t end = offsets[1];
  require(begin <= end, "{}: data_offsets [{}, {}] are reversed", what, begin, end);
  require(end <= data.size(), "{}: data_offsets [{}, {}] reach beyond the file's {} bytes of data",
          what, begin, end, data.size());
  tensor.data = data.data() + begin;
  tensor.nbytes = end - begin;
  require(tensor.nbytes == expected, "{}: {} takes {} bytes but data_offsets [{}, {}] hold {}",
          what, describe(tensor), expected, begin, end, tensor.nbytes);
  return tensor;
}

}  // namespace

void TensorView::copy_to(void* destination) const {
  if (nbytes > 0) {
    std::memcpy(destination, data, nbytes);
  }
}

std::string describe(const TensorView& tensor) {
  return fmt::format("{} [{}]", dtype_name(tensor.dtype), fmt::join(tensor.shape, ", "));
}

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file,
                                           const std::string& where) {
  require(!file.empty(), "{}: the file is empty", where);
  const std::string_view hint = kind_hint(as_text(file));
  require(file.size() >= kLengthBytes, "{}: {} bytes are too few for a safetensors file{}", where,
          file.size(), hint);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), kLengthBytes);
  require(header_bytes <= kMaxHeaderBytes,
          "{}: not a safetensors file: its header would have {} bytes, more than {}{}", where,
          header_bytes, kMaxHeaderBytes, hint);
  require(header_bytes <= file.size() - kLengthBytes,
          "{}: truncated: the header of {} bytes reaches beyond the file's {}{}", where,
          header_bytes, file.size(), hint);
  const std::string_view text = as_text(file.subspan(kLengthBytes, header_bytes));
  require(text.starts_with('{'), "{}: not a safetensors file: its header is not a JSON object{}",
          where, hint);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header_bytes);

  const Json json =
      parse_json(text, where + ": header", {.max_bytes = kMaxHeaderBytes, .max_depth = 8});
  SafetensorsHeader header;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") {
      require(entry.is_object(), "{}: __metadata__ is not an object", where);
      for (const auto& [key, value] : entry.items()) {
        header.metadata[key] =
            json_to<std::string>(value, fmt::format("{}: __metadata__ '{}'", where, key));
      }
    } else {
      header.tensors.push_back(parse_tensor(name, entry, data, where));
    }
  }

  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const TensorView& a, const TensorView& b) {
                     return std::pair(a.data, a.nbytes) < std::pair(b.data, b.nbytes);
                   });
  const std::byte* covered = data.data();
  for (const TensorView& tensor : header.tensors) {
    require(tensor.data >= covered, "{}: tensor '{}': its data overlap the tensor before it", where,
            tensor.name);
    require(tensor.data <= covered, "{}: tensor '{}': {} bytes before its data belong to no tensor",
            where, tensor.name, tensor.data - covered);
    covered = tensor.data + tensor.nbytes;
  }
  const auto unclaimed = static_cast<size_t>(data.data() + data.size() - covered);
  require(unclaimed == 0, "{}: the last {} bytes belong to no tensor", where, unclaimed);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(parse_safetensors_header(file_.bytes(), path.string())) {}

}  // namespace quads
