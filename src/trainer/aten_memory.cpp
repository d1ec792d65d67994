#include "trainer/aten_memory.h"

#include <algorithm>

namespace quads {

int64_t aten_bytes(const ModelConfig& c, int64_t rows, bool checkpoint_activations) {
  constexpr int64_t kBf16 = 2, kF32 = 4, kLogits = int64_t{1} << 26;
  const int64_t layers = c.num_hidden_layers, hidden = c.hidden_size;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  const int64_t kept = checkpoint_activations ? layers + 2 : 2 * layers + 1;
  int64_t ffn = 0, matrices = (q + 2 * kv) * hidden + q * hidden;
  for (int64_t l = 0; l < layers; ++l) {
    const bool sparse = c.is_sparse(l);
    const int64_t choices = sparse ? c.num_experts_per_tok : 1;
    const int64_t width = sparse ? c.moe_intermediate_size : c.intermediate_size;
    // Of a slot: the input, the output by expert and by row, its FP32 image, the weighted one, and
    // the gradients of all; gates and ups, their product and its quantised image, and gradients.
    const int64_t slot = hidden * (6 * kBf16 + 4 * kF32) + width * 12 * kBf16;
    ffn = std::max(ffn, choices * slot + c.shared_expert_intermediate_size * 12 * kBf16);
    const int64_t experts =
        sparse ? c.num_experts * width + c.shared_expert_intermediate_size : width;
    matrices = std::max(matrices, 3 * hidden * experts);
  }
  // FP32 copies of queries and keys on their way through norms and RoPE, and gradients.
  const int64_t attention = (q + 2 * kv) * 2 * kBf16 + (q + kv) * 8 * kF32 + q * 4 * kBf16;
  const int64_t of_row = hidden * (4 * kF32 + 2 * kBf16) + std::max(ffn, attention);
  const int64_t logits = kLogits * (2 * kBf16 + 5 * kF32);
  const int64_t of_matrices = 2 * kBf16 * std::max(matrices, c.vocab_size * hidden);
  // A quarter more for pieces of memory that nothing fits, and what does not grow with the rows.
  constexpr int64_t kLibraries = int64_t{1} << 30;
  return (rows * (of_row + (kept + 2) * hidden * kF32) + logits + of_matrices) / 4 * 5 + kLibraries;
}

}  // namespace quads
