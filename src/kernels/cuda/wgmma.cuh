// The warpgroup's matrix product of Hopper (sm_90a): d[64, N] += a[64, 16] b[N, 16]^T, BF16 or
// FP16 with FP32 sums, a in registers, b in shared memory (a panel of 64 k, rows of 128 bytes,
// swizzled).
#pragma once

#include <cstdint>

namespace quads::kernels::cuda {

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait_all() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/// Descriptors of b: 2048 bytes from 8 rows to the next (a group of the activation image holds two
/// panels), swizzle of 128 bytes. The first word is made once a stage; `offset` is a constant.
__device__ __forceinline__ uint32_t wgmma_descriptor_word(uint32_t address) {
  return (address >> 4) + (1 << 16);  // shared memory ends below the field's 2^18
}
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t word, int offset) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(word + offset / 16), "n"(0x40000080));
  return descriptor;
}

template <int N, bool fp16 = false>
__device__ __forceinline__ void wgmma(float* d, const uint32_t* a, uint64_t b);

// The accumulators of 8 k columns are operands 0 .. 4 k - 1; a and b follow.
// clang-format off
#define QUADS_REGISTERS_8 "%0, %1, %2, %3"
#define QUADS_ACCUMULATORS_8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define QUADS_REGISTERS_16 QUADS_REGISTERS_8 ", %4, %5, %6, %7"
#define QUADS_ACCUMULATORS_16 QUADS_ACCUMULATORS_8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define QUADS_REGISTERS_24 QUADS_REGISTERS_16 ", %8, %9, %10, %11"
#define QUADS_ACCUMULATORS_24 QUADS_ACCUMULATORS_16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define QUADS_REGISTERS_32 QUADS_REGISTERS_24 ", %12, %13, %14, %15"
#define QUADS_ACCUMULATORS_32 QUADS_ACCUMULATORS_24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define QUADS_REGISTERS_40 QUADS_REGISTERS_32 ", %16, %17, %18, %19"
#define QUADS_ACCUMULATORS_40 QUADS_ACCUMULATORS_32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define QUADS_REGISTERS_48 QUADS_REGISTERS_40 ", %20, %21, %22, %23"
#define QUADS_ACCUMULATORS_48 QUADS_ACCUMULATORS_40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define QUADS_REGISTERS_56 QUADS_REGISTERS_48 ", %24, %25, %26, %27"
#define QUADS_ACCUMULATORS_56 QUADS_ACCUMULATORS_48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define QUADS_REGISTERS_64 QUADS_REGISTERS_56 ", %28, %29, %30, %31"
#define QUADS_ACCUMULATORS_64 QUADS_ACCUMULATORS_56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define QUADS_REGISTERS_72 QUADS_REGISTERS_64 ", %32, %33, %34, %35"
#define QUADS_ACCUMULATORS_72 QUADS_ACCUMULATORS_64, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define QUADS_REGISTERS_80 QUADS_REGISTERS_72 ", %36, %37, %38, %39"
#define QUADS_ACCUMULATORS_80 QUADS_ACCUMULATORS_72, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define QUADS_REGISTERS_88 QUADS_REGISTERS_80 ", %40, %41, %42, %43"
#define QUADS_ACCUMULATORS_88 QUADS_ACCUMULATORS_80, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define QUADS_REGISTERS_96 QUADS_REGISTERS_88 ", %44, %45, %46, %47"
#define QUADS_ACCUMULATORS_96 QUADS_ACCUMULATORS_88, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define QUADS_REGISTERS_104 QUADS_REGISTERS_96 ", %48, %49, %50, %51"
#define QUADS_ACCUMULATORS_104 QUADS_ACCUMULATORS_96, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define QUADS_REGISTERS_112 QUADS_REGISTERS_104 ", %52, %53, %54, %55"
#define QUADS_ACCUMULATORS_112 QUADS_ACCUMULATORS_104, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define QUADS_REGISTERS_120 QUADS_REGISTERS_112 ", %56, %57, %58, %59"
#define QUADS_ACCUMULATORS_120 QUADS_ACCUMULATORS_112, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define QUADS_REGISTERS_128 QUADS_REGISTERS_120 ", %60, %61, %62, %63"
#define QUADS_ACCUMULATORS_128 QUADS_ACCUMULATORS_120, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define QUADS_REGISTERS_136 QUADS_REGISTERS_128 ", %64, %65, %66, %67"
#define QUADS_ACCUMULATORS_136 QUADS_ACCUMULATORS_128, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define QUADS_REGISTERS_144 QUADS_REGISTERS_136 ", %68, %69, %70, %71"
#define QUADS_ACCUMULATORS_144 QUADS_ACCUMULATORS_136, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define QUADS_REGISTERS_152 QUADS_REGISTERS_144 ", %72, %73, %74, %75"
#define QUADS_ACCUMULATORS_152 QUADS_ACCUMULATORS_144, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define QUADS_REGISTERS_160 QUADS_REGISTERS_152 ", %76, %77, %78, %79"
#define QUADS_ACCUMULATORS_160 QUADS_ACCUMULATORS_152, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define QUADS_REGISTERS_168 QUADS_REGISTERS_160 ", %80, %81, %82, %83"
#define QUADS_ACCUMULATORS_168 QUADS_ACCUMULATORS_160, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define QUADS_REGISTERS_176 QUADS_REGISTERS_168 ", %84, %85, %86, %87"
#define QUADS_ACCUMULATORS_176 QUADS_ACCUMULATORS_168, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define QUADS_REGISTERS_184 QUADS_REGISTERS_176 ", %88, %89, %90, %91"
#define QUADS_ACCUMULATORS_184 QUADS_ACCUMULATORS_176, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define QUADS_REGISTERS_192 QUADS_REGISTERS_184 ", %92, %93, %94, %95"
#define QUADS_ACCUMULATORS_192 QUADS_ACCUMULATORS_184, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define QUADS_WGMMA_OF(N, FP16, TYPE, A0, A1, A2, A3, B)                                        \
  template <>                                                                                    \
  __device__ __forceinline__ void wgmma<N, FP16>(float* d, const uint32_t* a, uint64_t b) {      \
    asm volatile("{ .reg .pred add; setp.eq.u32 add, 1, 1; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32." TYPE "." TYPE " {" QUADS_REGISTERS_##N "}, {%" #A0 ", %" #A1         \
                 ", %" #A2 ", %" #A3 "}, %" #B ", add, 1, 1, 0; }"                               \
                 : QUADS_ACCUMULATORS_##N                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                          \
  }
#define QUADS_WGMMA(N, A0, A1, A2, A3, B)              \
  QUADS_WGMMA_OF(N, false, "bf16", A0, A1, A2, A3, B)  \
  QUADS_WGMMA_OF(N, true, "f16", A0, A1, A2, A3, B)
QUADS_WGMMA(8, 4, 5, 6, 7, 8)
QUADS_WGMMA(16, 8, 9, 10, 11, 12)
QUADS_WGMMA(24, 12, 13, 14, 15, 16)
QUADS_WGMMA(32, 16, 17, 18, 19, 20)
QUADS_WGMMA(40, 20, 21, 22, 23, 24)
QUADS_WGMMA(48, 24, 25, 26, 27, 28)
QUADS_WGMMA(56, 28, 29, 30, 31, 32)
QUADS_WGMMA(64, 32, 33, 34, 35, 36)
QUADS_WGMMA(72, 36, 37, 38, 39, 40)
QUADS_WGMMA(80, 40, 41, 42, 43, 44)
QUADS_WGMMA(88, 44, 45, 46, 47, 48)
QUADS_WGMMA(96, 48, 49, 50, 51, 52)
QUADS_WGMMA(112, 56, 57, 58, 59, 60)
QUADS_WGMMA(128, 64, 65, 66, 67, 68)
QUADS_WGMMA(144, 72, 73, 74, 75, 76)
QUADS_WGMMA(160, 80, 81, 82, 83, 84)
QUADS_WGMMA(176, 88, 89, 90, 91, 92)
QUADS_WGMMA(192, 96, 97, 98, 99, 100)
#undef QUADS_WGMMA
#undef QUADS_WGMMA_OF
// clang-format on

}  // namespace quads::kernels::cuda
