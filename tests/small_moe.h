// A small mixture of experts; tests of several folders start from it.
#pragma once

#include "io/model_config.h"

namespace quads {

/// Two sparse layers, grouped queries.
inline ModelConfig small_moe() {
  ModelConfig c;
  c.vocab_size = 32;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 16;
  c.max_position_embeddings = 256;
  c.moe_intermediate_size = 32;
  c.num_experts = 4;
  c.num_experts_per_tok = 2;
  c.norm_topk_prob = true;
  c.initializer_range = 0.15;
  return c;
}

}  // namespace quads
