// Checks of attention's backward.
#include "kernels/cuda/gradients/attention_backward.h"

#include "base/error.h"
#include "kernels/cuda/gradients/gradient_launch.h"

namespace quads::kernels::cuda {

void attention_backward(const CudaContext& context, const AttentionBackward& args) {
  const HeadShape& shape = args.shape;
  require(shape.kv_heads >= 1 && shape.heads % shape.kv_heads == 0 && shape.head_dim >= 32 &&
              shape.head_dim <= 256 && shape.head_dim % 16 == 0,
          "attention's backward: {} heads, {} of keys, of {} values", shape.heads, shape.kv_heads,
          shape.head_dim);
  require(args.tile_count >= 0 && args.tile_count <= INT32_MAX && shape.heads <= 65535,
          "attention's backward of {} tiles and {} heads", args.tile_count, shape.heads);
  if (args.tile_count > 0) launch_attention_backward(context, args);
}

}  // namespace quads::kernels::cuda
