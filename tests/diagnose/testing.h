// A small random mixture of experts for the tests of this folder.
#pragma once

#include "model/parameters.h"
#include "rollout/requests.h"

namespace quads {

inline ModelConfig small_config() {
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

inline std::vector<Request> small_requests(int64_t count, int32_t n_samples) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    Request& request = requests.emplace_back();
    request.prompt_index = i;
    request.n_samples = n_samples;
    for (int64_t p = 0; p < 3 + i; ++p) {
      request.prompt.push_back(static_cast<int32_t>((7 * i + 5 * p) % 32));
    }
  }
  return requests;
}

}  // namespace quads
