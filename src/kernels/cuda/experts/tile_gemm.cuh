// The grouped product for tiles of many rows of N: a persistent block an SM with two rings in
// shared memory that bulk copies fill, one of weights and one of activations, and warpgroups that
// decode weights in registers and multiply, by wgmma (Hopper) or mma.sync.
//
// Two rings and not one, because a stage of weights is free as soon as it is in registers, a stage
// of activations only after its products. The limit is the issue of instructions: the loop decodes
// the next fragments while the tensor cores work on the last ones.
#pragma once

#include <type_traits>

#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/store.cuh"
#include "kernels/cuda/experts/tile_queues.cuh"
#include "kernels/cuda/experts/units.cuh"
#include "kernels/cuda/experts/weight_decoders.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace quads::kernels::cuda {

/// `columns`: rows of activations, q1 and q2, of a tile; `tiles`: of 64 rows of N a warpgroup.
/// Registers: what setmaxnreg gives to consumers and leaves to the copying warps; 0 to leave it.
template <class WeightDecoder, bool wgmma, int warpgroups, int tiles, int columns,
          int weight_stages, int activation_stages, int consumer_registers = 0,
          int producer_registers = 0>
struct TileConfig {
  using Decoder = WeightDecoder;
  static constexpr bool kFp16 = Decoder::kFormat == WeightFormat::kNvfp4Fp16;
  static constexpr bool kWgmma = wgmma;
  static constexpr int kWarpgroups = warpgroups;
  static constexpr int kTiles = tiles;
  static constexpr int kColumns = columns;
  static constexpr int kWeightStages = weight_stages;
  static constexpr int kActivationStages = activation_stages;
  static constexpr int kConsumerRegisters = consumer_registers;
  static constexpr int kProducerRegisters = producer_registers;

  static constexpr int kConsumerWarps = warpgroups * 4;
  static constexpr int kThreads = (warpgroups + 1) * 128;
  static constexpr int kBlockTiles = warpgroups * tiles;
  static constexpr int kSliceBytes = slice_bytes(Decoder::kFormat);
  static constexpr int kTileBytes = kTileSlices * kSliceBytes;
  static constexpr int kWeightBytes = kBlockTiles * kTileBytes;  // of a stage
  static constexpr int kActivationBytes = columns * 2 * kStageK;
  // Barriers come before the rings.
  static constexpr int kSharedBytes =
      1024 + activation_stages * kActivationBytes + weight_stages * kWeightBytes;
};

template <class C>
__device__ void find_units(const GemmArgs& args, const ExpertTable& table, int count, int n_parts,
                           int lane, UnitQueue* queue) {
  for (int first = 0; first < count; first += UnitQueue::kChunk) {
    const int chunk = first / UnitQueue::kChunk;
    barrier_wait(queue->empty(chunk & 1), (chunk >> 1 & 1) ^ 1);
    if (lane < UnitQueue::kChunk && first + lane < count) {
      const int u = static_cast<int>(blockIdx.x + (first + lane) * gridDim.x);
      const int tile = u / n_parts;
      queue->units[chunk & 1][lane] =
          find_unit(table, args, tile, (u - tile * n_parts) * C::kBlockTiles);
    }
    barrier_arrive(queue->full(chunk & 1));
  }
}

/// By one lane: the weights of all units, stage by stage.
template <class C>
__device__ void stream_weights(const GemmArgs& args, int count, uint32_t ring, uint32_t barriers,
                               UnitQueue* queue) {
  const uint64_t policy = evict_first_policy();
  const int64_t tile_bytes = static_cast<int64_t>(args.stages) * C::kTileBytes;
  int slot = 0;
  uint32_t parity = 1;
  for (int u = 0; u < count; ++u) {
    const Unit unit = queue->get(u);
    queue->release(u, true);
    const int tiles = min(C::kBlockTiles, args.n / kTileRows - unit.n_tile);
    const uint8_t* source = args.weights + unit.weight_tile * tile_bytes;
    for (int stage = 0; stage < args.stages; ++stage, source += C::kTileBytes) {
      barrier_wait(barriers + (C::kWeightStages + slot) * 8, parity);
      barrier_expect(barriers + slot * 8, tiles * C::kTileBytes);
#pragma unroll
      for (int i = 0; i < C::kBlockTiles; ++i) {
        if (i >= tiles) break;
        bulk_copy(ring + slot * C::kWeightBytes + i * C::kTileBytes, source + i * tile_bytes,
                  C::kTileBytes, barriers + slot * 8, policy);
      }
      if (++slot == C::kWeightStages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
  // Consumers look one stage ahead without asking whether there is one: the last has no data.
  barrier_wait(barriers + (C::kWeightStages + slot) * 8, parity);
  barrier_arrive(barriers + slot * 8);
}

/// By one lane: the activations of all units; q2 behind q1.
template <class C>
__device__ void stream_activations(const GemmArgs& args, int count, uint32_t ring,
                                   uint32_t barriers, UnitQueue* queue,
                                   RowScales<C::kColumns>* row_scales) {
  wait_for_previous_kernel();
  int slot = 0;
  uint32_t parity = 1;
  for (int u = 0; u < count; ++u) {
    const Unit unit = queue->get(u);
    queue->release(u, true);
    const int columns = unit.columns();
    if constexpr (C::kFp16) {
      row_scales->copy(u, args.row_scales + unit.image_row + unit.image_first, columns);
    }
    const int64_t step = static_cast<int64_t>(unit.padded_rows) * kStageK;
    const int64_t first = unit.image_first * kStageK;
    const int64_t before = static_cast<int64_t>(unit.image_row) * kStageK;
    const uint16_t* q1 = args.q1 + before * args.stages + first;
    const uint16_t* q2 = args.q2 + before * args.residual_stages + first;
    for (int stage = 0; stage < args.stages; ++stage, q1 += step, q2 += step) {
      const bool second = stage < args.residual_stages;
      const uint32_t to = ring + slot * C::kActivationBytes;
      const uint32_t full = barriers + slot * 8;
      const int bytes = columns * 2 * kStageK;
      barrier_wait(barriers + (C::kActivationStages + slot) * 8, parity);
      barrier_expect(full, second ? 2 * bytes : bytes);
      bulk_copy(to, q1, bytes, full);
      if (second) bulk_copy(to + bytes, q2, bytes, full);
      if (++slot == C::kActivationStages) {
        slot = 0;
        parity ^= 1;
      }
    }
  }
}

/// A consumer's place in a ring.
template <int stages, int bytes>
struct Ring {
  uint32_t at, full, first, last_full, parity;

  __device__ __forceinline__ void init(uint32_t ring, uint32_t barriers) {
    at = first = ring;
    full = barriers;
    last_full = barriers + (stages - 1) * 8;
    parity = 0;
  }
  __device__ __forceinline__ void wait() { barrier_wait(full, parity); }
  __device__ __forceinline__ void release(bool elected) {
    __syncwarp();
    if (elected) barrier_arrive(full + stages * 8);
    const bool wrap = full == last_full;
    at = wrap ? first : at + bytes;
    parity ^= wrap ? 1 : 0;
    full = wrap ? last_full - (stages - 1) * 8 : full + 8;
  }
};

/// A consumer warp's state, carried from unit to unit: the stream of weights knows no units. A
/// sub-step is 4 k16 fragments of one m16 slice, two a stage and tile.
template <class C>
struct Consumer {
  static constexpr int kFragments = 4;
  static constexpr int kSubSteps = 8 / kFragments * C::kTiles;

  uint32_t a[2][kFragments][4];  // decoded: of this sub-step and the next
  typename C::Decoder raw;       // of the one after
  Ring<C::kWeightStages, C::kWeightBytes> weights;
  Ring<C::kActivationStages, C::kActivationBytes> activations;
  int lane;

  __device__ __forceinline__ bool elected() const { return lane == 0; }
  /// Sub-step `sub_step` of the stage that is being read, which will use `buffer`.
  __device__ __forceinline__ void load(int sub_step, int buffer) {
    const int half = sub_step / C::kTiles;
    const uint32_t slice = weights.at + sub_step % C::kTiles * C::kTileBytes;
    if constexpr (C::Decoder::kPlain) {
      raw.load_fragments(slice, half, lane, a[buffer]);
    } else {
      raw.load(slice, half, lane);
    }
  }
  __device__ __forceinline__ void decode(int buffer, int pair) {
    if constexpr (!C::Decoder::kPlain) {
      raw.decode(pair, a[buffer][2 * pair], a[buffer][2 * pair + 1]);
    }
  }
  /// Loads what follows sub-step `q`, which used `buffer`, by two.
  __device__ __forceinline__ void load_after(int q, int buffer) {
    if (q == kSubSteps - 2) {
      weights.release(elected());
      weights.wait();
      load(0, buffer);
    } else {
      load(q == kSubSteps - 1 ? 1 : q + 2, buffer);
    }
  }
  __device__ __forceinline__ void start() {
    weights.wait();
    load(0, 0);
    decode(0, 0);
    decode(0, 1);
    load(1, 1);
  }
};

/// One stage: all fragments of the warp's slices times `columns` rows of activations. ptxas keeps
/// wgmma asynchronous only while decoding and waiting are in its basic block, so this is one.
template <int columns, class C, int width>
__device__ __forceinline__ void multiply_stage(Consumer<C>& consumer,
                                               float (&sums)[C::kTiles][width / 2]) {
  constexpr int kSubSteps = Consumer<C>::kSubSteps;
  consumer.activations.wait();
  const uint32_t image = consumer.activations.at;
  const uint32_t descriptor = wgmma_descriptor_word(image);
#pragma unroll
  for (int q = 0; q < kSubSteps; ++q) {
    const int panel = q / C::kTiles;
    const int tile = q % C::kTiles;
    const int buffer = q & 1;
    if constexpr (C::kWgmma) {
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        wgmma<columns, C::kFp16>(sums[tile], consumer.a[buffer][j],
                                 wgmma_descriptor(descriptor, panel * 1024 + j * 32));
      }
      wgmma_commit();
    }
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      consumer.decode(buffer ^ 1, pair);
      if constexpr (!C::kWgmma) {
        const uint32_t row = consumer.lane & 7;
        const uint32_t chunk = pair * 4 + (consumer.lane >> 3);
#pragma unroll
        for (int c = 0; c < columns / 8; ++c) {
          uint32_t b[4];
          load_matrices(b, image + c * 2048 + panel * 1024 + row * 128 + ((chunk ^ row) << 4));
          mma_16x8x16<C::kFp16>(sums[tile] + c * 4, consumer.a[buffer][2 * pair], b[0], b[1]);
          mma_16x8x16<C::kFp16>(sums[tile] + c * 4, consumer.a[buffer][2 * pair + 1], b[2], b[3]);
        }
      }
    }
    // Fragments that need no decoding go to registers that this sub-step's products read.
    if constexpr (C::kWgmma && C::Decoder::kPlain) wgmma_wait_all();
    consumer.load_after(q, buffer);
    if constexpr (C::kWgmma && !C::Decoder::kPlain) wgmma_wait_all();
  }
  consumer.activations.release(consumer.elected());
}

/// Up to so many rows of activations wgmma takes the same time: they share an instance, whose code
/// stays in the caches. A compensated one knows by its rows where q2 begins.
template <class C, bool compensated>
constexpr int kFewestRows = C::kWgmma && !compensated ? 24 : 8;

/// Unit `u` of this block, of at most `rows` rows of activations (a multiple of 8). What lies in
/// shared memory behind its own goes to sums that are not stored.
template <int rows, bool compensated, bool activated, class C>
__device__ __forceinline__ void multiply_unit(const GemmArgs& args, const Unit& unit, int u,
                                              Consumer<C>& consumer,
                                              RowScales<C::kColumns>* row_scales) {
  constexpr int kWidth = compensated ? 2 * rows : rows;
  float sums[C::kTiles][kWidth / 2] = {};
  int stage = 0;
  if constexpr (compensated) {
    for (; stage < args.residual_stages; ++stage) multiply_stage<kWidth, C, kWidth>(consumer, sums);
  }
  for (; stage < args.stages; ++stage) multiply_stage<rows, C, kWidth>(consumer, sums);
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  constexpr bool kCut = rows > 8 && rows == kFewestRows<C, compensated>;
  if constexpr (C::kFp16) {
    const float* scales = row_scales->get(u);
#pragma unroll
    for (int i = 0; i < C::kTiles * rows / 8; ++i) {
      const int j = i % (rows / 8);
      scale_sums(scales + j * 8, consumer.lane, sums[i / (rows / 8)] + j * 4);
    }
    __syncwarp();
    row_scales->release(u, consumer.elected());
  }
#pragma unroll
  for (int tile = 0; tile < C::kTiles; ++tile) {
    if constexpr (compensated) {
#pragma unroll
      for (int i = 0; i < rows / 2; ++i) sums[tile][i] += sums[tile][rows / 2 + i];
    }
    const int n_tile = unit.n_tile + warp / 4 * C::kTiles + tile;
    if (n_tile * kTileRows >= args.n) continue;  // the last tile of N may be cut
    const int row = n_tile * kTileRows + warp % 4 * 16;
    if constexpr (activated) {
      store_activated<rows / 8, kCut>(sums[tile], row, consumer.lane, unit, args);
    } else {
      store_sums<rows / 8, kCut>(sums[tile], row, consumer.lane, unit, args);
    }
  }
}

/// One instance a number of rows: the width of a product is fixed in its instruction.
template <bool compensated, bool activated, class C, int rows = kFewestRows<C, compensated>>
__device__ __forceinline__ void multiply_any(const GemmArgs& args, const Unit& unit, int u,
                                             int columns, Consumer<C>& consumer,
                                             RowScales<C::kColumns>* row_scales) {
  if constexpr (rows * (compensated ? 2 : 1) <= C::kColumns) {
    if (columns <= rows) {
      multiply_unit<rows, compensated, activated>(args, unit, u, consumer, row_scales);
    } else {
      multiply_any<compensated, activated, C, rows + 8>(args, unit, u, columns, consumer,
                                                        row_scales);
    }
  }
}

template <class C, bool compensated, bool activated>
__global__ void __launch_bounds__(C::kThreads, 1) tile_gemm(const __grid_constant__ GemmArgs args) {
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ ExpertTable table;
  __shared__ UnitQueue queue;
  __shared__ __align__(16) RowScales<C::kColumns> row_scales;
  const int lane = threadIdx.x & 31;
  const int warp = __shfl_sync(~0U, threadIdx.x >> 5, 0);
  let_next_kernel_start();

  uint32_t base;  // hidden from the compiler, which would compute it anew at every use
  asm volatile("{\n.reg .u64 t;\ncvta.to.shared.u64 t, %1;\ncvt.u32.u64 %0, t;\n}"
               : "=r"(base)
               : "l"(shared));
  base = __shfl_sync(~0U, base, 0);  // aligned, as declared
  const uint32_t weight_barriers = base;
  const uint32_t activation_barriers = base + 16 * C::kWeightStages;
  const uint32_t activation_ring = base + 1024;
  const uint32_t weight_ring = activation_ring + C::kActivationStages * C::kActivationBytes;

  if (threadIdx.x == 32) {
    for (int i = 0; i < C::kWeightStages; ++i) {
      barrier_init(weight_barriers + 8 * i, 1);
      barrier_init(weight_barriers + 8 * (C::kWeightStages + i), C::kConsumerWarps);
    }
    for (int i = 0; i < C::kActivationStages; ++i) {
      barrier_init(activation_barriers + 8 * i, 1);
      barrier_init(activation_barriers + 8 * (C::kActivationStages + i), C::kConsumerWarps);
    }
    queue.init(C::kConsumerWarps + 2);
    if constexpr (C::kFp16) row_scales.init(C::kConsumerWarps);
    barrier_init_fence();
  }
  constexpr int kTileHeight = compensated ? C::kColumns / 2 : C::kColumns;
  // Units need their scales soon, and wait for one thing after another.
  if (args.global_scales != nullptr) prefetch_l2(args.global_scales, args.experts * 4);
  fill_expert_table(args.expert_offsets, args.experts, kTileHeight, &table);

  const int n_parts = (args.n / kTileRows + C::kBlockTiles - 1) / C::kBlockTiles;
  const int all = table.tiles[args.experts] * n_parts;
  const int blocks = static_cast<int>(gridDim.x);
  const int count = max(0, (all - static_cast<int>(blockIdx.x) + blocks - 1) / blocks);
  if (warp >= C::kConsumerWarps) {
    if constexpr (C::kProducerRegisters > 0) {
      asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(C::kProducerRegisters));
    }
    const int role = warp - C::kConsumerWarps;
    if (role == 0 && lane == 0) {
      stream_weights<C>(args, count, weight_ring, weight_barriers, &queue);
    } else if (role == 1 && lane == 0) {
      stream_activations<C>(args, count, activation_ring, activation_barriers, &queue, &row_scales);
    } else if (role == 2) {
      find_units<C>(args, table, count, n_parts, lane, &queue);
    }
  } else {
    if constexpr (C::kConsumerRegisters > 0) {
      asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(C::kConsumerRegisters));
    }
    Consumer<C> consumer;
    consumer.weights.init(
        weight_ring + warp / 4 * C::kTiles * C::kTileBytes + warp % 4 * C::kSliceBytes,
        weight_barriers);
    // The shuffle tells the compiler that all lanes have the same: descriptors stay uniform.
    consumer.activations.init(__shfl_sync(~0U, activation_ring, 0),
                              __shfl_sync(~0U, activation_barriers, 0));
    // Volatile, or the compiler would derive it anew in every stage.
    asm volatile("mov.u32 %0, %laneid;" : "=r"(consumer.lane));
    consumer.start();
    for (int u = 0; u < count; ++u) {
      // Read where it lies, after the loop over K: registers are what the loop is short of.
      const Unit& unit = queue.get(u);
      multiply_any<compensated, activated>(args, unit, u, unit.columns(), consumer, &row_scales);
      __syncwarp();
      queue.release(u, consumer.elected());
    }
  }
}

/// Shared memory of a block, its static part included.
template <class C>
constexpr int tile_shared_bytes() {
  return C::kSharedBytes +
         static_cast<int>(sizeof(ExpertTable) + sizeof(UnitQueue) + sizeof(RowScales<C::kColumns>));
}

/// Which kernels of a tile are compiled: without a second pass, with one.
enum class Passes { kOne, kTwo, kBoth };

template <class C, Passes passes = Passes::kBoth>
void launch_tile_gemm(const CudaContext& context, const GemmArgs& args, const char* name) {
  const auto run = [&](auto* kernel) {
    launch(context, name, kernel, context.multiprocessors, C::kThreads, C::kSharedBytes, args);
  };
  const auto run_any = [&](auto compensated) {
    constexpr bool kCompensated = decltype(compensated)::value;
    const bool activated = args.output == GemmOutput::kSilu;
    run(activated ? tile_gemm<C, kCompensated, true> : tile_gemm<C, kCompensated, false>);
  };
  if constexpr (passes != Passes::kTwo) {
    if (passes == Passes::kOne || args.residual_stages == 0) return run_any(std::false_type{});
  }
  if constexpr (passes != Passes::kOne) run_any(std::true_type{});
}

}  // namespace quads::kernels::cuda
