#include "ops/cuda/native_fp4.h"

#include <ATen/BlasBackend.h>
#include <ATen/ops/_scaled_grouped_mm_v2.h>
#include <ATen/ops/_scaled_mm_v2.h>
#include <ATen/ops/ones.h>

#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack.h"
#include "kernels/native_fp4/pack_cuda.h"
#include "kernels/native_fp4/route.h"
#include "numerics/bf16.h"
#include "ops/cuda/device_call.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

namespace native = kernels::native_fp4;

namespace {

native::AugmentedK augmented_on_device(int64_t k, const std::optional<at::Tensor>& mask) {
  return augmented_k(k, mask ? std::optional(mask->cpu()) : std::nullopt);
}

// The two scales of an operand, as PyTorch numbers them.
constexpr int64_t kRecipe[] = {static_cast<int64_t>(at::blas::ScalingType::BlockWise1x16),
                               static_cast<int64_t>(at::blas::ScalingType::TensorWise)};
constexpr int64_t kSwizzle[] = {static_cast<int64_t>(at::blas::SwizzleType::SWIZZLE_32_4_4),
                                static_cast<int64_t>(at::blas::SwizzleType::NO_SWIZZLE)};

// [.., n, k' / 2] bytes as the [.., k' / 2, n] matrix of pairs that PyTorch multiplies by.
at::Tensor transposed_pairs(const at::Tensor& codes) {
  return codes.view(at::kFloat4_e2m1fn_x2).transpose(-2, -1);
}

at::Tensor grouped(const NativeFp4Operands& o, const NativeFp4Sizes& s) {
  const at::Tensor ones = at::ones({s.groups}, o.row_scales.options());
  return at::_scaled_grouped_mm_v2(
      o.codes.view(at::kFloat4_e2m1fn_x2), transposed_pairs(o.weight_codes), {o.block_scales, ones},
      kRecipe, kSwizzle, {o.weight_block_scales, o.weight_global_scales}, kRecipe, kSwizzle,
      o.offsets, std::nullopt, at::kBFloat16);
}

at::Tensor group_by_group(const DeviceCall& call, const NativeFp4Operands& o,
                          const NativeFp4Sizes& s) {
  const at::Tensor ends = o.offsets.cpu();
  native::require_offsets({ends.const_data_ptr<int32_t>(), static_cast<size_t>(s.groups)}, s.rows);
  at::Tensor y = call.empty({s.rows, s.n}, at::kBFloat16);
  const at::Tensor one = at::ones({}, o.row_scales.options());
  int64_t begin = 0, scale_row = 0;
  for (int64_t group = 0; group < s.groups; ++group) {
    const int64_t rows = ends.const_data_ptr<int32_t>()[group] - begin;
    if (rows == 0) continue;
    const int64_t scale_rows = native::round_up(rows, native::kTileRows);
    y.narrow(0, begin, rows)
        .copy_(at::_scaled_mm_v2(o.codes.narrow(0, begin, rows).view(at::kFloat4_e2m1fn_x2),
                                 transposed_pairs(o.weight_codes[group]),
                                 {o.block_scales.narrow(0, scale_row, scale_rows), one}, kRecipe,
                                 kSwizzle,
                                 {o.weight_block_scales[group], o.weight_global_scales[group]},
                                 kRecipe, kSwizzle, std::nullopt, at::kBFloat16));
    begin += rows;
    scale_row += scale_rows;
  }
  return y;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> native_fp4_weight_cuda(
    const at::Tensor& codes, const at::Tensor& block_scales,
    const std::optional<at::Tensor>& channel_mask) {
  const DeviceCall call(codes);
  check_native_fp4_weight(codes, block_scales, channel_mask, call.device());
  const int64_t groups = codes.size(0), n = codes.size(1), k = 2 * codes.size(2);
  const native::AugmentedK augmented = augmented_on_device(k, channel_mask);
  const at::Tensor selected = to_device(call, augmented.selected);
  const at::Tensor in_codes = aligned(codes);
  const at::Tensor packed_codes = call.empty({groups, n, augmented.augmented / 2}, at::kByte);
  const at::Tensor packed_scales = call.empty(
      {groups, native::round_up(n, native::kTileRows) * native::scale_columns(augmented.augmented)},
      at::kFloat8_e4m3fn);
  native::pack_weights(call.context(),
                       {.groups = groups,
                        .n = n,
                        .k = k,
                        .codes = device_data<uint8_t>(in_codes),
                        .block_scales = device_data<uint8_t>(block_scales),
                        .selected = device_data<int32_t>(selected),
                        .selected_blocks = std::ssize(augmented.selected),
                        .packed_codes = mutable_device_data<uint8_t>(packed_codes),
                        .packed_scales = mutable_device_data<uint8_t>(packed_scales)});
  return {packed_codes, packed_scales};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_fp4_rows_cuda(
    const at::Tensor& x, const at::Tensor& offsets, const std::optional<at::Tensor>& channel_mask) {
  const DeviceCall call(x);
  check_native_fp4_rows(x, offsets, channel_mask, call.device());
  const int64_t rows = x.size(0), k = x.size(1), groups = offsets.size(0);
  const at::Tensor ends = offsets.cpu();
  native::require_offsets({ends.const_data_ptr<int32_t>(), static_cast<size_t>(groups)}, rows);
  const native::AugmentedK augmented = augmented_on_device(k, channel_mask);
  const bool compensated = !augmented.selected.empty();
  const at::Tensor place = to_device(call, augmented.place);
  const at::Tensor in = aligned(x);
  const at::Tensor codes = call.empty({rows, augmented.augmented / 2}, at::kByte);
  const at::Tensor scales = call.empty(
      {native::scale_rows_bound(rows, groups), native::scale_columns(augmented.augmented)},
      at::kFloat8_e4m3fn);
  const at::Tensor row_scales = call.empty({rows}, at::kFloat);
  const BadRow bad_row(call);
  native::pack_rows(call.context(),
                    {.x = device_data<Bf16>(in),
                     .rows = rows,
                     .k = k,
                     .offsets = device_data<int32_t>(offsets),
                     .groups = static_cast<int>(groups),
                     .place = compensated ? device_data<int32_t>(place) : nullptr,
                     .selected_blocks = std::ssize(augmented.selected),
                     .channel_mask = compensated ? device_data<uint8_t>(*channel_mask) : nullptr,
                     .codes = mutable_device_data<uint8_t>(codes),
                     .scales = mutable_device_data<uint8_t>(scales),
                     .row_scales = mutable_device_data<float>(row_scales),
                     .first_bad_row = bad_row.data()});
  bad_row.check("native_fp4_rows: x");
  return {codes, scales, row_scales};
}

at::Tensor native_fp4_product_cuda(const NativeFp4Operands& o) {
  const DeviceCall call(o.codes);
  const NativeFp4Sizes s = check_native_fp4(o, call.device());
  const int capability = call.context().capability;
  const native::Route route = native::choose_route(capability / 10, capability % 10);
  if (s.rows == 0) return call.empty({0, s.n}, at::kBFloat16);
  const at::Tensor y =
      route == native::Route::kGrouped ? grouped(o, s) : group_by_group(call, o, s);
  return scale_native_fp4_rows(y, o.row_scales);
}

}  // namespace quads::ops
