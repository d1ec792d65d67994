// Checks of routing's arguments.
#include "kernels/cuda/route.h"

#include "base/error.h"
#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/route_launch.h"

namespace quads::kernels::cuda {
namespace {

int64_t chunks_of(int64_t slots) { return (slots + kSortChunk - 1) / kSortChunk; }

}  // namespace

void route_rows(const CudaContext& context, const RouteRows& args) {
  require(args.experts >= 1 && args.experts <= kMaxExperts, "routing: {} experts; 1..{}",
          args.experts, kMaxExperts);
  require(args.top_k >= 1 && args.top_k <= kMaxTopK && args.top_k <= args.experts,
          "routing: top {} of {} experts; 1..{}", args.top_k, args.experts, kMaxTopK);
  require(args.rows >= 0 && args.rows * args.top_k <= kMaxSlots, "routing: {} rows, top {}",
          args.rows, args.top_k);
  if (args.rows > 0) launch_route_rows(context, args);
}

int64_t sort_scratch(int64_t slots, int experts) { return chunks_of(slots) * experts; }

void sort_slots(const CudaContext& context, const SortSlots& args) {
  require(args.experts >= 1 && args.experts <= kMaxExperts, "sorting slots: {} experts; 1..{}",
          args.experts, kMaxExperts);
  require(args.slots >= 1 && args.slots <= kMaxSlots && args.top_k >= 1,
          "sorting slots: {} slots, top {}; 1..{}", args.slots, args.top_k, kMaxSlots);
  launch_sort_slots(context, args);
}

}  // namespace quads::kernels::cuda
