// Names and sizes of the element types.
#include "io/dtype.h"

#include <array>

namespace quads {
namespace {

struct Entry {
  std::string_view name;
  size_t size;
};

// In the order of the enumeration.
constexpr std::array kEntries = {
    Entry{"BOOL", 1},    Entry{"U8", 1},      Entry{"I8", 1},  Entry{"F8_E4M3", 1},
    Entry{"F8_E5M2", 1}, Entry{"F8_E8M0", 1}, Entry{"U16", 2}, Entry{"I16", 2},
    Entry{"F16", 2},     Entry{"BF16", 2},    Entry{"U32", 4}, Entry{"I32", 4},
    Entry{"F32", 4},     Entry{"U64", 8},     Entry{"I64", 8}, Entry{"F64", 8},
};
static_assert(kEntries.size() == static_cast<size_t>(DType::kF64) + 1);

}  // namespace

size_t dtype_size(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view dtype_name(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) {
      return static_cast<DType>(i);
    }
  }
  return std::nullopt;
}

}  // namespace quads
