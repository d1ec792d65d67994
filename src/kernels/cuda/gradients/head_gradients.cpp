// Checks of the gradients at both ends of a model.
#include "kernels/cuda/gradients/head_gradients.h"

#include "base/error.h"
#include "kernels/cuda/gradients/gradient_launch.h"

namespace quads::kernels::cuda {

void logp_backward(const CudaContext& context, const LogpBackward& args) {
  require(args.rows >= 0 && args.rows <= INT32_MAX && args.vocab >= 1 && args.vocab <= INT32_MAX &&
              args.ldd >= args.vocab,
          "log-probabilities' backward of {} rows of {} tokens, {} apart", args.rows, args.vocab,
          args.ldd);
  if (args.rows > 0) launch_logp_backward(context, args);
}

void embed_backward(const CudaContext& context, const EmbedBackward& args) {
  require(args.d >= 4 && args.d % 4 == 0, "embedding's backward of {} values: a multiple of 4",
          args.d);
  require(args.tokens_count >= 0 && args.tokens_count <= INT32_MAX,
          "embedding's backward of {} tokens", args.tokens_count);
  if (args.tokens_count > 0) launch_embed_backward(context, args);
}

}  // namespace quads::kernels::cuda
