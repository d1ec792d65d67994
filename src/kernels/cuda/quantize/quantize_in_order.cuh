// How one kernel both finds the largest magnitudes of matrices and quantises them, so that values
// come from memory once and from the L2 cache the second time: blocks of threads take work by
// ticket, in an order in which a matrix's tiles follow its parts at a distance.
#pragma once

#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/quantize/quantize_weights.h"

namespace quads::kernels::cuda {

inline constexpr int kQuantizeThreads = 256;
inline constexpr int kQuantizeBlocks = 6;  // a multiprocessor

/// The order: in round r the parts of matrix r are searched, and the tiles of matrix r - distance
/// are quantised.
struct QuantizeOrder {
  int matrices;
  int parts, tiles;  // of a matrix
  /// Rounds between them: all blocks of threads together are busy with fewer.
  int distance;
  uint32_t tickets;

  QuantizeOrder(const CudaContext& context, int matrices, int parts, int tiles)
      : matrices(matrices), parts(parts), tiles(tiles) {
    const int round = parts + tiles;
    const int rounds = (context.multiprocessors * kQuantizeBlocks + round - 1) / round;
    distance = rounds < matrices ? rounds : matrices;
    tickets = static_cast<uint32_t>(matrices + distance) * static_cast<uint32_t>(round);
  }
};

/// The larger bits of the magnitudes of eight values and of those before, as pairs.
__device__ __forceinline__ uint32_t larger_of(uint32_t largest, const uint4& eight) {
  largest = __vmaxu2(largest, eight.x & 0x7FFF7FFFU);
  largest = __vmaxu2(largest, eight.y & 0x7FFF7FFFU);
  largest = __vmaxu2(largest, eight.z & 0x7FFF7FFFU);
  return __vmaxu2(largest, eight.w & 0x7FFF7FFFU);
}

/// The bits of the largest magnitude of a thread's share of values [begin, end), as pairs.
__device__ __forceinline__ uint32_t largest_of_thread(const uint4* words, int64_t begin,
                                                      int64_t end) {
  uint32_t largest = 0;
#pragma unroll 8
  for (int64_t i = begin + threadIdx.x; i < end; i += kQuantizeThreads) {
    largest = larger_of(largest, words[i]);
  }
  return largest;
}

/// Raises *bits, the maximum over all threads; it is the same in any order.
__device__ __forceinline__ void raise_largest(uint32_t pair, uint32_t* bits) {
  const uint32_t of_warp = __reduce_max_sync(~0U, max(pair & 0xFFFFU, pair >> 16));
  if (threadIdx.x % 32 == 0 && of_warp > 0) atomicMax(bits, of_warp);
}

/// Parts of a matrix that are searched as they lie.
inline constexpr int kPartValues = 16384;
inline int parts_of(const QuantizeWeights& args) {
  return static_cast<int>((args.n * args.k + kPartValues - 1) / kPartValues);
}
__device__ __forceinline__ uint32_t largest_of_part(const QuantizeWeights& args, int matrix,
                                                    int part) {
  const auto* words = reinterpret_cast<const uint4*>(args.w + matrix * args.stride);
  const int64_t begin = int64_t{part} * kPartValues;
  const int64_t end = min(begin + kPartValues, args.n * args.k);
  return largest_of_thread(words, begin / 8, end / 8);
}

/// Calls search(matrix, part) for every part, which gives what largest_of_part gives, and
/// quantise(matrix, tile, amax bits) for every tile, all threads of a block together, with a
/// barrier in front of each call. What a search has written, so that lane 0 of the warp sees it, is
/// there for the matrix's tiles. A block that waits for a matrix's parts waits for tickets that
/// others have taken before, so it is not for ever.
template <class Part, class Tile>
__device__ __forceinline__ void quantize_in_order(const QuantizeWeights& args,
                                                  const QuantizeOrder& order, Part&& search,
                                                  Tile&& quantise) {
  constexpr uint32_t kSearched = 0x80000000U;  // beside the bits of a matrix's amax
  struct Item {
    uint32_t ticket, amax;
  };
  __shared__ Item items[2];
  uint32_t* last_ticket = args.progress;
  uint32_t* warps_done = args.progress + 1;          // of every matrix's parts
  uint32_t* searched = warps_done + order.matrices;  // amax bits and kSearched, when all are
  const bool first = threadIdx.x == 0;
  const uint32_t round_items = order.parts + order.tiles;
  // Where the amax stands that a ticket's tile needs; null: it is no tile.
  const auto amax_of = [&](uint32_t ticket) -> const uint32_t* {
    const int matrix = static_cast<int>(ticket / round_items) - order.distance;
    const bool tile = static_cast<int>(ticket % round_items) >= order.parts;
    return tile && matrix >= 0 && ticket < order.tickets ? searched + matrix : nullptr;
  };
  uint32_t following = 0;
  if (first) {
    items[0] = {atomicAdd(last_ticket, 1U), 0};
    const uint32_t* amax = amax_of(items[0].ticket);
    while (amax != nullptr && ((items[0].amax = load_acquire(amax)) & kSearched) == 0) {
      __nanosleep(100);
    }
    following = atomicAdd(last_ticket, 1U);
  }
  for (int turn = 0;; turn ^= 1) {
    __syncthreads();
    const Item item = items[turn];
    if (item.ticket >= order.tickets) break;
    // The next item's latencies pass during this one's work: the ticket after it, and its amax.
    Item next = {following, 0};
    const uint32_t* amax = first ? amax_of(next.ticket) : nullptr;
    if (first) following = atomicAdd(last_ticket, 1U);
    if (amax != nullptr) next.amax = load_acquire(amax);

    const int round = static_cast<int>(item.ticket / round_items);
    const int place = static_cast<int>(item.ticket % round_items);
    if (place < order.parts) {
      if (round < order.matrices) {
        raise_largest(search(round, place), args.amax_bits + round);
        if (threadIdx.x % 32 == 0) {
          const uint32_t warps = order.parts * (kQuantizeThreads / 32);
          __threadfence();
          if (atomicAdd(warps_done + round, 1U) == warps - 1) {
            __threadfence();
            *static_cast<volatile uint32_t*>(searched + round) =
                __ldcg(args.amax_bits + round) | kSearched;
          }
        }
      }
    } else if (round >= order.distance) {
      quantise(round - order.distance, place - order.parts, item.amax & ~kSearched);
    }
    if (first) {
      while (amax != nullptr && (next.amax & kSearched) == 0) {
        __nanosleep(100);
        next.amax = load_acquire(amax);
      }
      items[turn ^ 1] = next;
    }
  }
}

}  // namespace quads::kernels::cuda
