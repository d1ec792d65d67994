#include "ops/cuda/quantize.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/quantize/quantize_codes.h"
#include "numerics/nvfp4.h"
#include "ops/cuda/operands.h"
#include "ops/fake_quantize.h"
#include "ops/nvfp4.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

namespace cuda = kernels::cuda;

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_nvfp4_cuda(
    const at::Tensor& x, std::optional<double> global_scale) {
  constexpr std::string_view kName = "quantize_nvfp4: x";
  const DeviceCall call(x);
  const bool is_float = x.scalar_type() == at::kFloat;
  require_rows(x, is_float ? at::kFloat : at::kBFloat16, 1, kNvfp4Block, kName, call.device());
  const float amax = x.numel() == 0 ? 0.0F : at::amax(at::abs(x)).item<float>();
  if (!std::isfinite(amax)) fail_non_finite(x, kName);
  const float g = quantize_nvfp4_scale(amax, global_scale);
  const auto [codes, scales] = empty_nvfp4(x);
  const at::Tensor values = aligned(x);
  const BadRow bad_row(call);
  cuda::quantize_codes(call.context(), {.x = values.const_data_ptr(),
                                        .x_is_bf16 = !is_float,
                                        .rows = num_rows(x),
                                        .k = x.size(-1),
                                        .global_scale = g,
                                        .codes = mutable_device_data<uint8_t>(codes),
                                        .block_scales = mutable_device_data<uint8_t>(scales),
                                        .first_bad_row = bad_row.data()});
  bad_row.check(kName, "holds a value that rounds beyond BF16's range");
  return {codes, scales, at::full({}, g, x.options().dtype(at::kFloat))};
}

at::Tensor dequantize_nvfp4_cuda(const at::Tensor& codes, const at::Tensor& block_scales,
                                 const at::Tensor& global_scale) {
  const DeviceCall call(codes);
  check_dequantize_nvfp4(codes, block_scales, global_scale, call.device());
  std::vector<int64_t> sizes = codes.sizes().vec();
  sizes.back() *= 2;
  at::Tensor values = call.empty(sizes, at::kFloat);
  const at::Tensor packed = aligned(codes);
  const BadRow bad_row(call);
  cuda::dequantize_codes(call.context(), {.codes = device_data<uint8_t>(packed),
                                          .block_scales = device_data<uint8_t>(block_scales),
                                          .global_scale = device_data<float>(global_scale),
                                          .rows = num_rows(codes),
                                          .k = sizes.back(),
                                          .values = mutable_device_data<float>(values),
                                          .first_bad_row = bad_row.data()});
  bad_row.check("dequantize_nvfp4", "has a block scale that is negative or NaN");
  return values;
}

at::Tensor fake_quantize_activation_cuda(const at::Tensor& x, kernels::ActivationFormat format,
                                         std::string_view where) {
  const DeviceCall call(x);
  require_rows(x, at::kBFloat16, 1, 16, where, call.device());
  const BadRow bad_row(call);
  at::Tensor q = quantized_values(call, x, cuda_format(format), {}, bad_row).q1;
  bad_row.check(where);
  return q;
}

at::Tensor fake_quantize_weight_cuda(const at::Tensor& x, kernels::WeightFormat format,
                                     std::string_view where) {
  const DeviceCall call(x);
  require_rows(x, at::kBFloat16, 2, 32, where, call.device());
  if (x.numel() == 0) return at::empty_like(x);
  const at::Tensor matrices = x.view({-1, x.size(-2), x.size(-1)});
  at::Tensor out = at::empty_like(matrices);
  for (int64_t begin = 0; begin < matrices.size(0); begin += cuda::kMaxExperts) {
    const int64_t count = std::min<int64_t>(cuda::kMaxExperts, matrices.size(0) - begin);
    const DeviceWeights packed =
        pack_weights(call, matrices.narrow(0, begin, count), cuda_format(format), {}, false, where);
    out.narrow(0, begin, count).copy_(dequantize(call, packed));
  }
  return out.view(x.sizes());
}

at::Tensor rac_mask_cuda(const at::Tensor& x, double ratio, std::string_view granularity) {
  constexpr std::string_view kName = "rac_mask: x";
  const DeviceCall call(x);
  require_rows(x, at::kBFloat16, 1, 16, kName, call.device());
  const int64_t k = x.size(-1);
  const at::Tensor sums = call.zeros({k}, at::kLong);
  if (x.numel() > 0) {
    const at::Tensor rows = aligned(x).view({-1, k});
    const Places places = every_row(call, rows.size(0));
    const BadRow bad_row(call);
    quantize_image(call, rows, places, places.image_rows, 1, cuda::WeightFormat::kNvfp4, {},
                   bad_row, sums);
    bad_row.check(kName);
  }
  return mask_of_sums(sums.cpu(), ratio, granularity).to(call.device());
}

}  // namespace quads::ops
