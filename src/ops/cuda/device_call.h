// How operators run kernels on tensors of a GPU: on PyTorch's current stream, in its memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <string_view>
#include <vector>

#include "kernels/cuda/context.h"

namespace quads::ops {

/// Makes a tensor's device the current one while an operator runs.
class DeviceCall {
 public:
  explicit DeviceCall(const at::Tensor& tensor);
  const kernels::cuda::CudaContext& context() const { return context_; }
  const at::Device& device() const { return device_; }

  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype) const;
  at::Tensor zeros(at::IntArrayRef sizes, at::ScalarType dtype) const;

 private:
  at::Device device_;
  c10::DeviceGuard guard_;
  kernels::cuda::CudaContext context_;
};

/// Where kernels report the first row that they could not quantise.
class BadRow {
 public:
  explicit BadRow(const DeviceCall& call);
  int32_t* data() const;
  /// Waits for the device. Error naming `where` and the row if one was reported.
  void check(std::string_view where, std::string_view what = "holds a NaN or an infinity") const;

 private:
  at::Tensor row_;
};

/// The tensor, or a copy of it where its data are not aligned to 16 bytes as kernels want them.
at::Tensor aligned(const at::Tensor& tensor);

template <class T>
const T* device_data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<const T*>(tensor.const_data_ptr()) : nullptr;
}
template <class T>
T* mutable_device_data(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.mutable_data_ptr()) : nullptr;
}

/// A vector of the host as a tensor on the call's device.
at::Tensor to_device(const DeviceCall& call, const std::vector<int32_t>& values);

/// Error naming `where`, row and column of the first value that is not finite. Waits for the
/// device.
[[noreturn]] void fail_non_finite(const at::Tensor& x, std::string_view where);

}  // namespace quads::ops
