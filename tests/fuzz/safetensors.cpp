// Fuzzes the header of a safetensors file, and reads every tensor that it grants.
#include "io/safetensors.h"

#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"

namespace quads {
namespace {

std::string make_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(data_bytes, '\x3f');
}

}  // namespace

std::vector<std::string> fuzz_corpus() {
  return {
      make_file("{}", 0),
      make_file(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4),
      make_file(
          R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"empty":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}   )",
          16),
      make_file(
          R"({"model.layers.0.w":{"dtype":"F8_E4M3","shape":[4,4],"data_offsets":[0,16]},"model.layers.0.s":{"dtype":"U8","shape":[16],"data_offsets":[16,32]},"model.é":{"dtype":"I8","shape":[1,1,1],"data_offsets":[32,33]}})",
          33),
  };
}

std::vector<std::string> fuzz_words() {
  return {"\"dtype\":",
          "\"shape\":",
          "\"data_offsets\":",
          "\"__metadata__\":",
          "\"F32\"",
          "\"BF16\"",
          "\"F16\"",
          "\"F64\"",
          "\"I64\"",
          "\"U8\"",
          "\"BOOL\"",
          "\"F8_E4M3\"",
          "\"F8_E5M2\"",
          "[0,0]",
          "[0,4]",
          "[]",
          "{}",
          "null",
          "true",
          ",",
          ":",
          "\"a\":",
          "\"\":",
          "\\u0000",
          "\\ud800",
          "\xff",
          "\xed\xa0\x80",
          "-1",
          " ",
          "\xef\xbb\xbf"};
}

void fuzz_one(std::string_view input) {
  // A copy of just its size, so that a byte beyond it is seen.
  const std::vector<char> file(input.begin(), input.end());
  const SafetensorsHeader header = parse_safetensors_header(std::as_bytes(std::span(file)), "file");
  size_t bytes = 0;
  for (const TensorView& tensor : header.tensors) {
    std::vector<std::byte> copy(tensor.nbytes);
    tensor.copy_to(copy.data());
    size_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= static_cast<size_t>(extent);
    fuzz_check(elements == static_cast<size_t>(tensor.num_elements()), "shape and size agree");
    fuzz_check(!describe(tensor).empty(), "a tensor can be described");
    bytes += tensor.nbytes;
  }
  fuzz_check(bytes <= input.size(), "tensors do not overlap");
}

}  // namespace quads
