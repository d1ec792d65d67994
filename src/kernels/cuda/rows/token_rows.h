// What is done to tokens' rows between the products: embedding, norm, bias, the experts'
// combination. The bits are those of the CPU's row kernels.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Device pointers, 16-byte aligned. x[r] = table[tokens[r]], exact.
struct EmbedRows {
  const Bf16* table = nullptr;  // [vocab, d]
  int64_t vocab = 0;
  int64_t d = 0;  // a multiple of 8
  /// [rows]; a token that is not in the vocabulary gives NaNs.
  const int32_t* tokens = nullptr;
  int64_t rows = 0;
  float* x = nullptr;  // [rows, d]
};

/// Launches one kernel. Error on sizes out of range.
void embed_rows(const CudaContext& context, const EmbedRows& args);

/// Device pointers, 16-byte aligned. h[r] = bf16(x[r] * inv * weight), inv = 1 / sqrt(mean(x^2) +
/// eps), in the order of RowKernels::rmsnorm. Under overlap the previous kernel must not write the
/// weight.
struct NormRows {
  const float* x = nullptr;  // [rows, d]
  int64_t rows = 0;
  int64_t d = 0;                 // a multiple of 16, at most kMaxNormD
  const Bf16* weight = nullptr;  // [d]
  float eps = 0.0F;
  Bf16* h = nullptr;  // [rows, d]
};
inline constexpr int64_t kMaxNormD = 16384;

/// Launches one kernel. Error on sizes out of range.
void norm_rows(const CudaContext& context, const NormRows& args);

/// Device pointers, 16-byte aligned. y[r] = x[r], then y = fma(w, part, y) in the order of a row's
/// choices, as RowKernels::combine; choices whose sorted row is < 0 are left out. With `h` also
/// what norm_rows gives of y: the next block's input.
struct CombineRows {
  const float* x = nullptr;              // [rows, d]
  const float* parts = nullptr;          // [sorted rows, d]
  const int32_t* sorted_rows = nullptr;  // [rows, top_k]
  const float* weights = nullptr;        // [rows, top_k]
  int64_t rows = 0;
  int64_t d = 0;                      // a multiple of 4
  int top_k = 0;                      // at most kMaxTopK (route.h)
  float* y = nullptr;                 // [rows, d]; may be x
  const Bf16* norm_weight = nullptr;  // [d], and d as NormRows has it
  float eps = 0.0F;
  Bf16* h = nullptr;  // [rows, d]; null: no norm
};

/// Launches one kernel. Error on sizes out of range.
void combine_rows(const CudaContext& context, const CombineRows& args);

/// Device pointers, 16-byte aligned. y[r] += bias.
struct AddBias {
  float* y = nullptr;  // [rows, d]
  int64_t rows = 0;
  int64_t d = 0;               // a multiple of 4
  const Bf16* bias = nullptr;  // [d]
};

/// Launches one kernel. Error on sizes out of range.
void add_bias(const CudaContext& context, const AddBias& args);

}  // namespace quads::kernels::cuda
