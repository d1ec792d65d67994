// The end of a step: from logits to log-probabilities, entropies and drawn tokens.
//
// Sums over the vocabulary run in pieces of 256 tokens, each in 16 FP32 lanes (by i % 16 in order)
// and the tree, and the pieces' sums are added in order in FP64: a row's results depend on that row
// alone. With t = z * inv_temperature, rounded once, and m the largest t:
//   lse = m + log(FP32(sum of exp(t - m))),  logp = t[token] - lse,
//   entropy = FP32(sum of p (lse - t)), p = exp(t - lse), fused multiply-adds within a lane.
// Up to 256 tokens these are the CPU's bits (kernels::head_forward, RowKernels); beyond, the CPU
// adds all pieces of a lane in one FP32 chain, and logp and entropy differ by the rounding of that
// sum. Drawn tokens are those of RowKernels::sample for every vocabulary, on equal logits.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

inline constexpr int64_t kMaxVocab = int64_t{1} << 18;

/// Device pointers.
struct Logits {
  const float* z = nullptr;  // [rows, vocab], rows ldz apart
  int64_t ldz = 0;
  int64_t rows = 0;
  int64_t vocab = 0;  // 1..kMaxVocab
  /// sample_scratch(rows, vocab) bytes, 16-byte aligned; what it holds does not matter.
  void* scratch = nullptr;
  /// Lowered (atomic minimum) to the first row whose log-probabilities are not numbers: with a NaN
  /// or +Inf among its logits, or nothing but -Inf. The caller sets it to INT32_MAX beforehand.
  int32_t* first_bad_row = nullptr;
};
int64_t sample_scratch(int64_t rows, int64_t vocab);

/// Device pointers.
struct ScoreRows {
  Logits logits;
  float inv_temperature = 1.0F;
  const int32_t* targets = nullptr;  // [rows]; one that is not in the vocabulary scores NaN
  float* logp = nullptr;             // [rows]
  float* entropy = nullptr;          // [rows], nats; null: none
};

/// Launches up to five kernels. Error on sizes out of range.
void score_rows(const CudaContext& context, const ScoreRows& args);

/// What a draw's uniform number is keyed by, besides the seed (base/random.h).
struct DrawKey {
  int64_t prompt_index;
  int32_t sample_index;
  int32_t position;
};

/// Device pointers. Temperature, then top-k, then top-p, then the inverse of the cumulative
/// distribution in vocabulary order, as kernels/cpu/rows_sample.inl.h has it; log-probabilities are
/// of the whole vocabulary, at the temperature (greedy ones at 1).
struct DrawRows {
  Logits logits;
  float temperature = 1.0F;  // 0: greedy
  int32_t top_k = 0;         // 0: off
  float top_p = 1.0F;        // 1: off
  uint64_t seed = 0;
  const int32_t* first_draw = nullptr;  // [rows + 1]: the draws of each row are consecutive
  const DrawKey* keys = nullptr;        // [draws]
  int32_t* tokens = nullptr;            // [draws]
  float* logprobs = nullptr;            // [draws]
};

/// Launches three kernels, up to seven with top-k and top-p. Error on sizes out of range.
void draw_rows(const CudaContext& context, const DrawRows& args);

}  // namespace quads::kernels::cuda
