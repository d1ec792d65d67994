// The end of the model on a CPU: final norm, language-model head, and log-probabilities.
//   logits = W RMSNorm(x);  logp(token) = log softmax(logits / T)[token], FP32, whole vocabulary.
#pragma once

#include "kernels/cpu/linear.h"

namespace quads::kernels {

struct HeadBlock {
  int64_t hidden;
  int64_t vocab;
  float rms_eps;
  const Bf16* norm;     // [hidden]
  PackedMatrix weight;  // [vocab, hidden] BF16
};

/// logits [count, vocab] FP32 of rows rows[0..count) of x [*, hidden].
void head_logits(const CpuContext& context, const HeadBlock& block, const float* x,
                 const int64_t* rows, int64_t count, float* logits);

/// logp and entropy [count] of targets[i] at row rows[i] of x, at temperature 1 / inv_temperature.
/// The logits live only a few rows at a time. `entropy` may be null.
void head_forward(const CpuContext& context, const HeadBlock& block, const float* x,
                  const int64_t* rows, const int32_t* targets, int64_t count, float inv_temperature,
                  float* logp, float* entropy);

/// dx [*, hidden]: rows[i] (distinct) are overwritten with the gradient of sum dlogp[i] * logp[i];
/// other rows are left alone. dnorm [hidden] += and dweight [vocab rounded up to 32, hidden] +=.
/// `transposed` is W^T as BF16 [hidden, vocab rounded up to 32].
void head_backward(const CpuContext& context, const HeadBlock& block,
                   const PackedMatrix& transposed, const float* x, const int64_t* rows,
                   const int32_t* targets, int64_t count, float inv_temperature, const float* dlogp,
                   float* dnorm, float* dweight, float* dx);

}  // namespace quads::kernels
