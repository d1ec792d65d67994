// NVFP4 tensors as other tools store them: packed codes, linear block scales, a global scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace quads::ops {

/// x [.., k], BF16 or FP32, k a multiple of 16 -> codes uint8 [.., k / 2] (the even channel in the
/// low nibble), block scales float8_e4m3fn [.., k / 16], global scale FP32 []. Without
/// `global_scale`: the power of two of the whole tensor's amax. Error on a NaN or an infinity, with
/// its row and column. The scalar reference (numerics/nvfp4.h): exact, not fast.
std::tuple<at::Tensor, at::Tensor, at::Tensor> quantize_nvfp4(const at::Tensor& x,
                                                              std::optional<double> global_scale);

/// The inverse: FP32 [.., k]; exact in BF16 when the global scale is a power of two.
at::Tensor dequantize_nvfp4(const at::Tensor& codes, const at::Tensor& block_scales,
                            const at::Tensor& global_scale);

// What these do whatever the device.

/// The global scale of quantize_nvfp4: the given one, or the power of two of amax.
float quantize_nvfp4_scale(float amax, std::optional<double> global_scale);
/// Its codes and block scales, on x's device, not filled in.
std::tuple<at::Tensor, at::Tensor> empty_nvfp4(const at::Tensor& x);
/// Error unless dequantize_nvfp4's arguments fit, on `device`.
void check_dequantize_nvfp4(const at::Tensor& codes, const at::Tensor& block_scales,
                            const at::Tensor& global_scale, const at::Device& device);

}  // namespace quads::ops
