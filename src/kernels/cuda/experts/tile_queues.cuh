// What warps of a block of tile_gemm.cuh tell each other besides the rings: which units there are,
// and the scales of a unit's rows.
#pragma once

#include "kernels/cuda/experts/units.cuh"
#include "kernels/cuda/ptx.cuh"

namespace quads::kernels::cuda {

/// Units of this block, 16 at a time in two buffers: one warp finds them, all others read.
struct UnitQueue {
  static constexpr int kChunk = 16;
  Unit units[2][kChunk];
  uint64_t barriers[4];  // full, full, empty, empty

  __device__ uint32_t full(int buffer) { return shared_address(&barriers[buffer]); }
  __device__ uint32_t empty(int buffer) { return shared_address(&barriers[2 + buffer]); }
  __device__ void init(int readers) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(full(i), 32);
      barrier_init(empty(i), readers);
    }
  }
  /// By every reader (a warp or a lane) in order: unit i, and after its use release(i).
  __device__ __forceinline__ const Unit& get(int i) {
    const int chunk = i / kChunk;
    if (i % kChunk == 0) barrier_wait(full(chunk & 1), chunk >> 1 & 1);
    return units[chunk & 1][i % kChunk];
  }
  __device__ __forceinline__ void release(int i, bool elected) {
    if (i % kChunk == kChunk - 1 && elected) barrier_arrive(empty(i / kChunk & 1));
  }
};

/// The scales of a unit's rows of activations, where images are in units of them: two units' worth.
template <int columns>
struct RowScales {
  float values[2][columns];
  uint64_t barriers[4];  // full, full, empty, empty

  __device__ void init(int readers) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&barriers[i]), 1);
      barrier_init(shared_address(&barriers[2 + i]), readers);
    }
  }
  /// By one lane, for units in order.
  __device__ void copy(int unit, const float* from, int count) {
    const uint32_t full = shared_address(&barriers[unit & 1]);
    barrier_wait(shared_address(&barriers[2 + (unit & 1)]), (unit >> 1 & 1) ^ 1);
    barrier_expect(full, count * 4);
    bulk_copy(shared_address(values[unit & 1]), from, count * 4, full);
  }
  /// By every reader: a unit's scales, and after their use release.
  __device__ const float* get(int unit) {
    barrier_wait(shared_address(&barriers[unit & 1]), unit >> 1 & 1);
    return values[unit & 1];
  }
  __device__ void release(int unit, bool elected) {
    if (elected) barrier_arrive(shared_address(&barriers[2 + (unit & 1)]));
  }
};

}  // namespace quads::kernels::cuda
