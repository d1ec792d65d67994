#include "ops/linear.h"

#include <ATen/ops/empty.h>

#include "kernels/cpu/linear.h"
#include "ops/fake_quantize.h"
#include "ops/matmul.h"
#include "ops/packed_weight.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

using kernels::ActivationFormat;
using kernels::WeightFormat;

at::Tensor check_linear(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& channel_mask, bool weight_only,
                        const at::Device& device) {
  require_rows(x, at::kBFloat16, 1, 32, "linear_nvfp4: x", device);
  require_rows(weight, at::kBFloat16, 2, 32, "linear_nvfp4: weight", device);
  require(weight.dim() == 2 && weight.size(0) > 0 && weight.size(1) == x.size(-1),
          "linear_nvfp4: weight is {}; for x {} it must be [n, {}]", describe(weight), describe(x),
          x.size(-1));
  if (!channel_mask) return {};
  require(!weight_only,
          "linear_nvfp4: channel_mask compensates quantised activations; with "
          "weight_only there are none");
  require_mask(*channel_mask, x.size(-1), "linear_nvfp4: channel_mask", device);
  return *channel_mask;
}

namespace {

constexpr int64_t kRowBlock = 64;
constexpr int64_t kColumnBlock = 256;

ActivationFormat activation_format(bool weight_only) {
  return weight_only ? ActivationFormat::kBf16 : ActivationFormat::kNvfp4;
}

}  // namespace

at::Tensor linear_nvfp4(const at::Tensor& x, const at::Tensor& weight,
                        const std::optional<at::Tensor>& channel_mask, bool weight_only) {
  const at::Tensor mask = check_linear(x, weight, channel_mask, weight_only, at::kCPU);
  const int64_t rows = num_rows(x), n = weight.size(0), k = weight.size(1);
  const PackedWeight packed(weight.unsqueeze(0), WeightFormat::kNvfp4, "linear_nvfp4: weight");
  const QuantizedRows input =
      quantize_rows(x, activation_format(weight_only), mask,
                    kernels::activation_scale(WeightFormat::kNvfp4), "linear_nvfp4: x");
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = n;
  at::Tensor y = at::empty(shape, at::kBFloat16);
  const Bf16* q1 = bf16_data(input.q1);
  const Bf16* q2 = input.q2.defined() ? bf16_data(input.q2) : nullptr;
  Bf16* out = mutable_bf16_data(y);
  const int64_t strips = (n + kColumnBlock - 1) / kColumnBlock;
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  parallel_tasks(row_blocks * strips, [&](const kernels::CpuContext& context, int64_t task) {
    const int64_t row = task / strips * kRowBlock, count = std::min(kRowBlock, rows - row);
    const int64_t begin = task % strips * kColumnBlock, end = std::min(n, begin + kColumnBlock);
    Arena& arena = context.arena();
    const ArenaScope scope(arena);
    float* sums = arena.alloc<float>(count * (end - begin));
    kernels::GemmArgs args{};
    args.weight = &packed.matrix(0);
    args.x = q1 + row * k;
    args.ldx = k;
    args.x2 = q2 ? q2 + row * k : nullptr;
    args.ldx2 = k;
    args.residual_tiles = input.residual_tiles;
    args.y = sums;
    args.ldy = end - begin;
    args.m = count;
    args.n_begin = begin;
    args.n_end = end;
    context.gemm().gemm(args);
    for (int64_t r = 0; r < count; ++r) {
      context.rows().to_bf16(sums + r * (end - begin), end - begin, 1.0F,
                             out + (row + r) * n + begin);
    }
  });
  return y;
}

std::tuple<at::Tensor, at::Tensor> linear_nvfp4_backward(
    const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
    const std::optional<at::Tensor>& channel_mask, bool weight_only) {
  const at::Tensor mask = check_linear(x, weight, channel_mask, weight_only, at::kCPU);
  return linear_gradients(
      dy, x, fake_quantize_weight(weight, WeightFormat::kNvfp4, "linear_nvfp4: weight"),
      quantize_rows(x, activation_format(weight_only), mask, 1.0F, "linear_nvfp4: x"));
}

std::tuple<at::Tensor, at::Tensor> linear_gradients(const at::Tensor& dy, const at::Tensor& x,
                                                    const at::Tensor& weight,
                                                    const QuantizedRows& input) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  require(dy.sizes() == shape && dy.scalar_type() == at::kBFloat16,
          "linear_nvfp4_backward: dy is {}; for x {} and weight {} it must be BFloat16 [{}]",
          describe(dy), describe(x), describe(weight), fmt::join(shape, ", "));
  const int64_t k = weight.size(1);
  const at::Tensor dy_rows = dy.reshape({-1, weight.size(0)});
  at::Tensor dweight = product_f32(dy_rows.t(), input.q1.view({-1, k}));
  if (input.q2.defined()) dweight.add_(product_f32(dy_rows.t(), input.q2.view({-1, k})));
  return {product_f32(dy_rows, weight).to(at::kBFloat16).view(x.sizes()),
          dweight.to(at::kBFloat16)};
}

}  // namespace quads::ops
