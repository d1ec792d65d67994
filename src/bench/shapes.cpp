#include "bench/shapes.h"

#include "base/error.h"

namespace quads::bench {

ModelConfig bench_shape(const std::string& name) {
  ModelConfig c;
  c.norm_topk_prob = true;
  c.num_experts_per_tok = 2;
  c.max_position_embeddings = 4096;
  if (name == "demo") {
    c.vocab_size = 16;
    c.hidden_size = 128;
    c.intermediate_size = 128;
    c.num_hidden_layers = 4;
    c.num_attention_heads = 4;
    c.num_key_value_heads = 2;
    c.head_dim = 32;
    c.moe_intermediate_size = 64;
    c.num_experts = 8;
    c.initializer_range = 0.08;
  } else if (name == "1b") {
    c.vocab_size = 32768;
    c.hidden_size = 2048;
    c.intermediate_size = 6144;
    c.num_hidden_layers = 12;
    c.num_attention_heads = 16;
    c.num_key_value_heads = 4;
    c.head_dim = 128;
    c.moe_intermediate_size = 768;
    c.num_experts = 16;
    c.initializer_range = 0.02;
  } else {
    fail("unknown model shape '{}': use demo or 1b", name);
  }
  validate(c, "model shape " + name);
  return c;
}

std::unique_ptr<Parameters> random_parameters(const ModelConfig& config) {
  auto parameters = std::make_unique<Parameters>(config);
  parameters->initialise(1);
  return parameters;
}

}  // namespace quads::bench
