// Checks of the QKV rows' arguments.
#include "kernels/cuda/attention/qkv_rows.h"

#include "base/error.h"
#include "kernels/cuda/attention/kv_pages_check.h"
#include "kernels/cuda/attention/qkv_rows_launch.h"

namespace quads::kernels::cuda {

void qkv_rows(const CudaContext& context, const QkvRows& args) {
  check_heads(args.shape, "QKV rows");
  check_places(args.places, "QKV rows");
  require((args.q_norm == nullptr) == (args.k_norm == nullptr),
          "QKV rows: a norm of queries or of keys alone");
  if (args.places.rows > 0) launch_qkv_rows(context, args);
}

}  // namespace quads::kernels::cuda
