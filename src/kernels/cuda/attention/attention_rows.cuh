// Attention by mma.sync: a warp copies tiles of 64 positions to a ring in shared memory, the others
// multiply 16 slots each, a slot being a query head of a row; the heads of a KV head lie together.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/attention/attention_units.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tma.cuh"

namespace quads::kernels::cuda {

inline constexpr int kTilePages = kAttentionTile / 16;
inline constexpr int kBoxRows = 32;  // keys and values of a page and head
inline constexpr int kBoxBytes = kBoxRows * 128;

enum class AttendKind : uint8_t { kRow, kRuns, kRunsWgmma };

/// `panels`: of 64 dimensions, the last filled up with zeros.
template <int panels, AttendKind kind>
struct AttendConfig {
  static constexpr int kPanels = panels;
  static constexpr bool kRuns = kind != AttendKind::kRow;
  static constexpr bool kWgmma = kind == AttendKind::kRunsWgmma;
  static constexpr int kWarps = kRuns ? (panels <= 2 ? 8 : 4) : 1;   // that multiply
  static constexpr int kThreads = (kWarps + (kWgmma ? 4 : 1)) * 32;  // and copy
  static constexpr int kStageBytes = kTilePages * panels * kBoxBytes;
  static constexpr int kStages = panels == 1 ? 4 : (kRuns && panels == 2 ? 3 : 2);
  static constexpr int kSums = panels * 32;  // of a thread
  // Sums over the splits so far, each thread's own, so that registers hold one split's.
  static constexpr int kTotalBytes = kRuns ? kSums * kWarps * 32 * 4 : 0;
  static constexpr int kSharedBytes = 2048 + kStages * kStageBytes + kTotalBytes;
  static constexpr int kBlocks = kRuns ? 1 : 220 * 1024 / kSharedBytes;  // of a multiprocessor
  // Of keys, or of values, of a stage where these lie apart: [panel][64 positions].
  static constexpr int kPanelBytes = kAttentionTile * 128;
};

template <class C>
struct AttendRing {
  uint32_t ring, barriers;
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ uint32_t at() const { return ring + slot * C::kStageBytes; }
  __device__ __forceinline__ uint32_t full() const { return barriers + slot * 8; }
  __device__ __forceinline__ uint32_t empty() const { return barriers + (C::kStages + slot) * 8; }
  __device__ __forceinline__ void advance() {
    if (++slot == C::kStages) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// By one warp: the tiles of all units. Lane i copies page i of a tile. When a row is decoded, all
/// tiles but its last are older than the previous kernel: as many as the ring holds do not wait for
/// it.
template <class C, class Walk>
__device__ void stream_tiles(const AttentionArgs& args, const CUtensorMap* kv, Walk walk,
                             AttendRing<C> ring) {
  const int lane = threadIdx.x & 31;
  const uint64_t policy = evict_first_policy();
  AttentionUnit unit;
  int early = C::kRuns ? 0 : C::kStages + 1;  // tiles, and the one before which it waits
  while (walk.next(args, &unit)) {
    for (int tile = unit.tile; tile < unit.tiles_end; ++tile, ring.advance()) {
      if (early > 0 && (--early == 0 || tile == unit.last / kAttentionTile)) {
        early = 0;
        wait_for_previous_kernel();
      }
      const int pages = min(kTilePages, (unit.last - tile * kAttentionTile) / 16 + 1);
      int page = 0;
      if (lane < pages) page = args.places.page_table[unit.table + tile * kTilePages + lane];
      barrier_wait(ring.empty(), ring.parity ^ 1);
      if (lane == 0) barrier_expect(ring.full(), pages * C::kPanels * kBoxBytes);
      __syncwarp();
      if (lane < pages) {
        const int row = (page * args.kv_heads + unit.kv_head) * kBoxRows;
#pragma unroll
        for (int panel = 0; panel < C::kPanels; ++panel) {
          const int column = panel * kBoxColumns;
          if constexpr (C::kWgmma) {
            const uint32_t to = ring.at() + panel * C::kPanelBytes + lane * kBoxBytes / 2;
            copy_box(to, kv, column, row, ring.full());
            copy_box(to + C::kPanels * C::kPanelBytes, kv, column, row + 16, ring.full());
          } else {
            const uint32_t to = ring.at() + (lane * C::kPanels + panel) * kBoxBytes;
            if constexpr (C::kRuns) {
              copy_box(to, kv, column, row, ring.full());
            } else {  // nobody else reads it
              copy_box(to, kv, column, row, ring.full(), policy);
            }
          }
        }
      }
    }
  }
}

/// A thread's part of a warp's 16 slots: slots g and g + 8, of lane 4 g + t.
template <class C>
struct Slots {
  uint32_t q[C::kPanels * 4][4];
  float o[C::kPanels * 8][4];
  RowStats stats[2];  // l: of the thread's own columns
  int position[2];
  int64_t at[2];        // of the head in q and out; < 0: there is none
  int lowest, highest;  // positions of the warp's slots; highest < 0: there are none

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < C::kPanels * 8; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0F;
    }
    stats[0] = stats[1] = {lowest_float(), 0.0F};
  }

  __device__ __forceinline__ void load(const AttentionArgs& args, const AttentionUnit& unit) {
    const int lane = threadIdx.x & 31;
    const int first = static_cast<int>(threadIdx.x >> 5) * 16 + (lane >> 2);
    int low = unit.last;
    int high = -1;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = (first + i * 8) / args.group;
      const int head = unit.kv_head * args.group + (first + i * 8) % args.group;
      const bool there = row < unit.rows;
      position[i] = unit.last;  // what is not there masks nothing
      at[i] = -1;
      if (there) {
        position[i] = C::kRuns ? args.places.positions[unit.row + row] : unit.last;
        at[i] = (static_cast<int64_t>(unit.row + row) * args.heads + head) * args.head_dim;
        high = max(high, position[i]);
      }
      low = min(low, position[i]);
#pragma unroll
      for (int step = 0; step < C::kPanels * 4; ++step) {
        uint32_t a = 0;
        uint32_t b = 0;
        if (there && step * 16 < args.head_dim) {
          const auto* from = reinterpret_cast<const uint32_t*>(args.q + at[i]) + step * 8;
          a = from[lane & 3];
          b = from[4 + (lane & 3)];
        }
        q[step][i] = a;
        q[step][2 + i] = b;
      }
    }
    lowest = __reduce_min_sync(~0U, low);
    highest = __reduce_max_sync(~0U, high);
    clear();
  }

  /// One tile: scores, their softmax, and its product with the values. What lies behind position
  /// `last` may be anything.
  __device__ __forceinline__ void multiply(uint32_t stage, int tile, int last, float scale) {
    float s[8][4] = {};
    uint32_t p[8][2];
    add_scores(stage, s);
    soften(tile, scale, s, p);
    const int used = last - tile * kAttentionTile + 1;
    if (used < kAttentionTile) {
      add_values<true>(stage, p, used);
    } else {
      add_values<false>(stage, p, used);
    }
  }

  __device__ __forceinline__ void add_scores(uint32_t stage, float (&s)[8][4]) const {
    const int lane = threadIdx.x & 31;
    const uint32_t row = lane & 7;
    // Matrix l / 8 of lane l: four chunks of 8 dimensions of 8 keys.
    const uint32_t keys = stage + row * 128;
    const uint32_t key_chunk = ((lane >> 3) ^ row) << 4;
#pragma unroll
    for (int half = 0; half < C::kPanels * 2; ++half) {  // of a panel: 32 dimensions
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uint32_t k[4];
        load_matrices(k, keys + (j / 2 * C::kPanels + half / 2) * kBoxBytes + j % 2 * 1024 +
                             (key_chunk ^ (half % 2 * 64)));
        mma_16x8x16(s[j], q[half * 2], k[0], k[1]);
        mma_16x8x16(s[j], q[half * 2 + 1], k[2], k[3]);
      }
    }
  }

  /// Scores of a tile to probabilities, and all sums to their new scale.
  __device__ __forceinline__ void soften(int tile, float scale, float (&s)[8][4],
                                         uint32_t (&p)[8][2]) {
    const int lane = threadIdx.x & 31;
    if (tile * kAttentionTile + kAttentionTile - 1 > lowest) {
      const int first = tile * kAttentionTile + (lane & 3) * 2;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (first + j * 8 + i % 2 > position[i / 2]) s[j][i] = lowest_float();
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float largest = lowest_float();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        largest = fmaxf(largest, fmaxf(s[j][2 * i], s[j][2 * i + 1]));
      }
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0U, largest, 2));
      const float m = fmaxf(stats[i].m, largest * scale);
      const float from = m == lowest_float() ? 0.0F : m;
      const float keep = exp2_fast(stats[i].m - from);
      float l = 0.0F;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        p[j][i] =
            as_bits(__floats2bfloat162_rn(exp2_fast(__fmaf_rn(s[j][2 * i], scale, -from)),
                                          exp2_fast(__fmaf_rn(s[j][2 * i + 1], scale, -from))));
        l = l + __uint_as_float(p[j][i] << 16);
        l = l + __uint_as_float(p[j][i] & 0xFFFF0000U);
      }
      stats[i].m = m;
      stats[i].l = __fadd_rn(__fmul_rn(stats[i].l, keep), l);
#pragma unroll
      for (int d = 0; d < C::kPanels * 8; ++d) {
        o[d][2 * i] *= keep;
        o[d][2 * i + 1] *= keep;
      }
    }
  }

  /// o += p v. `cut`: only the first `used` positions are there; the others' p are 0, but 0 times a
  /// NaN is not.
  template <bool cut>
  __device__ __forceinline__ void add_values(uint32_t stage, const uint32_t (&p)[8][2], int used) {
    const int lane = threadIdx.x & 31;
    const uint32_t row = lane & 7;
    // Matrices of 8 values x 8 dimensions, transposed: positions 0.., 8.., then the next
    // dimensions.
    const uint32_t values = stage + (16 + (lane >> 3 & 1) * 8 + row) * 128;
    const uint32_t value_chunk = ((lane >> 4) ^ row) << 4;
#pragma unroll
    for (int page = 0; page < kTilePages; ++page) {
      const uint32_t a[4] = {p[2 * page][0], p[2 * page][1], p[2 * page + 1][0],
                             p[2 * page + 1][1]};
      uint32_t keep[2] = {~0U, ~0U};  // of positions 2 t, 2 t + 1 of a matrix
      if constexpr (cut) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int there = used - (page * 16 + i * 8 + (lane & 3) * 2);
          keep[i] = there >= 2 ? ~0U : there == 1 ? 0xFFFFU : 0U;
        }
      }
#pragma unroll
      for (int d = 0; d < C::kPanels * 4; ++d) {  // of 16 dimensions
        uint32_t v[4];
        load_matrices_transposed(
            v, values + (page * C::kPanels + d / 4) * kBoxBytes + (value_chunk ^ (d % 4 * 32)));
        if constexpr (cut) {
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] &= keep[i & 1];
        }
        mma_16x8x16(o[2 * d], a, v[0], v[1]);
        mma_16x8x16(o[2 * d + 1], a, v[2], v[3]);
      }
    }
  }

  /// The sums of l of the four lanes that share a slot.
  __device__ __forceinline__ void finish_split() {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      stats[i].l = stats[i].l + __shfl_xor_sync(~0U, stats[i].l, 1);
      stats[i].l = stats[i].l + __shfl_xor_sync(~0U, stats[i].l, 2);
    }
  }

  __device__ __forceinline__ void store_out(const AttentionArgs& args) const {
    const int column = (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (at[i] < 0) continue;
      const float inverse_l = __fdiv_rn(1.0F, stats[i].l);
#pragma unroll
      for (int d = 0; d < C::kPanels * 8; ++d) {
        if (d * 8 < args.head_dim) {
          *reinterpret_cast<uint32_t*>(args.out + at[i] + d * 8 + column) =
              scaled_pair(o[d][2 * i], o[d][2 * i + 1], inverse_l);
        }
      }
    }
  }

  /// Of a unit of one row.
  __device__ __forceinline__ void store_partial(const AttentionArgs& args,
                                                const AttentionUnit& unit) const {
    const int column = (threadIdx.x & 3) * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (at[i] < 0) continue;
      const int64_t head = at[i] / args.head_dim - static_cast<int64_t>(unit.row) * args.heads;
      const int64_t part =
          (static_cast<int64_t>(unit.row) * args.splits + unit.split) * args.heads + head;
#pragma unroll
      for (int d = 0; d < C::kPanels * 8; ++d) {
        if (d * 8 < args.head_dim) {
          *reinterpret_cast<float2*>(args.partial_sums + part * args.head_dim + d * 8 + column) =
              make_float2(o[d][2 * i], o[d][2 * i + 1]);
        }
      }
      if (column == 0) args.partial_stats[part] = make_float2(stats[i].m, stats[i].l);
    }
  }
};

/// One tile by a warpgroup, in attention_wgmma.cu.
template <class C>
__device__ __forceinline__ void multiply_wgmma(Slots<C>& slots, const AttentionArgs& args,
                                               const AttentionUnit& unit, uint32_t stage, int tile);

template <int panels, AttendKind kind>
__global__ void __launch_bounds__(AttendConfig<panels, kind>::kThreads,
                                  AttendConfig<panels, kind>::kBlocks)
    attend(const __grid_constant__ CUtensorMap kv, const __grid_constant__ AttentionArgs args,
           int tile_rows) {
  using C = AttendConfig<panels, kind>;
  using Walk = std::conditional_t<C::kRuns, RunWalk, RowWalk>;
  extern __shared__ uint8_t shared[];
  AttendRing<C> ring;
  ring.barriers = shared_address(shared);
  ring.ring = (ring.barriers + 1024 + 1023) & ~1023U;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < C::kStages; ++i) {
      barrier_init(ring.barriers + 8 * i, 1);
      barrier_init(ring.barriers + 8 * (C::kStages + i), C::kWarps);
    }
    barrier_init_fence();
  }
  __syncthreads();
  // Where rows lie is older than the previous kernel, unless the device counts them.
  const bool waits = C::kRuns || args.places.row_count != nullptr;
  if (waits) wait_for_previous_kernel();
  Walk walk(args, tile_rows);
  if (warp >= C::kWarps) {
    if constexpr (C::kWgmma) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    if (warp == C::kWarps) stream_tiles<C>(args, &kv, walk, ring);
    return;
  }
  wait_for_previous_kernel();
  let_next_kernel_start();
  if constexpr (C::kWgmma) asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  auto* totals =
      reinterpret_cast<float*>(shared + (ring.ring - ring.barriers) + C::kStages * C::kStageBytes) +
      threadIdx.x;
  RowStats total_stats[2];
  Slots<C> slots;
  AttentionUnit unit;
  while (walk.next(args, &unit)) {
    slots.load(args, unit);
    for (int tile = unit.tile; tile < unit.tiles_end; ++tile, ring.advance()) {
      const bool last = tile == unit.tiles_end - 1;
      barrier_wait(ring.full(), ring.parity);
      if constexpr (C::kWgmma) {
        multiply_wgmma(slots, args, unit, ring.at(), tile);
      } else if (tile * kAttentionTile <= slots.highest) {
        slots.multiply(ring.at(), tile, unit.last, args.scale);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(ring.empty());
      if (!last && tile % kSplitTiles != kSplitTiles - 1) continue;

      slots.finish_split();
      if constexpr (!C::kRuns) {
        if (args.splits == 1 || unit.last < kAttentionSplit) {
          slots.store_out(args);
        } else {
          slots.store_partial(args, unit);
        }
      } else {
        constexpr int kStride = C::kWarps * 32;
        const bool merged = tile >= kSplitTiles;
        if (merged) {
          const SplitMerge merge[2] = {{&total_stats[0], slots.stats[0]},
                                       {&total_stats[1], slots.stats[1]}};
#pragma unroll
          for (int i = 0; i < C::kSums; ++i) {
            float& o = slots.o[i / 4][i % 4];
            o = merge[i % 4 / 2](totals[i * kStride], o);
          }
          slots.stats[0] = total_stats[0];
          slots.stats[1] = total_stats[1];
        }
        if (last) {
          slots.store_out(args);
        } else {
          total_stats[0] = slots.stats[0];
          total_stats[1] = slots.stats[1];
#pragma unroll
          for (int i = 0; i < C::kSums; ++i) totals[i * kStride] = slots.o[i / 4][i % 4];
          slots.clear();
        }
      }
    }
  }
}

template <AttendKind kind, int panels>
void launch_attend(const CudaContext& context, const AttentionRows& rows,
                   const AttentionArgs& args) {
  using C = AttendConfig<panels, kind>;
  const CUtensorMap kv = tensor_map(rows.kv, rows.pages * args.kv_heads * kBoxRows, args.head_dim,
                                    C::kWgmma ? kBoxRows / 2 : kBoxRows);
  const int tile_rows = C::kWarps * 16 / args.group;
  const int64_t units = C::kRuns ? (args.places.rows + tile_rows - 1) / tile_rows * args.kv_heads
                                 : std::min(args.places.rows * args.kv_heads * args.splits,
                                            int64_t{context.multiprocessors} * C::kBlocks);
  check_shared_bytes(context, C::kSharedBytes, args.head_dim);
  launch(context, "attention", attend<panels, kind>, static_cast<int>(units), C::kThreads,
         C::kSharedBytes, kv, args, tile_rows);
}

template <AttendKind kind>
void launch_any_attend(const CudaContext& context, const AttentionRows& rows,
                       const AttentionArgs& args) {
  const int panels = (args.head_dim + kBoxColumns - 1) / kBoxColumns;
  if (panels == 1) return launch_attend<kind, 1>(context, rows, args);
  if constexpr (kind == AttendKind::kRunsWgmma) {
    launch_attend<kind, 2>(context, rows, args);
  } else {
    if (panels == 2) return launch_attend<kind, 2>(context, rows, args);
    if (panels == 3) return launch_attend<kind, 3>(context, rows, args);
    launch_attend<kind, 4>(context, rows, args);
  }
}

}  // namespace quads::kernels::cuda
