// Checks of routing's arguments.
#include "kernels/cuda/experts/route.h"

#include "base/error.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route_launch.h"

namespace quads::kernels::cuda {

void route_rows(const CudaContext& context, const RouteRows& args) {
  require(args.experts >= 1 && args.experts <= kMaxExperts, "routing: {} experts; 1..{}",
          args.experts, kMaxExperts);
  require(args.top_k >= 1 && args.top_k <= kMaxTopK && args.top_k <= args.experts,
          "routing: top {} of {} experts; 1..{}", args.top_k, args.experts, kMaxTopK);
  require(args.ldl >= args.experts + (args.shared_weights == nullptr ? 0 : 1),
          "routing: logits of {} experts{} {} apart", args.experts,
          args.shared_weights == nullptr ? "" : " and a shared one", args.ldl);
  require(args.rows >= 0 && args.rows * args.top_k <= kMaxSlots, "routing: {} rows, top {}",
          args.rows, args.top_k);
  if (args.rows > 0) launch_route_rows(context, args);
}

void sort_slots(const CudaContext& context, const SortSlots& args) {
  require(args.experts >= 1 && args.experts <= kMaxExperts, "sorting slots: {} experts; 1..{}",
          args.experts, kMaxExperts);
  require(args.slots >= 1 && args.slots <= kMaxSlots && args.top_k >= 1,
          "sorting slots: {} slots, top {}; 1..{}", args.slots, args.top_k, kMaxSlots);
  launch_sort_slots(context, args);
}

}  // namespace quads::kernels::cuda
