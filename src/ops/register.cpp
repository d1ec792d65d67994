// Registers the operators as torch.ops.quads, with their CPU kernels and, for tracing, their
// shapes.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "base/error.h"
#include "kernels/native_fp4/layout.h"
#include "ops/experts.h"
#include "ops/fake_quantize.h"
#include "ops/linear.h"
#include "ops/native_fp4.h"
#include "ops/nvfp4.h"
#include "ops/operators.h"

namespace quads::ops {
namespace {

template <kernels::WeightFormat kWeight, kernels::ActivationFormat kActivation>
at::Tensor fake_quantize(const at::Tensor& x, std::string_view mode) {
  if (mode == "weight") return fake_quantize_weight(x, kWeight, "fake_quantize: x");
  if (mode == "activation") return fake_quantize_activation(x, kActivation, "fake_quantize: x");
  fail("fake_quantize: mode is '{}'; it must be weight or activation", mode);
}

at::Tensor grouped_experts_cpu(const at::Tensor& x, const at::Tensor& gate_up,
                               const at::Tensor& down, const at::Tensor& topk_ids,
                               const at::Tensor& topk_weights, std::string_view precision,
                               const OptionalTensor& gate_up_mask,
                               const OptionalTensor& down_mask) {
  return grouped_experts(x, gate_up, down, topk_ids, topk_weights,
                         {precision, gate_up_mask, down_mask});
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> grouped_experts_backward_cpu(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor& topk_ids, const at::Tensor& topk_weights, std::string_view precision,
    const OptionalTensor& gate_up_mask, const OptionalTensor& down_mask) {
  return grouped_experts_backward(dy, x, gate_up, down, topk_ids, topk_weights,
                                  {precision, gate_up_mask, down_mask});
}

at::Tensor native_fp4_product_cpu(const at::Tensor& codes, const at::Tensor& block_scales,
                                  const at::Tensor& row_scales, const at::Tensor& weight_codes,
                                  const at::Tensor& weight_block_scales,
                                  const at::Tensor& weight_global_scales,
                                  const at::Tensor& offsets) {
  return native_fp4_product({codes, block_scales, row_scales, weight_codes, weight_block_scales,
                             weight_global_scales, offsets});
}

// Shapes and dtypes of the results, for tracing; sizes may be symbols.

at::Tensor with_last(const at::Tensor& like, const c10::SymInt& last, at::ScalarType dtype) {
  std::vector<c10::SymInt> sizes = like.sym_sizes().vec();
  sizes.back() = last;
  return like.new_empty_symint(sizes, dtype);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_nvfp4_meta(const at::Tensor& x,
                                                                   std::optional<double>) {
  return {with_last(x, x.sym_size(-1) / 2, at::kByte),
          with_last(x, x.sym_size(-1) / 16, at::kFloat8_e4m3fn), x.new_empty({}, at::kFloat)};
}

at::Tensor dequantize_nvfp4_meta(const at::Tensor& codes, const at::Tensor&, const at::Tensor&) {
  return with_last(codes, codes.sym_size(-1) * 2, at::kFloat);
}

at::Tensor fake_quantize_meta(const at::Tensor& x, std::string_view) { return at::empty_like(x); }

at::Tensor rac_mask_meta(const at::Tensor& x, double, std::string_view) {
  return x.new_empty_symint({x.sym_size(-1)}, at::kBool);
}

at::Tensor linear_nvfp4_meta(const at::Tensor& x, const at::Tensor& weight, const OptionalTensor&,
                             bool) {
  return with_last(x, weight.sym_size(0), x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> linear_nvfp4_backward_meta(const at::Tensor&,
                                                              const at::Tensor& x,
                                                              const at::Tensor& weight,
                                                              const OptionalTensor&, bool) {
  return {at::empty_like(x), at::empty_like(weight)};
}

at::Tensor grouped_experts_meta(const at::Tensor& x, const at::Tensor&, const at::Tensor&,
                                const at::Tensor&, const at::Tensor&, std::string_view,
                                const OptionalTensor&, const OptionalTensor&) {
  return at::empty_like(x);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> grouped_experts_backward_meta(
    const at::Tensor&, const at::Tensor& x, const at::Tensor& gate_up, const at::Tensor& down,
    const at::Tensor&, const at::Tensor& topk_weights, std::string_view, const OptionalTensor&,
    const OptionalTensor&) {
  return {at::empty_like(x), at::empty_like(gate_up), at::empty_like(down),
          at::empty_like(topk_weights)};
}

// k' depends on how many blocks the mask selects, which tracing cannot know.
void require_no_mask(const OptionalTensor& channel_mask, std::string_view where) {
  require(!channel_mask, "{} with a channel_mask cannot be traced: its shape depends on the mask",
          where);
}

c10::SymInt up_to(const c10::SymInt& x, int64_t multiple) {
  return (x + (multiple - 1)) / multiple * multiple;
}

std::tuple<at::Tensor, at::Tensor> native_fp4_weight_meta(const at::Tensor& codes,
                                                          const at::Tensor&,
                                                          const OptionalTensor& channel_mask) {
  namespace native = kernels::native_fp4;
  require_no_mask(channel_mask, "native_fp4_weight");
  const c10::SymInt k = up_to(codes.sym_size(2) * 2, native::kAlignedK);
  const c10::SymInt columns = up_to(k / native::kBlock, native::kTileColumns);
  return {with_last(codes, k / 2, at::kByte),
          codes.new_empty_symint(
              {codes.sym_size(0), up_to(codes.sym_size(1), native::kTileRows) * columns},
              at::kFloat8_e4m3fn)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> native_fp4_rows_meta(
    const at::Tensor& x, const at::Tensor& offsets, const OptionalTensor& channel_mask) {
  namespace native = kernels::native_fp4;
  require_no_mask(channel_mask, "native_fp4_rows");
  const c10::SymInt rows = x.sym_size(0), groups = offsets.sym_size(0);
  const c10::SymInt k = up_to(x.sym_size(1), native::kAlignedK);
  const c10::SymInt scale_rows =
      (rows + rows.min(groups) * (native::kTileRows - 1)) / native::kTileRows * native::kTileRows;
  return {with_last(x, k / 2, at::kByte),
          x.new_empty_symint({scale_rows, up_to(k / native::kBlock, native::kTileColumns)},
                             at::kFloat8_e4m3fn),
          x.new_empty_symint({rows}, at::kFloat)};
}

at::Tensor native_fp4_product_meta(const at::Tensor& codes, const at::Tensor&, const at::Tensor&,
                                   const at::Tensor& weight_codes, const at::Tensor&,
                                   const at::Tensor&, const at::Tensor&) {
  return with_last(codes, weight_codes.sym_size(1), at::kBFloat16);
}

}  // namespace

TORCH_LIBRARY(quads, m) {
  m.def("quantize_nvfp4(Tensor x, float? global_scale=None) -> (Tensor, Tensor, Tensor)");
  m.def("dequantize_nvfp4(Tensor codes, Tensor block_scales, Tensor global_scale) -> Tensor");
  m.def("fake_quantize_nvfp4(Tensor x, str mode) -> Tensor");
  m.def("fake_quantize_fp8(Tensor x, str mode) -> Tensor");
  m.def("rac_mask(Tensor x, float ratio, str granularity=\"channel\") -> Tensor");
  m.def(
      "linear_nvfp4(Tensor x, Tensor weight, *, Tensor? channel_mask=None, "
      "bool weight_only=False) -> Tensor");
  m.def(
      "linear_nvfp4_backward(Tensor dy, Tensor x, Tensor weight, Tensor? channel_mask, "
      "bool weight_only) -> (Tensor, Tensor)");
  m.def(
      "grouped_experts(Tensor x, Tensor gate_up, Tensor down, Tensor topk_ids, "
      "Tensor topk_weights, str precision, *, Tensor? gate_up_mask=None, "
      "Tensor? down_mask=None) -> Tensor");
  m.def(
      "grouped_experts_backward(Tensor dy, Tensor x, Tensor gate_up, Tensor down, "
      "Tensor topk_ids, Tensor topk_weights, str precision, Tensor? gate_up_mask, "
      "Tensor? down_mask) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def(
      "native_fp4_weight(Tensor codes, Tensor block_scales, *, Tensor? channel_mask=None) -> "
      "(Tensor, Tensor)");
  m.def(
      "native_fp4_rows(Tensor x, Tensor offsets, *, Tensor? channel_mask=None) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "native_fp4_product(Tensor codes, Tensor block_scales, Tensor row_scales, "
      "Tensor weight_codes, Tensor weight_block_scales, Tensor weight_global_scales, "
      "Tensor offsets) -> Tensor");
}

TORCH_LIBRARY_IMPL(quads, CPU, m) {
  using A = kernels::ActivationFormat;
  using W = kernels::WeightFormat;
  m.impl("quantize_nvfp4", &quantize_nvfp4);
  m.impl("dequantize_nvfp4", &dequantize_nvfp4);
  m.impl("fake_quantize_nvfp4", &fake_quantize<W::kNvfp4, A::kNvfp4>);
  m.impl("fake_quantize_fp8", &fake_quantize<W::kFp8, A::kFp8>);
  m.impl("rac_mask", &rac_mask);
  m.impl("linear_nvfp4", &linear_nvfp4);
  m.impl("linear_nvfp4_backward", &linear_nvfp4_backward);
  m.impl("grouped_experts", &grouped_experts_cpu);
  m.impl("grouped_experts_backward", &grouped_experts_backward_cpu);
  m.impl("native_fp4_weight", &native_fp4_weight);
  m.impl("native_fp4_rows", &native_fp4_rows);
  m.impl("native_fp4_product", &native_fp4_product_cpu);
}

TORCH_LIBRARY_IMPL(quads, Meta, m) {
  m.impl("quantize_nvfp4", &quantize_nvfp4_meta);
  m.impl("dequantize_nvfp4", &dequantize_nvfp4_meta);
  m.impl("fake_quantize_nvfp4", &fake_quantize_meta);
  m.impl("fake_quantize_fp8", &fake_quantize_meta);
  m.impl("rac_mask", &rac_mask_meta);
  m.impl("linear_nvfp4", &linear_nvfp4_meta);
  m.impl("linear_nvfp4_backward", &linear_nvfp4_backward_meta);
  m.impl("grouped_experts", &grouped_experts_meta);
  m.impl("grouped_experts_backward", &grouped_experts_backward_meta);
  m.impl("native_fp4_weight", &native_fp4_weight_meta);
  m.impl("native_fp4_rows", &native_fp4_rows_meta);
  m.impl("native_fp4_product", &native_fp4_product_meta);
}

}  // namespace quads::ops
