// Boxes of a tensor map by the copy engine, and what the blocks of a cluster need of each other.
#pragma once

#include <cuda.h>

#include "kernels/cuda/ptx.cuh"

namespace quads::kernels::cuda {

/// The box whose first element is [row, column]; completes on `barrier` with all its bytes, those
/// outside the matrix too.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                         uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int column, int row,
                                         uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
      : "memory");
}
/// To the same place, on the same barrier, of all blocks of the cluster in `mask`.
__device__ __forceinline__ void copy_box_to_all(uint32_t to, const CUtensorMap* map, int column,
                                                int row, uint32_t barrier, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(mask)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// By all threads of all blocks, in turn; what one wrote before arriving, all see after waiting.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uint32_t r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}
__device__ __forceinline__ void store_cluster_8(uint32_t address, float x, float y) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y)
               : "memory");
}
/// From this block's shared memory (async_fence) to another's; completes on a barrier there.
__device__ __forceinline__ void copy_to_block(uint32_t to, uint32_t from, int bytes,
                                              uint32_t barrier, uint32_t rank) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(address_in_block(to, rank)),
      "r"(from), "r"(bytes), "r"(address_in_block(barrier, rank))
      : "memory");
}
/// What this thread wrote to shared memory, the copy engine sees.
__device__ __forceinline__ void async_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/// For ring slots, which hold nothing that this thread wrote.
__device__ __forceinline__ void barrier_arrive_in_block(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in_block(barrier, rank))
               : "memory");
}

/// As load_matrices, each of the four transposed.
__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// The address of a 16-byte chunk of a box's row, swizzled; `box` is aligned to 1024 bytes.
__device__ __forceinline__ uint32_t box_chunk(uint32_t box, int row, int chunk) {
  return box + row * 128 + ((chunk ^ (row & 7)) << 4);
}

}  // namespace quads::kernels::cuda
