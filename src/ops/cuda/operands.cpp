#include "ops/cuda/operands.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "kernels/block_order.h"
#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/gradients/moe_gradients.h"
#include "kernels/cuda/quantize/dequantize_weights.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "kernels/cuda/quantize/quantize_weights.h"
#include "numerics/bf16.h"

namespace quads::ops {

namespace cuda = kernels::cuda;
using cuda::ImageRow;
using cuda::WeightFormat;

WeightFormat cuda_format(kernels::WeightFormat format) {
  switch (format) {
    case kernels::WeightFormat::kNvfp4:
      return WeightFormat::kNvfp4;
    case kernels::WeightFormat::kFp8:
      return WeightFormat::kFp8;
    case kernels::WeightFormat::kBf16:
      break;
  }
  return WeightFormat::kBf16;
}

WeightFormat cuda_format(kernels::ActivationFormat format) {
  switch (format) {
    case kernels::ActivationFormat::kNvfp4:
      return WeightFormat::kNvfp4;
    case kernels::ActivationFormat::kFp8:
      return WeightFormat::kFp8;
    case kernels::ActivationFormat::kBf16:
      break;
  }
  return WeightFormat::kBf16;
}

Compensation make_compensation(const DeviceCall& call, const at::Tensor& mask) {
  Compensation result;
  if (!mask.defined()) return result;
  const at::Tensor host = mask.cpu();
  const BlockOrder order = compensated_first(
      {static_cast<const uint8_t*>(host.const_data_ptr()), static_cast<size_t>(host.numel())});
  if (order.compensated == 0) return result;
  result.block_position = to_device(call, order.position);
  result.channel_mask = aligned(mask);
  result.residual_blocks = static_cast<int>(order.compensated);
  return result;
}

Places sort_by_expert(const DeviceCall& call, const at::Tensor& ids, int experts) {
  Places places;
  places.rows = ids.size(0);
  places.copies = static_cast<int>(ids.size(1));
  places.experts = experts;
  const int64_t slots = places.slots();
  places.expert_offsets = call.empty({experts + 1}, at::kInt);
  places.sorted_rows = call.empty({slots}, at::kInt);
  places.image_rows = call.empty({slots, 4}, at::kInt);
  places.sorted_image_rows = call.empty({slots, 4}, at::kInt);
  static_assert(sizeof(ImageRow) == 4 * sizeof(int32_t));
  cuda::sort_slots(call.context(),
                   {.ids = device_data<int32_t>(ids),
                    .slots = slots,
                    .experts = experts,
                    .top_k = places.copies,
                    .expert_offsets = mutable_device_data<int32_t>(places.expert_offsets),
                    .sorted_rows = mutable_device_data<int32_t>(places.sorted_rows),
                    .image_rows = mutable_device_data<ImageRow>(places.image_rows),
                    .sorted_image_rows = mutable_device_data<ImageRow>(places.sorted_image_rows)});
  return places;
}

Places every_row(const DeviceCall& call, int64_t rows) {
  return sort_by_expert(call, call.zeros({rows, 1}, at::kInt), 1);
}

DeviceWeights pack_weights(const DeviceCall& call, const at::Tensor& w, WeightFormat format,
                           const Compensation& input, bool paired, std::string_view where) {
  DeviceWeights out;
  out.format = format;
  out.matrices = w.size(0);
  out.n = w.size(1);
  out.k = w.size(2);
  out.padded_n = (out.n + cuda::kTileRows - 1) / cuda::kTileRows * cuda::kTileRows;
  out.paired = paired;
  if (cuda::is_nvfp4(format)) out.block_position = input.block_position;
  require(out.matrices <= cuda::kMaxExperts, "{} has {} matrices; on a GPU at most {}", where,
          out.matrices, cuda::kMaxExperts);
  require(out.k <= cuda::kMaxQuantizedK, "{} has {} columns; on a GPU at most {}", where, out.k,
          cuda::kMaxQuantizedK);
  at::Tensor padded = aligned(w);
  if (out.padded_n != out.n) padded = at::constant_pad_nd(w, {0, 0, 0, out.padded_n - out.n});
  out.fragments =
      call.empty({out.matrices, cuda::fragment_bytes(out.padded_n, out.k, format)}, at::kByte);
  out.global_scales = call.zeros({out.matrices}, at::kFloat);  // none is known yet
  const at::Tensor amax = call.empty({out.matrices}, at::kInt);
  const at::Tensor scratch = call.empty({out.matrices}, at::kInt);
  cuda::quantize_weights(call.context(),
                         {.format = format,
                          .matrices = static_cast<int>(out.matrices),
                          .w = device_data<Bf16>(padded),
                          .stride = out.padded_n * out.k,
                          .n = out.padded_n,
                          .k = out.k,
                          .block_position = device_data<int32_t>(out.block_position),
                          .paired = paired,
                          .fragments = mutable_device_data<uint8_t>(out.fragments),
                          .global_scales = mutable_device_data<float>(out.global_scales),
                          .amax_bits = mutable_device_data<uint32_t>(amax),
                          .scratch = mutable_device_data<uint32_t>(scratch)});
  const at::Tensor host = amax.cpu();
  for (int64_t matrix = 0; matrix < out.matrices; ++matrix) {
    const auto bits = static_cast<uint32_t>(host.const_data_ptr<int32_t>()[matrix]);
    if (bits >= 0x7F80U) fail_non_finite(w[matrix], fmt::format("{}, matrix {}", where, matrix));
    require(bits <= cuda::max_weight_bits(format),
            "{} has amax {} at matrix {}: too large for quantised values on a GPU", where,
            to_float(Bf16{static_cast<uint16_t>(bits)}), matrix);
  }
  return out;
}

at::Tensor dequantize(const DeviceCall& call, const DeviceWeights& weights) {
  const at::Tensor values =
      call.empty({weights.matrices, weights.padded_n, weights.k}, at::kBFloat16);
  cuda::dequantize_weights(call.context(),
                           {.format = weights.format,
                            .matrices = static_cast<int>(weights.matrices),
                            .n = weights.padded_n,
                            .k = weights.k,
                            .fragments = device_data<uint8_t>(weights.fragments),
                            .global_scales = device_data<float>(weights.global_scales),
                            .block_position = device_data<int32_t>(weights.block_position),
                            .paired = weights.paired,
                            .values = mutable_device_data<Bf16>(values)});
  return values.narrow(1, 0, weights.n).contiguous();
}

DeviceImage quantize_image(const DeviceCall& call, const at::Tensor& x, const Places& places,
                           const at::Tensor& image_rows, int copies, WeightFormat format,
                           const Compensation& compensation, const BadRow& bad_row,
                           const at::Tensor& residual_sums) {
  const int64_t k = x.size(1);
  require(k <= cuda::kMaxQuantizedK, "rows of {} values; on a GPU at most {}", k,
          cuda::kMaxQuantizedK);
  const int64_t rows = places.slots();
  DeviceImage image;
  image.residual_stages = cuda::stages_of(int64_t{16} * compensation.residual_blocks);
  image.q1 =
      call.empty({cuda::image_elements(rows, places.experts, cuda::stages_of(k))}, at::kBFloat16);
  if (image.residual_stages > 0) {
    image.q2 = call.empty({cuda::image_elements(rows, places.experts, image.residual_stages)},
                          at::kBFloat16);
  }
  cuda::QuantizeRows args{
      .format = format, .x = device_data<Bf16>(x), .ldx = k, .rows = x.size(0), .k = k};
  args.image_rows = device_data<ImageRow>(image_rows);
  args.copies = copies;
  args.block_position = device_data<int32_t>(compensation.block_position);
  args.residual_blocks = compensation.residual_blocks;
  args.channel_mask = device_data<uint8_t>(compensation.channel_mask);
  args.residual_sums = mutable_device_data<int64_t>(residual_sums);
  args.q1 = mutable_device_data<Bf16>(image.q1);
  args.q2 = mutable_device_data<Bf16>(image.q2);
  args.first_bad_row = bad_row.data();
  cuda::quantize_rows(call.context(), args);
  return image;
}

at::Tensor multiply(const DeviceCall& call, const DeviceWeights& weights, const DeviceImage& image,
                    const Places& places, cuda::GemmOutput output) {
  const bool activated = output == cuda::GemmOutput::kSilu;
  at::Tensor y = call.empty({places.slots(), activated ? weights.padded_n / 2 : weights.padded_n},
                            activated ? at::kBFloat16 : at::kFloat);
  cuda::grouped_gemm(call.context(), {.experts = static_cast<int>(weights.matrices),
                                      .n = weights.padded_n,
                                      .k = weights.k,
                                      .format = weights.format,
                                      .weights = device_data<uint8_t>(weights.fragments),
                                      .global_scales = device_data<float>(weights.global_scales),
                                      .expert_offsets = device_data<int32_t>(places.expert_offsets),
                                      .q1 = device_data<Bf16>(image.q1),
                                      .q2 = device_data<Bf16>(image.q2),
                                      .residual_stages = image.residual_stages,
                                      .y = y.mutable_data_ptr(),
                                      .output = output,
                                      .rows_bound = places.slots()});
  return y;
}

QuantizedRows quantized_values(const DeviceCall& call, const at::Tensor& x, WeightFormat format,
                               const Compensation& compensation, const BadRow& bad_row) {
  const at::Tensor rows = aligned(x).view({-1, x.size(-1)});
  QuantizedRows out;
  if (rows.numel() == 0) {
    out.q1 = at::empty_like(x);
    return out;
  }
  const Places places = every_row(call, rows.size(0));
  const DeviceImage image =
      quantize_image(call, rows, places, places.image_rows, 1, format, compensation, bad_row);
  // q1 alone, or its sum with q2.
  const auto values = [&](const at::Tensor& q1, const at::Tensor& q2) {
    at::Tensor result = call.empty(x.sizes(), at::kBFloat16);
    cuda::image_values(call.context(),
                       {.q1 = device_data<Bf16>(q1),
                        .q2 = device_data<Bf16>(q2),
                        .image_rows = device_data<ImageRow>(places.image_rows),
                        .rows = rows.size(0),
                        .k = rows.size(1),
                        .block_position = device_data<int32_t>(compensation.block_position),
                        .residual_blocks = q2.defined() ? compensation.residual_blocks : 0,
                        .values = mutable_device_data<Bf16>(result)});
    return result;
  };
  out.q1 = values(image.q1, {});
  if (image.q2.defined()) out.q2 = values(at::zeros_like(image.q1), image.q2);
  return out;
}

}  // namespace quads::ops
