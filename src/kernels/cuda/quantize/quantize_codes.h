// NVFP4 tensors as other tools store them (packed codes, linear block scales) on the device. The
// bytes and values are those of numerics/nvfp4.h, for any global scale.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

/// Device pointers; x 16-byte, codes 8-byte aligned.
struct QuantizeCodes {
  const void* x = nullptr;  // [rows, k] FP32 or BF16, finite
  bool x_is_bf16 = false;
  int64_t rows = 0;
  int64_t k = 0;                    // a multiple of 16
  float global_scale = 1.0F;        // positive and finite
  uint8_t* codes = nullptr;         // [rows, k / 2]
  uint8_t* block_scales = nullptr;  // [rows, k / 16] E4M3
  /// Lowered (atomic minimum) to the first row with a dequantised value beyond BF16. The caller
  /// sets it to INT32_MAX.
  int32_t* first_bad_row = nullptr;
};

/// Launches one kernel. Error on sizes out of range.
void quantize_codes(const CudaContext& context, const QuantizeCodes& args);

/// Device pointers; codes 8-byte, values 16-byte aligned.
struct DequantizeCodes {
  const uint8_t* codes = nullptr;         // [rows, k / 2]
  const uint8_t* block_scales = nullptr;  // [rows, k / 16] E4M3
  const float* global_scale = nullptr;    // one
  int64_t rows = 0;
  int64_t k = 0;            // a multiple of 16
  float* values = nullptr;  // [rows, k]
  /// Lowered to the first row with a block scale that is negative or NaN.
  int32_t* first_bad_row = nullptr;
};

/// Launches one kernel. Error on sizes out of range.
void dequantize_codes(const CudaContext& context, const DequantizeCodes& args);

/// Behind the checks.
void launch_quantize_codes(const CudaContext& context, const QuantizeCodes& args);
void launch_dequantize_codes(const CudaContext& context, const DequantizeCodes& args);

}  // namespace quads::kernels::cuda
