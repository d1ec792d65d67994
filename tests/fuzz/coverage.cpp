// Counts transitions between blocks as AFL does: lcamtuf.coredump.cx/afl/technical_details.txt.
#include "fuzz/coverage.h"

#include <array>
#include <cstdint>

namespace {

constexpr uint32_t kCells = 1U << 16;
std::array<uint8_t, kCells> counts;
std::array<uint8_t, kCells> seen;  // a bit for each magnitude of the count
uint32_t previous;

}  // namespace

// The compiler calls it in every block. Addresses are relative, so that a run repeats wherever the
// program is loaded.
extern "C" [[gnu::no_sanitize_coverage, gnu::no_sanitize("address", "undefined")]] void
__sanitizer_cov_trace_pc() {
  const auto block = reinterpret_cast<uintptr_t>(__builtin_return_address(0)) -
                     reinterpret_cast<uintptr_t>(&__sanitizer_cov_trace_pc);
  const auto place = static_cast<uint32_t>((block * 0x9E3779B97F4A7C15U) >> 48);
  uint8_t* const count = reinterpret_cast<uint8_t*>(&counts) + (place ^ previous);
  if (*count < 255) ++*count;
  previous = place >> 1;
}

namespace quads {

[[gnu::no_sanitize_coverage]] void start_coverage() {
  __builtin_memset(&counts, 0, kCells);
  previous = 0;
}

[[gnu::no_sanitize_coverage, gnu::no_sanitize("address", "undefined")]] bool found_new_paths() {
  const auto* const count = reinterpret_cast<const uint8_t*>(&counts);
  auto* const known = reinterpret_cast<uint8_t*>(&seen);
  bool found = false;
  for (uint32_t begin = 0; begin < kCells; begin += 8) {
    uint64_t eight = 0;
    __builtin_memcpy(&eight, count + begin, 8);
    if (eight == 0) continue;
    for (uint32_t i = begin; i < begin + 8; ++i) {
      if (count[i] == 0) continue;
      const auto magnitude = static_cast<uint8_t>(1U << (31 - __builtin_clz(count[i])));
      found |= (known[i] & magnitude) == 0;
      known[i] |= magnitude;
    }
  }
  return found;
}

}  // namespace quads
