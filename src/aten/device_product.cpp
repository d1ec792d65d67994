#include "aten/device_product.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/_scaled_grouped_mm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linear.h>
#include <c10/core/InferenceMode.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <vector>

namespace quads {
namespace {

at::Device current_device() { return {at::kCUDA, c10::cuda::current_device()}; }

// Values in E4M3 and the scale of every row [..], which is what multiplies them.
struct Fp8Rows {
  at::Tensor values, scales;
};
Fp8Rows quantised(const at::Tensor& x) {
  constexpr double kMaxE4m3 = 448;
  const at::Tensor scales =
      x.abs().amax(-1, /*keepdim=*/true).to(at::kFloat).clamp_min(1e-12) / kMaxE4m3;
  return {(x / scales).to(at::kFloat8_e4m3fn), scales.squeeze(-1)};
}

class AtenProduct : public DeviceProduct {
 public:
  explicit AtenProduct(const DeviceProductOperands& operands) : kind_(operands.kind) {
    c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
    const c10::InferenceMode inference;
    const at::TensorOptions options =
        at::TensorOptions().dtype(at::kBFloat16).device(current_device());
    const auto view = [&](const Bf16* values, at::IntArrayRef sizes) {
      return at::from_blob(const_cast<Bf16*>(values), sizes, options);
    };
    at::Tensor weight = view(operands.weights, {operands.experts, operands.n, operands.k});
    x_ = view(operands.x, {operands.max_rows, operands.k});
    if (kind_ == DeviceProductKind::kGroupedFp8) {
      const Fp8Rows x = quantised(x_), w = quantised(weight);
      x_ = x.values;
      x_scales_ = x.scales;
      weight = w.values;
      weight_scales_ = w.scales;
    }
    if (kind_ == DeviceProductKind::kLinear) {
      weight = weight[0];
    } else {
      ends_ = at::from_blob(const_cast<int32_t*>(operands.ends), {operands.experts},
                            options.dtype(at::kInt));
    }
    for (int i = 0; i < operands.copies; ++i) weights_.push_back(weight.clone());
    C10_CUDA_CHECK(cudaDeviceSynchronize());
  }
  ~AtenProduct() override {
    weights_.clear();
    x_ = x_scales_ = weight_scales_ = at::Tensor();
    try {
      c10::cuda::CUDACachingAllocator::emptyCache();
    } catch (const c10::Error&) {  // the device has failed, which who uses it next is told
    }
  }

  void run(CUstream_st* stream, int64_t rows, int call) const override {
    const c10::InferenceMode inference;
    const c10::cuda::CUDAStreamGuard guard(
        c10::cuda::getStreamFromExternal(stream, current_device().index()));
    const at::Tensor x = x_.narrow(0, 0, rows);
    const at::Tensor& weight = weights_[static_cast<size_t>(call) % weights_.size()];
    at::Tensor y;
    switch (kind_) {
      case DeviceProductKind::kLinear:
        y = at::linear(x, weight);
        break;
      case DeviceProductKind::kGrouped:
        y = at::_grouped_mm(x, weight.transpose(1, 2), ends_);
        break;
      case DeviceProductKind::kGroupedFp8:
        y = at::_scaled_grouped_mm(x, weight.transpose(1, 2), x_scales_.narrow(0, 0, rows),
                                   weight_scales_, ends_, std::nullopt, std::nullopt, at::kBFloat16,
                                   /*use_fast_accum=*/true);
        break;
    }
  }

 private:
  DeviceProductKind kind_;
  at::Tensor x_, x_scales_, weight_scales_, ends_;
  std::vector<at::Tensor> weights_;
};

}  // namespace

std::unique_ptr<DeviceProduct> make_device_product(const DeviceProductOperands& operands) {
  return std::make_unique<AtenProduct>(operands);
}

}  // namespace quads
