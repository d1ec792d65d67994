#include "kernels/native_fp4/route.h"

#include "base/error.h"

namespace quads::kernels::native_fp4 {

Route choose_route(int major, int minor) {
  require(major >= 10,
          "native FP4: the device has compute capability {}.{} and no FP4 units, which begin with "
          "10.0; take linear_nvfp4 or grouped_experts, or tensors on the CPU",
          major, minor);
  return major == 10 ? Route::kGrouped : Route::kPerGroup;
}

}  // namespace quads::kernels::native_fp4
