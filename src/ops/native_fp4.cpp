#include "ops/native_fp4.h"

#include <ATen/ops/empty.h>

#include "kernels/native_fp4/emulate.h"
#include "kernels/native_fp4/layout.h"
#include "kernels/native_fp4/pack.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

namespace native = kernels::native_fp4;

namespace {

template <class T>
std::span<const T> values_of(const at::Tensor& tensor) {
  return {static_cast<const T*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}
template <class T>
std::span<T> mutable_values_of(const at::Tensor& tensor) {
  return {static_cast<T*>(tensor.mutable_data_ptr()), static_cast<size_t>(tensor.numel())};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> native_fp4_weight(
    const at::Tensor& codes, const at::Tensor& block_scales,
    const std::optional<at::Tensor>& channel_mask) {
  check_native_fp4_weight(codes, block_scales, channel_mask, at::kCPU);
  const int64_t groups = codes.size(0), n = codes.size(1), k = 2 * codes.size(2);
  const native::AugmentedK augmented = augmented_k(k, channel_mask);
  const int64_t scale_bytes =
      native::round_up(n, native::kTileRows) * native::scale_columns(augmented.augmented);
  const at::Tensor packed_codes = at::empty({groups, n, augmented.augmented / 2}, at::kByte);
  const at::Tensor packed_scales = at::empty({groups, scale_bytes}, at::kFloat8_e4m3fn);
  parallel_tasks(groups, [&](const kernels::CpuContext&, int64_t group) {
    const auto part = [&](const auto& values) {
      const auto size = values.size() / static_cast<size_t>(groups);
      return values.subspan(static_cast<size_t>(group) * size, size);
    };
    native::pack_weight(part(values_of<uint8_t>(codes)), part(values_of<uint8_t>(block_scales)), n,
                        augmented, part(mutable_values_of<uint8_t>(packed_codes)),
                        part(mutable_values_of<uint8_t>(packed_scales)));
  });
  return {packed_codes, packed_scales};
}

void check_native_fp4_weight(const at::Tensor& codes, const at::Tensor& block_scales,
                             const std::optional<at::Tensor>& channel_mask,
                             const at::Device& device) {
  require_rows(codes, at::kByte, 3, native::kBlock / 2, "native_fp4_weight: codes", device);
  require_tensor(block_scales, at::kFloat8_e4m3fn, "native_fp4_weight: block_scales", device);
  const int64_t n = codes.size(1), k = 2 * codes.size(2);
  require(codes.dim() == 3 && n > 0 && n % native::kAlignedN == 0,
          "native_fp4_weight: codes are {}; they must be [groups, n, k / 2], n a multiple of {}",
          describe(codes), native::kAlignedN);
  const std::vector<int64_t> expected = {codes.size(0), n, k / native::kBlock};
  require(block_scales.sizes() == expected,
          "native_fp4_weight: block_scales are {}; for codes {} they must be [{}]",
          describe(block_scales), describe(codes), fmt::join(expected, ", "));
  if (channel_mask) require_mask(*channel_mask, k, "native_fp4_weight: channel_mask", device);
}

void check_native_fp4_rows(const at::Tensor& x, const at::Tensor& offsets,
                           const std::optional<at::Tensor>& channel_mask,
                           const at::Device& device) {
  require_rows(x, at::kBFloat16, 2, native::kBlock, "native_fp4_rows: x", device);
  require(x.dim() == 2, "native_fp4_rows: x is {}; it must be [rows, k]", describe(x));
  require_tensor(offsets, at::kInt, "native_fp4_rows: offsets", device);
  require(offsets.dim() == 1 && offsets.size(0) > 0,
          "native_fp4_rows: offsets are {}; they must be [groups]", describe(offsets));
  if (channel_mask) require_mask(*channel_mask, x.size(1), "native_fp4_rows: channel_mask", device);
}

native::AugmentedK augmented_k(int64_t k, const std::optional<at::Tensor>& channel_mask) {
  return native::augment(
      k, channel_mask ? values_of<uint8_t>(*channel_mask) : std::span<const uint8_t>());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_fp4_rows(
    const at::Tensor& x, const at::Tensor& offsets, const std::optional<at::Tensor>& channel_mask) {
  check_native_fp4_rows(x, offsets, channel_mask, at::kCPU);
  const int64_t rows = x.size(0), k = x.size(1);
  const native::AugmentedK augmented = augmented_k(k, channel_mask);
  const at::Tensor codes = at::empty({rows, augmented.augmented / 2}, at::kByte);
  const at::Tensor scales = at::empty(
      {native::scale_rows_bound(rows, offsets.size(0)), native::scale_columns(augmented.augmented)},
      at::kFloat8_e4m3fn);
  const at::Tensor row_scales = at::empty({rows}, at::kFloat);
  const at::Tensor values = x.to(at::kFloat);
  native::pack_rows(values_of<float>(values), values_of<int32_t>(offsets), augmented,
                    channel_mask ? values_of<uint8_t>(*channel_mask) : std::span<const uint8_t>(),
                    {.codes = mutable_values_of<uint8_t>(codes),
                     .scales = mutable_values_of<uint8_t>(scales),
                     .row_scales = mutable_values_of<float>(row_scales)},
                    "native_fp4_rows: x");
  return {codes, scales, row_scales};
}

NativeFp4Sizes check_native_fp4(const NativeFp4Operands& o, const at::Device& device) {
  require_rows(o.codes, at::kByte, 2, native::kAlignedK / 2, "native_fp4_product: codes", device);
  require_rows(o.weight_codes, at::kByte, 3, native::kAlignedK / 2,
               "native_fp4_product: weight_codes", device);
  const auto require_sizes = [&](const at::Tensor& tensor, at::ScalarType dtype,
                                 const std::vector<int64_t>& sizes, std::string_view where) {
    require_tensor(tensor, dtype, where, device);
    require(tensor.sizes() == sizes, "{} is {}; for codes {} and weight_codes {} it must be [{}]",
            where, describe(tensor), describe(o.codes), describe(o.weight_codes),
            fmt::join(sizes, ", "));
  };
  require(o.codes.dim() == 2 && o.weight_codes.dim() == 3 && o.weight_codes.size(0) > 0 &&
              o.weight_codes.size(1) > 0 && o.weight_codes.size(1) % native::kAlignedN == 0 &&
              o.weight_codes.size(2) == o.codes.size(1),
          "native_fp4_product: weight_codes are {}; for codes {} they must be [groups, n, {}], n a "
          "multiple of {}",
          describe(o.weight_codes), describe(o.codes), o.codes.size(-1), native::kAlignedN);
  const NativeFp4Sizes s{.rows = o.codes.size(0),
                         .n = o.weight_codes.size(1),
                         .k = 2 * o.codes.size(1),
                         .groups = o.weight_codes.size(0)};
  const int64_t columns = native::scale_columns(s.k);
  require_sizes(o.block_scales, at::kFloat8_e4m3fn,
                {native::scale_rows_bound(s.rows, s.groups), columns},
                "native_fp4_product: block_scales");
  require_sizes(o.row_scales, at::kFloat, {s.rows}, "native_fp4_product: row_scales");
  require_sizes(o.weight_block_scales, at::kFloat8_e4m3fn,
                {s.groups, native::round_up(s.n, native::kTileRows) * columns},
                "native_fp4_product: weight_block_scales");
  require_sizes(o.weight_global_scales, at::kFloat, {s.groups},
                "native_fp4_product: weight_global_scales");
  require_sizes(o.offsets, at::kInt, {s.groups}, "native_fp4_product: offsets");
  return s;
}

at::Tensor scale_native_fp4_rows(const at::Tensor& y, const at::Tensor& row_scales) {
  return y.to(at::kFloat).mul_(row_scales.unsqueeze(1)).to(at::kBFloat16);
}

at::Tensor native_fp4_product(const NativeFp4Operands& o) {
  const NativeFp4Sizes s = check_native_fp4(o, at::kCPU);
  const at::Tensor sums = at::empty({s.rows, s.n}, at::kFloat);
  native::emulate({.rows = s.rows,
                   .n = s.n,
                   .k = s.k,
                   .offsets = values_of<int32_t>(o.offsets),
                   .codes = values_of<uint8_t>(o.codes),
                   .scales = values_of<uint8_t>(o.block_scales),
                   .weight_codes = values_of<uint8_t>(o.weight_codes),
                   .weight_scales = values_of<uint8_t>(o.weight_block_scales),
                   .global_scales = values_of<float>(o.weight_global_scales)},
                  mutable_values_of<float>(sums));
  return scale_native_fp4_rows(sums.to(at::kBFloat16), o.row_scales);
}

}  // namespace quads::ops
