#include "ops/cuda/device_call.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <climits>

#include "base/error.h"

namespace quads::ops {

using kernels::cuda::Stream;

// The stream is asked for by way of PyTorch's device interface, so that this library does not need
// PyTorch's CUDA libraries to be loaded.
DeviceCall::DeviceCall(const at::Tensor& tensor) : device_(tensor.device()), guard_(device_) {
  const c10::impl::VirtualGuardImpl torch_cuda(at::kCUDA);
  kernels::cuda::use_device(device_.index());
  context_ = kernels::cuda::make_context(
      static_cast<Stream>(torch_cuda.getStream(device_).native_handle()));
}

at::Tensor DeviceCall::empty(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::empty(sizes, at::TensorOptions().dtype(dtype).device(device_));
}

at::Tensor DeviceCall::zeros(at::IntArrayRef sizes, at::ScalarType dtype) const {
  return at::zeros(sizes, at::TensorOptions().dtype(dtype).device(device_));
}

BadRow::BadRow(const DeviceCall& call)
    : row_(at::full({1}, INT_MAX, at::TensorOptions().dtype(at::kInt).device(call.device()))) {}

int32_t* BadRow::data() const { return mutable_device_data<int32_t>(row_); }

void BadRow::check(std::string_view where, std::string_view what) const {
  const int row = row_.item<int>();
  require(row == INT_MAX, "{}: row {} {}", where, row, what);
}

at::Tensor aligned(const at::Tensor& tensor) {
  const bool is = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
  return is ? tensor : tensor.clone();
}

at::Tensor to_device(const DeviceCall& call, const std::vector<int32_t>& values) {
  const at::Tensor host =
      at::from_blob(const_cast<int32_t*>(values.data()), {std::ssize(values)}, at::kInt);
  return host.to(call.device());
}

void fail_non_finite(const at::Tensor& x, std::string_view where) {
  const at::Tensor bad = at::isfinite(x).logical_not().view({-1, x.size(-1)}).nonzero()[0].cpu();
  const auto* at = bad.const_data_ptr<int64_t>();
  fail("{}: row {}, column {} is not finite", where, at[0], at[1]);
}

}  // namespace quads::ops
