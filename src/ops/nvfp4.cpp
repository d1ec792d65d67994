#include "ops/nvfp4.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>

#include <cmath>

#include "numerics/nvfp4.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {
namespace {

constexpr int64_t kRowBlock = 16;

std::vector<int64_t> with_last(at::IntArrayRef sizes, int64_t last) {
  std::vector<int64_t> result = sizes.vec();
  result.back() = last;
  return result;
}

}  // namespace

float quantize_nvfp4_scale(float amax, std::optional<double> global_scale) {
  const float g = global_scale ? static_cast<float>(*global_scale) : global_scale_pow2(amax);
  require(std::isfinite(g) && g > 0, "quantize_nvfp4: global_scale is {}; it must be positive", g);
  return g;
}

std::tuple<at::Tensor, at::Tensor> empty_nvfp4(const at::Tensor& x) {
  const int64_t k = x.size(-1);
  return {at::empty(with_last(x.sizes(), k / 2), x.options().dtype(at::kByte)),
          at::empty(with_last(x.sizes(), k / kNvfp4Block), x.options().dtype(at::kFloat8_e4m3fn))};
}

void check_dequantize_nvfp4(const at::Tensor& codes, const at::Tensor& block_scales,
                            const at::Tensor& global_scale, const at::Device& device) {
  require_rows(codes, at::kByte, 1, kNvfp4Block / 2, "dequantize_nvfp4: codes", device);
  require_tensor(block_scales, at::kFloat8_e4m3fn, "dequantize_nvfp4: block_scales", device);
  require_tensor(global_scale, at::kFloat, "dequantize_nvfp4: global_scale", device);
  const std::vector<int64_t> expected =
      with_last(codes.sizes(), codes.size(-1) / (kNvfp4Block / 2));
  require(block_scales.sizes() == expected,
          "dequantize_nvfp4: block_scales are {}; for codes {} they must be [{}]",
          describe(block_scales), describe(codes), fmt::join(expected, ", "));
  require(global_scale.numel() == 1, "dequantize_nvfp4: global_scale is {}; it must be one value",
          describe(global_scale));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_nvfp4(const at::Tensor& x,
                                                              std::optional<double> global_scale) {
  constexpr std::string_view kName = "quantize_nvfp4: x";
  const bool is_float = x.scalar_type() == at::kFloat;
  require_rows(x, is_float ? at::kFloat : at::kBFloat16, 1, kNvfp4Block, kName);
  const at::Tensor values = x.to(at::kFloat);
  const int64_t rows = num_rows(x), k = x.size(-1);
  const std::span<const float> data(values.const_data_ptr<float>(),
                                    static_cast<size_t>(values.numel()));
  const float amax = checked_amax(data, rows, k, kName);
  const float g = quantize_nvfp4_scale(amax, global_scale);
  const auto [codes, scales] = empty_nvfp4(x);
  auto* codes_out = codes.mutable_data_ptr<uint8_t>();
  auto* scales_out = static_cast<uint8_t*>(scales.mutable_data_ptr());
  parallel_rows(rows, kRowBlock, [&](const kernels::CpuContext&, int64_t begin, int64_t count) {
    for (int64_t r = begin; r < begin + count; ++r) {
      const QuantisedRow row = quantise_row(
          data.subspan(static_cast<size_t>(r * k), static_cast<size_t>(k)), g, kName, r);
      const std::vector<uint8_t> packed = pack_nibbles(row.codes);
      std::copy(packed.begin(), packed.end(), codes_out + r * (k / 2));
      std::copy(row.block_scales.begin(), row.block_scales.end(),
                scales_out + r * (k / kNvfp4Block));
    }
  });
  return {codes, scales, at::scalar_tensor(g, at::kFloat)};
}

at::Tensor dequantize_nvfp4(const at::Tensor& codes, const at::Tensor& block_scales,
                            const at::Tensor& global_scale) {
  check_dequantize_nvfp4(codes, block_scales, global_scale, at::kCPU);
  const int64_t rows = num_rows(codes), k = 2 * codes.size(-1);
  const float g = *global_scale.const_data_ptr<float>();
  at::Tensor out = at::empty(with_last(codes.sizes(), k), at::kFloat);
  const auto* codes_in = codes.const_data_ptr<uint8_t>();
  const auto* scales_in = static_cast<const uint8_t*>(block_scales.const_data_ptr());
  auto* values = out.mutable_data_ptr<float>();
  parallel_rows(rows, kRowBlock, [&](const kernels::CpuContext&, int64_t begin, int64_t count) {
    const int64_t code = begin * k / 2, scale = begin * k / kNvfp4Block;
    const Nvfp4Matrix part{
        .rows = count,
        .k = k,
        .global_scale = g,
        .packed = {codes_in + code, codes_in + code + count * k / 2},
        .block_scales = {scales_in + scale, scales_in + scale + count * k / kNvfp4Block}};
    const std::vector<float> result = dequantise_nvfp4(part, "dequantize_nvfp4");
    std::copy(result.begin(), result.end(), values + begin * k);
  });
  return out;
}

}  // namespace quads::ops
