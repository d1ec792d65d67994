// Checks of the packing kernels' arguments.
#include "kernels/native_fp4/pack_cuda.h"

#include "base/error.h"
#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack_launch.h"

namespace quads::kernels::native_fp4 {
namespace {

PackedShape shape_of(int64_t k, int64_t selected_blocks) {
  require(k > 0 && k % kBlock == 0 && k <= INT32_MAX / 2,
          "native FP4: {} channels; a positive multiple of 16", k);
  require(selected_blocks >= 0 && selected_blocks <= k / kBlock,
          "native FP4: {} compensated blocks of {}", selected_blocks, k / kBlock);
  const int64_t augmented = augmented_k(k, selected_blocks);
  return {.k = augmented, .columns = scale_columns(augmented)};
}

}  // namespace

void pack_weights(const CudaContext& context, const PackWeights& args) {
  const PackedShape shape = shape_of(args.k, args.selected_blocks);
  require(args.n > 0 && args.groups >= 0 && args.groups <= INT32_MAX / args.n,
          "native FP4: {} weights of {} rows", args.groups, args.n);
  if (args.groups > 0) launch_pack_weights(context, args, shape);
}

void pack_rows(const CudaContext& context, const PackRows& args) {
  const PackedShape shape = shape_of(args.k, args.selected_blocks);
  require(args.rows >= 0 && args.rows <= INT32_MAX && args.groups > 0,
          "native FP4: {} rows in {} groups", args.rows, args.groups);
  require((args.place == nullptr) == (args.selected_blocks == 0),
          "native FP4: compensated blocks without their places, or the reverse");
  require(args.first_bad_row != nullptr, "native FP4: nowhere to report a bad row to");
  if (args.rows > 0) launch_pack_rows(context, args, shape);
}

}  // namespace quads::kernels::native_fp4
