// The backward at both ends of a model: of log-probabilities, and of the embedding.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// Device pointers. The gradient of dlogp * log softmax(z * inv_temperature)[target], rounded:
/// with c = dlogp * inv_temperature, -c p[i], and c (1 - p[i]) at the target. Zeros beyond the
/// vocabulary.
struct LogpBackward {
  const float* z = nullptr;  // [rows, vocab]
  int64_t rows = 0;
  int64_t vocab = 0;
  float inv_temperature = 1.0F;
  const int32_t* targets = nullptr;  // [rows], each in the vocabulary
  const float* dlogp = nullptr;      // [rows]
  int64_t ldd = 0;
  Bf16* dz = nullptr;  // [rows, ldd]
};

/// Launches one kernel. Error on sizes out of range.
void logp_backward(const CudaContext& context, const LogpBackward& args);

/// Device pointers. table[tokens[i]] += the rows of dx that hold the token, in the order given.
struct EmbedBackward {
  const float* dx = nullptr;           // [*, d]
  int64_t d = 0;                       // a multiple of 4
  int64_t tokens_count = 0;            // distinct ones
  const int32_t* tokens = nullptr;     // [tokens_count]
  const int32_t* first_row = nullptr;  // [tokens_count + 1] into `rows`
  const int32_t* rows = nullptr;       // rows of dx, by token
  float* table = nullptr;              // [vocab, d]
};

/// Launches one kernel. Error on sizes out of range.
void embed_backward(const CudaContext& context, const EmbedBackward& args);

}  // namespace quads::kernels::cuda
