// A stable counting sort by expert: a block an expert. Every block counts all slots, so that one
// kernel does it all; ranks come from prefix sums, never from the order in which atomics arrive.
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route_launch.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

/// Sums over the block, in every thread. `partial` is for this sum alone.
__device__ __forceinline__ int sum_over_block(int value, int* partial) {
  const int of_warp = __reduce_add_sync(~0U, value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = of_warp;
  __syncthreads();
  int sum = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) sum += partial[i];
  return sum;
}

/// Calls take(slot, id) for the slots first, first + 1, ... of a warp, a lane each, four rounds of
/// loads at once; id is -1 at and beyond `end`.
template <class Take>
__device__ __forceinline__ void for_slots(const int32_t* ids, int first, int end, Take take) {
  constexpr int kAtOnce = 4;
  for (int round = first; round < end; round += kAtOnce * 32) {
    int slots[kAtOnce];
    int of_slots[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      slots[i] = round + i * 32 + static_cast<int>(threadIdx.x & 31);
      of_slots[i] = slots[i] < end ? ids[slots[i]] : -1;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) take(slots[i], of_slots[i]);
  }
}

__global__ void __launch_bounds__(kThreads) sort(const __grid_constant__ SortSlots args) {
  __shared__ int counts[kMaxExperts];
  __shared__ int of_warps[kWarps];  // slots of the expert
  __shared__ int partials[3][kWarps];
  const int expert = static_cast<int>(blockIdx.x);
  const int slots = static_cast<int>(args.slots);
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int of_warp = ((slots + kWarps - 1) / kWarps + 31) / 32 * 32;
  const int begin = min(warp * of_warp, slots);
  const int end = min(begin + of_warp, slots);
  for (int e = threadIdx.x; e < args.experts; e += kThreads) counts[e] = 0;
  wait_for_previous_kernel();
  let_next_kernel_start();
  __syncthreads();
  int mine = 0;
  for_slots(args.ids, begin, end, [&](int, int id) {
    if (id >= 0 && id < args.experts) atomicAdd(&counts[id], 1);
    mine += id == expert ? 1 : 0;
  });
  mine = __reduce_add_sync(~0U, mine);
  if (threadIdx.x % 32 == 0) of_warps[warp] = mine;
  __syncthreads();
  int index = 0;  // of the warp's next slot in the expert
#pragma unroll
  for (int i = 0; i < kWarps; ++i) index += i < warp ? of_warps[i] : 0;

  int rows_before = 0;
  int padded_before = 0;
  int used = 0;
  for (int e = threadIdx.x; e < args.experts; e += kThreads) {
    const int count = counts[e];
    used += count;
    if (e >= expert) continue;
    rows_before += count;
    padded_before += (count + kImageGroup - 1) / kImageGroup * kImageGroup;
  }
  rows_before = sum_over_block(rows_before, partials[0]);
  used = sum_over_block(used, partials[1]);
  ImageRow place;
  place.base = sum_over_block(padded_before, partials[2]);
  place.padded_rows = (counts[expert] + kImageGroup - 1) / kImageGroup * kImageGroup;
  place.unused = 0;

  if (threadIdx.x == 0) {
    args.expert_offsets[expert] = rows_before;
    if (expert == args.experts - 1) args.expert_offsets[args.experts] = used;
  }
  constexpr ImageRow kNowhere{0, 0, -1, 0};
  for_slots(args.ids, begin, end, [&](int slot, int id) {
    const uint32_t found = __ballot_sync(~0U, id == expert);
    if (id == expert) {
      place.index = index + __popc(found & ((1U << (threadIdx.x & 31)) - 1));
      const int sorted = rows_before + place.index;
      args.sorted_rows[slot] = sorted;
      args.image_rows[slot] = place;
      if (args.sorted_image_rows != nullptr) args.sorted_image_rows[sorted] = place;
      if (args.sorted_tokens != nullptr) args.sorted_tokens[sorted] = slot / args.top_k;
    } else if ((id < 0 || id >= args.experts) && slot < end && slot % args.experts == expert) {
      args.sorted_rows[slot] = -1;
      args.image_rows[slot] = kNowhere;
    }
    index += __popc(found);
  });
  // Sorted rows that no slot took, in turn with the other blocks.
  for (int row = used + expert * kThreads + static_cast<int>(threadIdx.x); row < slots;
       row += args.experts * kThreads) {
    if (args.sorted_image_rows != nullptr) args.sorted_image_rows[row] = kNowhere;
    if (args.sorted_tokens != nullptr) args.sorted_tokens[row] = 0;
  }
}

}  // namespace

void launch_sort_slots(const CudaContext& context, const SortSlots& args) {
  launch(context, "sorting slots", sort, args.experts, kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
