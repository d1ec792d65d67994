#include "ops/tensor_checks.h"

namespace quads::ops {

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes(), ", "));
}

void require_tensor(const at::Tensor& tensor, at::ScalarType dtype, std::string_view where,
                    const at::Device& device) {
  require(tensor.layout() == at::kStrided && tensor.device() == device,
          "{} is on {}; it must be a dense tensor on {}", where, tensor.device().str(),
          device.str());
  require(tensor.scalar_type() == dtype, "{} is {}; it must be {}", where, describe(tensor),
          c10::toString(dtype));
  require(tensor.is_contiguous(), "{} ({}) is not contiguous: pass .contiguous()", where,
          describe(tensor));
}

void require_rows(const at::Tensor& tensor, at::ScalarType dtype, int64_t min_dim, int64_t multiple,
                  std::string_view where, const at::Device& device) {
  require_tensor(tensor, dtype, where, device);
  require(tensor.dim() >= min_dim, "{} is {}; it must have at least {} dimensions", where,
          describe(tensor), min_dim);
  const int64_t k = tensor.size(-1);
  require(k > 0 && k % multiple == 0,
          "{} is {}; its last dimension must be a positive multiple of {}", where, describe(tensor),
          multiple);
}

void require_mask(const at::Tensor& mask, int64_t k, std::string_view where,
                  const at::Device& device) {
  require_tensor(mask, at::kBool, where, device);
  require(mask.dim() == 1 && mask.size(0) == k, "{} is {}; it must be [{}]", where, describe(mask),
          k);
}

}  // namespace quads::ops
