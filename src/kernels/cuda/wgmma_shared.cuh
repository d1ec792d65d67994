// The warpgroup's matrix product of Hopper (sm_90a) over boxes of a tensor map in shared memory
// (rows of 128 bytes, swizzled): d[64, N] = a[64, 16] b[N, 16]^T, added to d or not, with both
// operands there, the same with operands that lie with k as rows, and d[64, N] += a[64, 16]
// b[16, N] with a in registers.
#pragma once

#include "kernels/cuda/wgmma.cuh"

namespace quads::kernels::cuda {

__device__ __forceinline__ void wgmma_wait_but_one() {
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

/// A box's descriptor: 1024 bytes from 8 rows to the next, swizzle of 128 bytes. A step of 16 k is
/// 32 bytes, 2 in the descriptor.
__device__ __forceinline__ uint64_t box_descriptor(uint32_t address) {
  return (uint64_t{0x40000040} << 32) | (1 << 16) | (address >> 4);
}

/// Of b as [16 k][N] with N in panels of 64, `panel_bytes` apart: rows of 128 bytes, swizzled, 1024
/// bytes from 8 k to the next. In a cluster an address has the block's rank from bit 24 on, which
/// would change the field of the panels' distance (a box_descriptor's is ignored).
__device__ __forceinline__ uint64_t column_descriptor(uint32_t address, int panel_bytes) {
  return (uint64_t{0x40000040} << 32) | (panel_bytes >> 4 << 16) | ((address & 0x3FFFF) >> 4);
}

template <int N>
__device__ __forceinline__ void wgmma_shared(float* d, uint64_t a, uint64_t b, bool add);

/// With b as [16 k][N] (column_descriptor), and a as a box of rows or as [16 k][64] too.
template <int N, bool a_by_k>
__device__ __forceinline__ void wgmma_by_k(float* d, uint64_t a, uint64_t b, bool add);

/// d[64, N] += a[64, 16] b[16, N] with a in registers.
template <int N>
__device__ __forceinline__ void wgmma_columns(float* d, const uint32_t* a, uint64_t b);

// clang-format off
#define QUADS_WGMMA_SHARED(N, A, B, ADD)                                                        \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma_shared<N>(float* d, uint64_t a, uint64_t b, bool add) { \
    asm volatile("{ .reg .pred add; setp.ne.u32 add, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32.bf16.bf16 {" QUADS_REGISTERS_##N "}, %" #A ", %" #B ", add, 1, 1, 0, 0; }" \
                 : QUADS_ACCUMULATORS_##N                                                       \
                 : "l"(a), "l"(b), "r"(static_cast<uint32_t>(add)));                            \
  }
QUADS_WGMMA_SHARED(64, 32, 33, 34)
QUADS_WGMMA_SHARED(96, 48, 49, 50)
QUADS_WGMMA_SHARED(128, 64, 65, 66)
QUADS_WGMMA_SHARED(160, 80, 81, 82)
QUADS_WGMMA_SHARED(192, 96, 97, 98)
#undef QUADS_WGMMA_SHARED
#define QUADS_WGMMA_BY_K(N, A_BY_K, A, B, ADD)                                                  \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma_by_k<N, A_BY_K>(float* d, uint64_t a, uint64_t b, bool add) { \
    asm volatile("{ .reg .pred add; setp.ne.u32 add, %" #ADD ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32.bf16.bf16 {" QUADS_REGISTERS_##N "}, %" #A ", %" #B ", add, 1, 1, " #A_BY_K ", 1; }" \
                 : QUADS_ACCUMULATORS_##N                                                       \
                 : "l"(a), "l"(b), "r"(static_cast<uint32_t>(add)));                            \
  }
QUADS_WGMMA_BY_K(128, 0, 64, 65, 66)
QUADS_WGMMA_BY_K(128, 1, 64, 65, 66)
QUADS_WGMMA_BY_K(192, 0, 96, 97, 98)
QUADS_WGMMA_BY_K(192, 1, 96, 97, 98)
#undef QUADS_WGMMA_BY_K
#define QUADS_WGMMA_COLUMNS(N, A0, A1, A2, A3, B)                                                \
  template <>                                                                                   \
  __device__ __forceinline__ void wgmma_columns<N>(float* d, const uint32_t* a, uint64_t b) {   \
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 1, 1; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32.bf16.bf16 {" QUADS_REGISTERS_##N "}, {%" #A0 ", %" #A1 ", %" #A2       \
                 ", %" #A3 "}, %" #B ", add, 1, 1, 1; }"                                         \
                 : QUADS_ACCUMULATORS_##N                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
  }
QUADS_WGMMA_COLUMNS(64, 32, 33, 34, 35, 36)
QUADS_WGMMA_COLUMNS(128, 64, 65, 66, 67, 68)
#undef QUADS_WGMMA_COLUMNS
// clang-format on

}  // namespace quads::kernels::cuda
