// Checks of the experts' gradients.
#include "kernels/cuda/gradients/moe_gradients.h"

#include "base/error.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/gradients/gradient_launch.h"

namespace quads::kernels::cuda {
namespace {

void check(int64_t rows, int64_t width, int64_t multiple, int top_k, const char* what) {
  require(rows >= 0 && rows * top_k <= kMaxSlots, "{} of {} rows; 0..{} choices", what, rows,
          kMaxSlots);
  require(width >= multiple && width % multiple == 0, "{} of {} values: a multiple of {}", what,
          width, multiple);
  require(top_k >= 1 && top_k <= kMaxTopK, "{}: the top {}; 1..{}", what, top_k, kMaxTopK);
}

}  // namespace

void image_values(const CudaContext& context, const ImageValues& args) {
  check(args.rows, args.k, 16, 1, "values of an image");
  if (args.rows > 0) launch_image_values(context, args);
}

void expert_outputs_backward(const CudaContext& context, const ExpertOutputsBackward& args) {
  check(args.rows, args.d, 4, args.top_k, "experts' outputs");
  if (args.rows > 0) launch_expert_outputs_backward(context, args);
}

void silu_backward(const CudaContext& context, const SiluBackward& args) {
  check(args.slots, args.width, 16, 1, "SiLU's backward");
  if (args.slots > 0) launch_silu_backward(context, args);
}

void sum_choices(const CudaContext& context, const SumChoices& args) {
  check(args.rows, args.d, 4, args.top_k, "sums of choices");
  if (args.rows > 0) launch_sum_choices(context, args);
}

void route_backward(const CudaContext& context, const RouteBackward& args) {
  check(args.rows, args.experts, 1, args.top_k, "routing's backward");
  const int64_t logits = args.experts + (args.shared_weights == nullptr ? 0 : 1);
  require(args.experts <= kMaxExperts && args.ldl >= logits && args.ldd >= logits,
          "routing's backward of {} experts in rows of {} and {}", args.experts, args.ldl,
          args.ldd);
  if (args.rows > 0) launch_route_backward(context, args);
}

}  // namespace quads::kernels::cuda
