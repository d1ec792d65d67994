// A stable counting sort by expert: a block a chunk of slots, a thread a slot. Ranks come from
// ballots and prefix sums, never from the order in which atomics arrive.
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/route_launch.h"
#include "kernels/cuda/units.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarps = kSortChunk / 32;

struct Shared {
  uint16_t of_warp[kWarps][kMaxExperts];  // slots of a warp; then of the warps before it
  int before[kMaxExperts];                // slots of the chunks before
  int offsets[kMaxExperts + 1];
  ExpertTable table;
};

/// The thread's slot's expert, -1 for none; fills of_warp; returns how many slots of the expert
/// come before it in its warp.
__device__ int count_warps(const SortSlots& args, Shared* shared, int* expert) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kSortChunk + threadIdx.x;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  for (int e = lane; e < args.experts; e += 32) shared->of_warp[warp][e] = 0;
  __syncwarp();
  const int id = slot < args.slots ? args.ids[slot] : -1;
  *expert = id >= 0 && id < args.experts ? id : -1;
  const uint32_t peers = __match_any_sync(~0U, *expert);
  const int rank = __popc(peers & ((1U << lane) - 1));
  if (*expert >= 0 && rank == 0) {
    shared->of_warp[warp][*expert] = static_cast<uint16_t>(__popc(peers));
  }
  __syncthreads();
  return rank;
}

/// Slots of expert `e` in the chunk; leaves in of_warp what comes before each warp.
__device__ int scan_warps(int e, Shared* shared) {
  int sum = 0;
#pragma unroll 8
  for (int warp = 0; warp < kWarps; ++warp) {
    const int count = shared->of_warp[warp][e];
    shared->of_warp[warp][e] = static_cast<uint16_t>(sum);
    sum += count;
  }
  return sum;
}

__global__ void __launch_bounds__(kSortChunk) count_chunks(const __grid_constant__ SortSlots args) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  auto* shared = reinterpret_cast<Shared*>(dynamic);
  wait_for_previous_kernel();
  let_next_kernel_start();
  int expert;
  count_warps(args, shared, &expert);
  for (int e = threadIdx.x; e < args.experts; e += kSortChunk) {
    args.counts[static_cast<int64_t>(blockIdx.x) * args.experts + e] = scan_warps(e, shared);
  }
}

__global__ void __launch_bounds__(kSortChunk) place_slots(const __grid_constant__ SortSlots args) {
  extern __shared__ __align__(16) uint8_t dynamic[];
  auto* shared = reinterpret_cast<Shared*>(dynamic);
  wait_for_previous_kernel();
  let_next_kernel_start();
  int expert;
  const int rank = count_warps(args, shared, &expert);
  for (int e = threadIdx.x; e < args.experts; e += kSortChunk) {
    int total = scan_warps(e, shared);
    int before = 0;
    if (gridDim.x > 1) {
      total = 0;
      for (int chunk = 0; chunk < static_cast<int>(gridDim.x); ++chunk) {
        if (chunk == static_cast<int>(blockIdx.x)) before = total;
        total += args.counts[static_cast<int64_t>(chunk) * args.experts + e];
      }
    }
    shared->before[e] = before;
    shared->offsets[e + 1] = total;
  }
  if (threadIdx.x == 0) shared->offsets[0] = 0;
  __syncthreads();
  if (threadIdx.x < 32) {  // counts to offsets
    const int lane = threadIdx.x;
    int sum = 0;
    for (int first = 1; first <= args.experts; first += 32) {
      const int e = first + lane;
      int count = e <= args.experts ? shared->offsets[e] : 0;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0U, count, d);
        if (lane >= d) count += other;
      }
      if (e <= args.experts) shared->offsets[e] = sum + count;
      sum += __shfl_sync(~0U, count, 31);
    }
  }
  __syncthreads();
  fill_expert_table(shared->offsets, args.experts, kImageGroup, &shared->table);

  if (blockIdx.x == 0) {
    for (int e = threadIdx.x; e <= args.experts; e += kSortChunk) {
      args.expert_offsets[e] = shared->offsets[e];
    }
  }
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * kSortChunk + threadIdx.x;
  if (slot >= args.slots) return;
  const int used = shared->offsets[args.experts];
  if (slot >= used) {  // the sorted row of this number has no slot
    if (args.sorted_image_rows != nullptr) args.sorted_image_rows[slot] = {0, 0, -1, 0};
    if (args.sorted_tokens != nullptr) args.sorted_tokens[slot] = 0;
  }
  ImageRow place{0, 0, -1, 0};
  int sorted = -1;
  if (expert >= 0) {
    place.base = shared->table.padded[expert];
    place.padded_rows = shared->table.padded[expert + 1] - place.base;
    place.index = shared->before[expert] + shared->of_warp[threadIdx.x >> 5][expert] + rank;
    sorted = shared->offsets[expert] + place.index;
    if (args.sorted_image_rows != nullptr) args.sorted_image_rows[sorted] = place;
    if (args.sorted_tokens != nullptr) {
      args.sorted_tokens[sorted] = static_cast<int32_t>(slot / args.top_k);
    }
  }
  args.sorted_rows[slot] = sorted;
  args.image_rows[slot] = place;
}

}  // namespace

void launch_sort_slots(const CudaContext& context, const SortSlots& args) {
  const int chunks = static_cast<int>((args.slots + kSortChunk - 1) / kSortChunk);
  constexpr int kBytes = sizeof(Shared);
  if (chunks > 1) {
    launch(context, "counting slots", count_chunks, chunks, kSortChunk, kBytes, args);
  }
  launch(context, "sorting slots", place_slots, chunks, kSortChunk, kBytes, args);
}

}  // namespace quads::kernels::cuda
