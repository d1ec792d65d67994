// How warps of wgmma kernels bring FP32 sums to memory: through shared memory, so that lanes store
// four neighbours of a row; or added by the L2 cache to what lies there.
#pragma once

namespace quads::kernels::cuda {

/// Floats from a row of a warp's 16 x 32 block to the next: neither lanes that write their sums nor
/// lanes that read four neighbours meet in a bank.
inline constexpr int kStoreStride = 40;
inline constexpr int kStoreColumns = 32;
inline constexpr int kStoreBytesOfWarp = 16 * kStoreStride * 4;

/// By a warp: sums of 16 rows and four steps of 8 columns to its block in shared memory.
__device__ __forceinline__ void stage_block(const float* sums, float* buffer) {
  const int lane = threadIdx.x & 31;
  float* to = buffer + (lane >> 2) * kStoreStride + (lane & 3) * 2;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    *reinterpret_cast<float2*>(to + j * 8) = make_float2(sums[j * 4], sums[j * 4 + 1]);
    *reinterpret_cast<float2*>(to + j * 8 + 8 * kStoreStride) =
        make_float2(sums[j * 4 + 2], sums[j * 4 + 3]);
  }
  __syncwarp();
}

/// Four neighbours are added to y where it lies, by the L2 cache, and nobody waits. Each is added
/// to once, so that the order is none. Subnormals count as zeros.
__device__ __forceinline__ void add_in_place(float* y, float4 sums) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(y), "f"(sums.x),
               "f"(sums.y), "f"(sums.z), "f"(sums.w)
               : "memory");
}

}  // namespace quads::kernels::cuda
