#include "bench/shapes.h"

#include <cmath>
#include <optional>

#include "base/error.h"
#include "report/progress.h"
#include "rl/supervised.h"

namespace quads::bench {

ModelConfig bench_shape(const std::string& name) {
  ModelConfig c;
  if (name == "demo") {
    c = default_base_model();
    c.vocab_size = 16;
  } else if (name == "1b") {
    c.norm_topk_prob = true;
    c.num_experts_per_tok = 2;
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
  } else if (name == "30b") {  // Qwen3-30B-A3B
    c.norm_topk_prob = true;
    c.num_experts_per_tok = 8;
    c.vocab_size = 151936;
    c.hidden_size = 2048;
    c.intermediate_size = 6144;
    c.num_hidden_layers = 48;
    c.num_attention_heads = 32;
    c.num_key_value_heads = 4;
    c.head_dim = 128;
    c.moe_intermediate_size = 768;
    c.num_experts = 128;
    c.initializer_range = 0.02;
    c.rope.theta = 1e6;
  } else if (name == "olmoe") {  // OLMoE-1B-7B
    c.architecture = Architecture::kOlmoe;
    c.num_experts_per_tok = 8;
    c.vocab_size = 50304;
    c.hidden_size = 2048;
    c.intermediate_size = c.moe_intermediate_size = 1024;
    c.num_hidden_layers = 16;
    c.num_attention_heads = c.num_key_value_heads = 16;
    c.head_dim = 128;
    c.num_experts = 64;
    c.rms_norm_eps = 1e-5;
    c.initializer_range = 0.02;
  } else {
    fail("unknown model shape '{}': use demo, 1b, olmoe or 30b", name);
  }
  c.max_position_embeddings = name == "30b" ? 40960 : 4096;
  validate(c, "model shape " + name);
  return c;
}

double touched_experts(const ModelConfig& c, int64_t batch) {
  const double chosen =
      static_cast<double>(c.num_experts_per_tok) / static_cast<double>(c.num_experts);
  return 1 - std::pow(1 - chosen, static_cast<double>(batch));
}

std::unique_ptr<Parameters> random_parameters(const ModelConfig& config) {
  auto parameters = std::make_unique<Parameters>(config);
  constexpr int64_t kMillion = 1'000'000;
  std::optional<Progress> progress;
  parameters->initialise(1, [&](int64_t done, int64_t total) {
    if (total < 100 * kMillion) return;  // made in seconds
    if (!progress) {
      progress.emplace(ProgressOptions{.label = "random weights",
                                       .unit = "million",
                                       .total = total / kMillion,
                                       .log_every_s = 10});
    }
    progress->update(done / kMillion);
  });
  return parameters;
}

}  // namespace quads::bench
