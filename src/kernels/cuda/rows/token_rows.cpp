// Checks of the token rows' arguments.
#include "kernels/cuda/rows/token_rows.h"

#include "base/error.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/rows/token_rows_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kMaxRows = INT32_MAX / 16;

void check_norm(int64_t d) {
  require(d >= 16 && d % 16 == 0 && d <= kMaxNormD,
          "norm of rows of {} values: a multiple of 16, at most {}", d, kMaxNormD);
}

}  // namespace

void embed_rows(const CudaContext& context, const EmbedRows& args) {
  require(args.d >= 8 && args.d % 8 == 0, "embedding rows of {} values: a multiple of 8", args.d);
  require(args.rows >= 0 && args.rows <= kMaxRows && args.vocab >= 1,
          "embedding {} rows of a vocabulary of {}", args.rows, args.vocab);
  if (args.rows > 0) launch_embed_rows(context, args);
}

void norm_rows(const CudaContext& context, const NormRows& args) {
  check_norm(args.d);
  require(args.rows >= 0 && args.rows <= kMaxRows, "norm of {} rows; 0..{}", args.rows, kMaxRows);
  if (args.rows > 0) launch_norm_rows(context, args);
}

void combine_rows(const CudaContext& context, const CombineRows& args) {
  require(args.d >= 4 && args.d % 4 == 0, "combining rows of {} values: a multiple of 4", args.d);
  require(args.rows >= 0 && args.rows <= kMaxRows, "combining {} rows; 0..{}", args.rows, kMaxRows);
  require(args.top_k >= 0 && args.top_k <= kMaxTopK, "combining the top {}; 0..{}", args.top_k,
          kMaxTopK);
  if (args.h != nullptr) check_norm(args.d);
  if (args.rows > 0) launch_combine_rows(context, args);
}

void add_bias(const CudaContext& context, const AddBias& args) {
  require(args.d >= 4 && args.d % 4 == 0, "adding a bias of {} values: a multiple of 4", args.d);
  require(args.rows >= 0 && args.rows <= kMaxRows, "adding a bias to {} rows; 0..{}", args.rows,
          kMaxRows);
  if (args.rows > 0) launch_add_bias(context, args);
}

}  // namespace quads::kernels::cuda
