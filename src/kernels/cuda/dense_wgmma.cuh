// What the dense products by wgmma share (sm_90a only): a ring of stages of 64 k, of rows of x and
// `columns` rows of the weight each, and warpgroups that multiply 64 rows of x each.
#pragma once

#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_shared.cuh"

namespace quads::kernels::cuda {

/// A place in the ring.
template <int stages>
struct RingPlace {
  int slot = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++slot == stages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// A consumer warp's place in the ring; a stage is released when the next one is on its way.
/// `rows`: of x, at most; `blocks`: of a cluster, which share a ring's stages.
template <int rows, int columns, int stages, int blocks>
struct Multiplier {
  static constexpr int kXBytes = rows * 128;
  static constexpr int kStageBytes = kXBytes + columns * 128;
  uint32_t ring, barriers;
  int lane, warpgroup;
  RingPlace<stages> place;
  int last_slot = 0;

  __device__ __forceinline__ void release() const {
    const uint32_t empty = barriers + (stages + last_slot) * 8;
    __syncwarp();
    if constexpr (blocks == 1) {
      if (lane == 0) barrier_arrive(empty);
    } else {
      if (lane < blocks) barrier_arrive_in_block(empty, lane);
    }
  }
  /// Starts a stage's products and waits for those of the stage before; `first` of a part of K.
  __device__ __forceinline__ void start(float* sums, bool first) {
    barrier_wait(barriers + place.slot * 8, place.parity);
    const uint32_t at = ring + place.slot * kStageBytes;
    const uint64_t a = box_descriptor(at + warpgroup * 64 * 128);
    const uint64_t b = box_descriptor(at + kXBytes);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      wgmma_shared<columns>(sums, a + step * 2, b + step * 2, !first || step > 0);
    }
    wgmma_commit();
    wgmma_wait_but_one();
    if (!first) release();
    last_slot = place.slot;
    place.advance();
  }
  __device__ __forceinline__ void finish() const {
    wgmma_wait_all();
    release();
  }
};

}  // namespace quads::kernels::cuda
