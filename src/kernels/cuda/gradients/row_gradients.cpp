// Checks of the row gradients' arguments.
#include "kernels/cuda/gradients/row_gradients.h"

#include "base/error.h"
#include "kernels/cuda/gradients/gradient_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kMaxRows = INT32_MAX / 16;

void check_rows(int64_t rows, const char* what) {
  require(rows >= 0 && rows <= kMaxRows, "{} of {} rows; 0..{}", what, rows, kMaxRows);
}

}  // namespace

void round_values(const CudaContext& context, const float* x, int64_t count, Bf16* out) {
  require(count >= 0 && count % 4 == 0, "rounding {} values; a multiple of 4", count);
  if (count > 0) launch_round_values(context, x, count, out);
}

void norm_backward(const CudaContext& context, const NormBackward& args) {
  require(args.d >= 16 && args.d % 16 == 0, "norm's backward of {} values: a multiple of 16",
          args.d);
  check_rows(args.rows, "norm's backward");
  if (args.rows > 0) launch_norm_backward(context, args);
}

void qkv_backward(const CudaContext& context, const QkvBackward& args) {
  check_rows(args.rows, "qkv's backward");
  require((args.q_norm == nullptr) == (args.q_partials == nullptr) &&
              (args.k_norm == nullptr) == (args.k_partials == nullptr),
          "qkv's backward: a norm without room for its gradient, or the reverse");
  require(args.bias_partials == nullptr || (args.q_norm == nullptr && args.k_norm == nullptr),
          "qkv's backward with biases and norms; one of them");
  require(args.shape.heads + args.shape.kv_heads <= 256, "qkv's backward of {} and {} heads",
          args.shape.heads, args.shape.kv_heads);
  if (args.rows > 0) launch_qkv_backward(context, args);
}

void add_partials(const CudaContext& context, const float* partials, int64_t count, int64_t width,
                  float* sums) {
  require(count >= 0 && width >= 1, "adding {} partial sums of {} values", count, width);
  if (count > 0) launch_add_partials(context, partials, count, width, sums);
}

}  // namespace quads::kernels::cuda
