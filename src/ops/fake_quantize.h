// Quantise and dequantise: what the rollout's formats do to values, as BF16 tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/row_kernels.h"

namespace quads::ops {

/// Rows x [.., k] BF16 (k a multiple of 16; 32 with a mask) as a GEMM multiplies them: q1 and, with
/// a mask of compensated channels, q2, zero elsewhere. Values times spec.out_scale.
struct QuantizedRows {
  at::Tensor q1;               // like x
  at::Tensor q2;               // like x; undefined without compensation
  int64_t residual_tiles = 0;  // K tiles of 32 beyond which q2 is zero
};

/// How rows of k channels are quantised; `mask` [k] bool must outlive the spec.
kernels::QuantizeSpec make_spec(int64_t k, kernels::ActivationFormat format, const at::Tensor& mask,
                                float out_scale);

/// `mask` [k] bool, may be undefined; NVFP4 only. Error naming `where` and the row on a NaN or an
/// infinity.
QuantizedRows quantize_rows(const at::Tensor& x, kernels::ActivationFormat format,
                            const at::Tensor& mask, float out_scale, std::string_view where);

/// x [.., k] BF16, each row by itself: NVFP4 under the row's own global scale, FP8 in groups of
/// 128.
at::Tensor fake_quantize_activation(const at::Tensor& x, kernels::ActivationFormat format,
                                    std::string_view where);

/// x [.., n, k] BF16, k a multiple of 32, each matrix by itself: NVFP4 under its global scale, FP8
/// in blocks of 128 x 128.
at::Tensor fake_quantize_weight(const at::Tensor& x, kernels::WeightFormat format,
                                std::string_view where);

/// The compensation mask [k] bool that the NVFP4 residuals of rows x [.., k] BF16 select: the
/// ceil(ratio * units) units with the largest sums. `granularity` is "channel" or "block".
at::Tensor rac_mask(const at::Tensor& x, double ratio, std::string_view granularity);

/// Of its residual sums int64 [k] on the CPU.
at::Tensor mask_of_sums(const at::Tensor& sums, double ratio, std::string_view granularity);

}  // namespace quads::ops
