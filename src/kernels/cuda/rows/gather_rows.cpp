// Checks of the gathering of rows.
#include "kernels/cuda/rows/gather_rows.h"

#include <climits>

#include "base/error.h"
#include "kernels/cuda/rows/gather_rows_launch.h"

namespace quads::kernels::cuda {

void gather_rows(const CudaContext& context, const GatherRows& args) {
  require(args.d >= 4 && args.d % 4 == 0, "gathering rows of {} values: a multiple of 4", args.d);
  require(args.rows >= 0 && args.rows <= INT_MAX, "gathering {} rows", args.rows);
  if (args.rows > 0) launch_gather_rows(context, args);
}

}  // namespace quads::kernels::cuda
