#include "cuda/device.h"

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace quads::cuda {

void require_device() {
  std::string reason;
  require(kernels::cuda::device_available(&reason), "--device cuda: {}; use --device cpu", reason);
}

}  // namespace quads::cuda
