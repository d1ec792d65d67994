#include "ops/cuda/linear.h"

#include "ops/cuda/operands.h"
#include "ops/linear.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

namespace cuda = kernels::cuda;

namespace {

cuda::WeightFormat activation_format(bool weight_only) {
  return weight_only ? cuda::WeightFormat::kBf16 : cuda::WeightFormat::kNvfp4;
}

}  // namespace

at::Tensor linear_nvfp4_cuda(const at::Tensor& x, const at::Tensor& weight,
                             const std::optional<at::Tensor>& channel_mask, bool weight_only) {
  const DeviceCall call(x);
  const at::Tensor mask = check_linear(x, weight, channel_mask, weight_only, call.device());
  const Compensation compensation = make_compensation(call, mask);
  const DeviceWeights packed = pack_weights(call, weight.unsqueeze(0), cuda::WeightFormat::kNvfp4,
                                            compensation, false, "linear_nvfp4: weight");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = packed.n;
  const at::Tensor rows = aligned(x).view({-1, packed.k});
  if (rows.size(0) == 0) return call.empty(shape, at::kBFloat16);
  const Places places = every_row(call, rows.size(0));
  const BadRow bad_row(call);
  const DeviceImage image = quantize_image(call, rows, places, places.image_rows, 1,
                                           activation_format(weight_only), compensation, bad_row);
  const at::Tensor y = multiply(call, packed, image, places, cuda::GemmOutput::kFp32);
  bad_row.check("linear_nvfp4: x");
  return y.narrow(1, 0, packed.n)
      .to(at::kBFloat16, false, false, at::MemoryFormat::Contiguous)
      .view(shape);
}

std::tuple<at::Tensor, at::Tensor> linear_nvfp4_backward_cuda(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
    const std::optional<at::Tensor>& channel_mask, bool weight_only) {
  const DeviceCall call(x);
  const at::Tensor mask = check_linear(x, weight, channel_mask, weight_only, call.device());
  const Compensation compensation = make_compensation(call, mask);
  const DeviceWeights packed = pack_weights(call, weight.unsqueeze(0), cuda::WeightFormat::kNvfp4,
                                            {}, false, "linear_nvfp4: weight");
  const BadRow bad_row(call);
  const QuantizedRows input =
      quantized_values(call, x, activation_format(weight_only), compensation, bad_row);
  bad_row.check("linear_nvfp4: x");
  return linear_gradients(dy, x, dequantize(call, packed)[0], input);
}

}  // namespace quads::ops
