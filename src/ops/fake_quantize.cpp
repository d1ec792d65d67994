#include "ops/fake_quantize.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "numerics/rac.h"
#include "ops/packed_weight.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

using kernels::ActivationFormat;

namespace {
constexpr int64_t kRowBlock = 32;
}

kernels::QuantizeSpec make_spec(int64_t k, ActivationFormat format, const at::Tensor& mask,
                                float out_scale) {
  kernels::QuantizeSpec spec;
  spec.format = format;
  spec.k = k;
  spec.out_scale = out_scale;
  if (mask.defined()) {
    const bool* selected = mask.const_data_ptr<bool>();
    for (int64_t i = 0; i < k; ++i) {
      if (selected[i]) spec.residual_tiles = i / 32 + 1;
    }
    if (spec.residual_tiles > 0) spec.channel_mask = reinterpret_cast<const uint8_t*>(selected);
  }
  return spec;
}

QuantizedRows quantize_rows(const at::Tensor& x, ActivationFormat format, const at::Tensor& mask,
                            float out_scale, std::string_view where) {
  const int64_t k = x.size(-1);
  const kernels::QuantizeSpec spec = make_spec(k, format, mask, out_scale);
  QuantizedRows out;
  out.residual_tiles = spec.residual_tiles;
  out.q1 = at::empty_like(x);
  if (spec.residual_tiles > 0) out.q2 = x.new_zeros(x.sizes());
  const Bf16* in = bf16_data(x);
  Bf16* q1 = mutable_bf16_data(out.q1);
  Bf16* q2 = out.q2.defined() ? mutable_bf16_data(out.q2) : nullptr;
  parallel_rows(num_rows(x), kRowBlock,
                [&](const kernels::CpuContext& context, int64_t begin, int64_t count) {
                  const int64_t at = begin * k;
                  const int64_t bad =
                      context.rows().quantize_rows(in + at, k, count, spec, q1 + at, k,
                                                   q2 ? q2 + at : nullptr, k, nullptr, nullptr);
                  require(bad < 0, "{}: row {} holds a NaN or an infinity", where, begin + bad);
                });
  return out;
}

at::Tensor fake_quantize_activation(const at::Tensor& x, ActivationFormat format,
                                    std::string_view where) {
  require_rows(x, at::kBFloat16, 1, 16, where);
  return quantize_rows(x, format, {}, 1.0F, where).q1;
}

at::Tensor fake_quantize_weight(const at::Tensor& x, kernels::WeightFormat format,
                                std::string_view where) {
  require_rows(x, at::kBFloat16, 2, 32, where);
  if (x.numel() == 0) return at::empty_like(x);
  const at::Tensor matrices = x.view({-1, x.size(-2), x.size(-1)});
  return PackedWeight(matrices, format, where).dequantized().view(x.sizes());
}

at::Tensor rac_mask(const at::Tensor& x, double ratio, std::string_view granularity) {
  constexpr std::string_view kName = "rac_mask: x";
  require_rows(x, at::kBFloat16, 1, 16, kName);
  const int64_t k = x.size(-1);
  kernels::QuantizeSpec spec;
  spec.format = ActivationFormat::kNvfp4;
  spec.k = k;
  const at::Tensor sums = at::zeros({k}, at::kLong);
  auto* sum = sums.mutable_data_ptr<int64_t>();
  std::mutex mutex;  // integer sums: the order of the blocks does not matter
  const Bf16* in = bf16_data(x);
  parallel_rows(num_rows(x), kRowBlock,
                [&](const kernels::CpuContext& context, int64_t begin, int64_t count) {
                  std::vector<int64_t> part(static_cast<size_t>(k), 0);
                  std::vector<Bf16> q1(static_cast<size_t>(count * k));
                  const int64_t bad =
                      context.rows().quantize_rows(in + begin * k, k, count, spec, q1.data(), k,
                                                   nullptr, 0, part.data(), nullptr);
                  require(bad < 0, "{}: row {} holds a NaN or an infinity", kName, begin + bad);
                  const std::lock_guard lock(mutex);
                  std::transform(part.begin(), part.end(), sum, sum, std::plus<>());
                });
  return mask_of_sums(sums, ratio, granularity);
}

at::Tensor mask_of_sums(const at::Tensor& sums, double ratio, std::string_view granularity) {
  require(granularity == "channel" || granularity == "block",
          "rac_mask: granularity is '{}'; it must be channel or block", granularity);
  const std::vector<uint8_t> mask =
      select_mask({sums.const_data_ptr<int64_t>(), static_cast<size_t>(sums.numel())}, ratio,
                  granularity == "channel" ? RacGranularity::kChannel : RacGranularity::kBlock);
  at::Tensor out = at::empty({sums.numel()}, at::kBool);
  std::ranges::copy(mask, static_cast<uint8_t*>(out.mutable_data_ptr()));
  return out;
}

}  // namespace quads::ops
