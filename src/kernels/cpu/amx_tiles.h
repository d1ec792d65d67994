// The AMX tile instructions as functions of the tile's number.
//
// GCC 12's own intrinsics do not tell the compiler which memory a tile load or a configuration
// reads, so it may drop or delay the stores before one; these do.
#pragma once

#include <cstdint>

namespace quads::kernels::amx {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

inline void tile_configure(const TileConfig& config) {
  asm volatile("ldtilecfg %0" : : "m"(config));
}
inline void tile_release() { asm volatile("tilerelease" : : : "memory"); }

template <int tile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(tile));
}
/// Rows of 64 bytes, `stride` bytes apart.
template <int tile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
}
/// c += a b: a [rows, 32], b as 16 pairs of k by 16 columns, BF16; c FP32.
template <int c, int a, int b>
inline void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
}

}  // namespace
}  // namespace quads::kernels::amx
