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

/// How a stage's operands lie: rows of 64 k, or 64 rows of k, in panels of 64 columns.
enum class Operands { kRows, kWeightByK, kBothByK };

/// A consumer warp's place in the ring; a stage is released when the next one is on its way.
/// `rows`: of x, at most; `blocks`: of a cluster, which share a ring's stages.
template <int rows, int columns, int stages, int blocks, Operands operands = Operands::kRows>
struct Multiplier {
  static constexpr int kPanelBytes = 64 * 128;
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
  /// A stage's products are of its first `valid` k only: the warpgroup's x is cleared behind them.
  __device__ __forceinline__ void clear_behind(int valid) const {
    static_assert(operands == Operands::kBothByK);
    barrier_wait(barriers + place.slot * 8, place.parity);
    const uint32_t panel = ring + place.slot * kStageBytes + warpgroup * kPanelBytes;
    for (int at = valid * 128 + (threadIdx.x & 127) * 16; at < kPanelBytes; at += 128 * 16) {
      asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(panel + at), "r"(0) : "memory");
    }
    async_fence();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + warpgroup) : "memory");
  }
  /// Starts a stage's products and waits for those of the stage before; `first` of a part of K.
  __device__ __forceinline__ void start(float* sums, bool first) {
    barrier_wait(barriers + place.slot * 8, place.parity);
    const uint32_t at = ring + place.slot * kStageBytes;
    // 64 rows of x and a panel of 64 columns take the same bytes.
    const uint32_t x = at + warpgroup * kPanelBytes;
    const uint64_t a =
        operands == Operands::kBothByK ? column_descriptor(x, kPanelBytes) : box_descriptor(x);
    const uint64_t b = operands == Operands::kRows ? box_descriptor(at + kXBytes)
                                                   : column_descriptor(at + kXBytes, kPanelBytes);
    constexpr int kRowStep = 2, kStepByK = 16 * 128 / 16;  // of 16 k, in descriptors
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const bool add = !first || step > 0;
      if constexpr (operands == Operands::kRows) {
        wgmma_shared<columns>(sums, a + step * kRowStep, b + step * kRowStep, add);
      } else if constexpr (operands == Operands::kWeightByK) {
        wgmma_by_k<columns, false>(sums, a + step * kRowStep, b + step * kStepByK, add);
      } else {
        wgmma_by_k<columns, true>(sums, a + step * kStepByK, b + step * kStepByK, add);
      }
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
