// Fuzzes config.json. What is accepted is written and read again: nothing may be lost.
#include "fuzz/fuzz.h"
#include "fuzz/json_words.h"
#include "io/model_config.h"

namespace quads {

std::vector<std::string> fuzz_corpus() {
  return {
      R"({"architectures":["Qwen3MoeForCausalLM"],"attention_bias":false,"bos_token_id":1,"decoder_sparse_step":1,"dtype":"bfloat16","eos_token_id":[2,3],"head_dim":16,"hidden_act":"silu","hidden_size":64,"initializer_range":0.02,"intermediate_size":96,"max_position_embeddings":512,"max_window_layers":2,"mlp_only_layers":[],"model_type":"qwen3_moe","moe_intermediate_size":32,"norm_topk_prob":true,"num_attention_heads":4,"num_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2,"num_key_value_heads":2,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"torch_dtype":"bfloat16","use_cache":true,"use_sliding_window":false,"vocab_size":100})",
      R"({"model_type":"qwen3","hidden_size":64,"intermediate_size":96,"max_position_embeddings":512,"num_attention_heads":4,"num_hidden_layers":2,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_parameters":{"rope_theta":10000,"rope_type":"yarn","factor":4.0,"original_max_position_embeddings":128,"beta_fast":32,"beta_slow":1},"tie_word_embeddings":true,"vocab_size":100,"layer_types":["full_attention","full_attention"]})",
      R"({"model_type":"qwen2_moe","hidden_size":64,"intermediate_size":96,"max_position_embeddings":512,"moe_intermediate_size":32,"shared_expert_intermediate_size":64,"num_attention_heads":4,"num_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2,"num_key_value_heads":2,"rope_theta":1000000.0,"vocab_size":100,"mlp_only_layers":[1]})",
      R"({"model_type":"mixtral","hidden_size":64,"intermediate_size":96,"max_position_embeddings":512,"num_attention_heads":4,"num_local_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2,"num_key_value_heads":null,"rope_theta":1e6,"vocab_size":100,"rope_scaling":{"type":"linear","factor":2}})",
      R"({"model_type":"olmoe","hidden_size":64,"intermediate_size":96,"max_position_embeddings":512,"num_attention_heads":4,"num_experts":8,"num_experts_per_tok":2,"num_hidden_layers":2,"rope_theta":1e4,"vocab_size":100,"clip_qkv":null,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":128}})",
  };
}

std::vector<std::string> fuzz_words() {
  return with_json_words({"\"model_type\":",
                          "\"architectures\":",
                          "\"qwen3_moe\"",
                          "\"qwen3\"",
                          "\"OlmoeForCausalLM\"",
                          "\"head_dim\":",
                          "\"num_experts\":",
                          "\"num_local_experts\":",
                          "\"rope_parameters\":",
                          "\"rope_scaling\":",
                          "\"rope_type\":",
                          "\"yarn\"",
                          "\"attention_factor\":",
                          "\"eos_token_id\":",
                          "\"mlp_only_layers\":",
                          "\"layer_types\":",
                          "\"sliding_window\":",
                          "\"attention_bias\":",
                          "\"quantization_config\":",
                          "\"hidden_act\":",
                          "\"gelu\"",
                          "\"full_attention\""});
}

void fuzz_one(std::string_view input) {
  const ModelConfig config =
      model_config_from_json(parse_json(input, "config.json"), "config.json");
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    fuzz_check(!config.is_sparse(layer) || config.num_experts > 0, "sparse layers have experts");
  }
  const std::string text = model_config_to_json(config).dump();
  fuzz_check(model_config_from_json(parse_json(text, "again"), "again") == config,
             "a configuration that was written is read as it was");
}

}  // namespace quads
