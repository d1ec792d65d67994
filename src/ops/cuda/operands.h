// What the grouped product of kernels/cuda multiplies, made of tensors on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/experts/weight_format.h"
#include "ops/cuda/device_call.h"
#include "ops/fake_quantize.h"

namespace quads::ops {

/// Formats as the CUDA kernels name them.
kernels::cuda::WeightFormat cuda_format(kernels::WeightFormat format);
kernels::cuda::WeightFormat cuda_format(kernels::ActivationFormat format);

/// Compensated channels: their blocks come first along K.
struct Compensation {
  at::Tensor block_position;  // int32 [k / 16]; undefined without compensation
  at::Tensor channel_mask;    // bool [k]
  int residual_blocks = 0;
};
/// Of a mask [k] bool, may be undefined. Waits for the device.
Compensation make_compensation(const DeviceCall& call, const at::Tensor& mask);

/// Where rows go: sorted by expert, in images too.
struct Places {
  int64_t rows = 0;  // before sorting
  int copies = 1;    // of a row: its choices
  int experts = 1;
  at::Tensor expert_offsets, sorted_rows, image_rows, sorted_image_rows;
  int64_t slots() const { return rows * copies; }
};
/// ids int32 [rows, top_k] in range, not empty.
Places sort_by_expert(const DeviceCall& call, const at::Tensor& ids, int experts);
/// All rows, at least one, in order.
Places every_row(const DeviceCall& call, int64_t rows);

/// Weights of one shape in fragment order.
struct DeviceWeights {
  kernels::cuda::WeightFormat format = kernels::cuda::WeightFormat::kNvfp4;
  int64_t matrices = 0, n = 0, k = 0;
  int64_t padded_n = 0;  // rows of zeros fill the last tile of 64
  bool paired = false;   // kernels/cuda/experts/paired_rows.h
  at::Tensor fragments, global_scales;
  at::Tensor block_position;
};
/// w [matrices, n, k] BF16, k a multiple of 32. NVFP4 has a global scale for each matrix; its
/// blocks lie as `input` wants them. Waits for the device; error naming `where`, matrix, row and
/// column on a NaN or an infinity, and on a magnitude that the format does not take.
DeviceWeights pack_weights(const DeviceCall& call, const at::Tensor& w,
                           kernels::cuda::WeightFormat format, const Compensation& input,
                           bool paired, std::string_view where);
/// What the product multiplies with: BF16 [matrices, n, k].
at::Tensor dequantize(const DeviceCall& call, const DeviceWeights& weights);

/// Quantised rows as images.
struct DeviceImage {
  at::Tensor q1, q2;
  int residual_stages = 0;
};
/// Rows x, BF16 [rows, k], to the places of `image_rows` [rows, copies], of images over the slots
/// and experts of `places`.
DeviceImage quantize_image(const DeviceCall& call, const at::Tensor& x, const Places& places,
                           const at::Tensor& image_rows, int copies,
                           kernels::cuda::WeightFormat format, const Compensation& compensation,
                           const BadRow& bad_row, const at::Tensor& residual_sums = {});
/// Sorted rows times their experts' weights: FP32 [slots, padded_n], or silu(gate) * up of
/// paired weights [slots, padded_n / 2] BF16.
at::Tensor multiply(const DeviceCall& call, const DeviceWeights& weights, const DeviceImage& image,
                    const Places& places, kernels::cuda::GemmOutput output);

/// x [.., k] BF16 as a product multiplies it: q1 and, with compensation, q2, zero elsewhere.
QuantizedRows quantized_values(const DeviceCall& call, const at::Tensor& x,
                               kernels::cuda::WeightFormat format, const Compensation& compensation,
                               const BadRow& bad_row);

}  // namespace quads::ops
