// The element types of tensors in files.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace quads {

/// Those of the safetensors format that take whole bytes.
enum class DType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kU16,
  kI16,
  kF16,
  kBF16,
  kU32,
  kI32,
  kF32,
  kU64,
  kI64,
  kF64,
};

/// Bytes of one element.
size_t dtype_size(DType dtype);

/// The name in a safetensors header: "BF16", "F8_E4M3".
std::string_view dtype_name(DType dtype);

/// Nothing for a name that is not one of the above.
std::optional<DType> dtype_from_name(std::string_view name);

}  // namespace quads
