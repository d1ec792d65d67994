#include "trainer/micro_batch.h"

#include <algorithm>

namespace quads {

int64_t micro_batch_row_bytes(const ModelConfig& c, bool checkpoint_activations) {
  constexpr int64_t kBf16 = 2, kF32 = 4, kOfSlot = 64;  // where a slot is, and its weight
  const int64_t layers = c.num_hidden_layers, hidden = c.hidden_size;
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  int64_t choices = 1, middle = 0, router = 0;
  for (int64_t l = 0; l < layers; ++l) {
    if (!c.is_sparse(l)) {
      middle = std::max(middle, c.intermediate_size);
      continue;
    }
    choices = std::max(choices, c.num_experts_per_tok);
    middle = std::max({middle, c.num_experts_per_tok * c.moe_intermediate_size,
                       c.shared_expert_intermediate_size});
    router = c.num_experts + 1;
  }
  const int64_t kept = checkpoint_activations ? layers + 2 : 2 * layers + 1;
  const int64_t activations = (kept + 2) * hidden * kF32;
  const int64_t attention = (q + 2 * kv) * (2 * kF32 + kBf16) + q * (kF32 + 2 * kBf16) +
                            2 * kv * kBf16 + c.num_attention_heads * 3 * kF32;
  // Images are padded to 128 values.
  const int64_t image =
      std::max({choices * ((hidden + 127) / 128 * 128), middle + choices * 128, q});
  const int64_t of_hidden =
      choices * hidden * (3 * kBf16 + 2 * kF32) + hidden * (2 * kBf16 + 2 * kF32);
  const int64_t of_middle = middle * (3 * kF32 + 3 * kBf16);
  return activations + attention + 2 * image * kBf16 + of_hidden + of_middle +
         router * (kF32 + kBf16) + choices * kOfSlot;
}

int64_t default_micro_batch(const ModelConfig& config, bool checkpoint_activations) {
  const int64_t fitting =
      kMicroBatchBytes / micro_batch_row_bytes(config, checkpoint_activations) / 1024 * 1024;
  return std::clamp(fitting, kMicroBatchRows, kLargestMicroBatch);
}

}  // namespace quads
