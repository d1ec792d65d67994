// config.json and generation_config.json: variants that load, and those that are refused.
#include <gtest/gtest.h>

#include <limits>

#include "io/generation_config.h"
#include "io/model_config.h"
#include "test_files.h"

namespace quads {
namespace {

Json moe_json() {
  return parse_json(R"({
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "vocab_size": 151936,
    "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "max_position_embeddings": 40960, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": true, "decoder_sparse_step": 1,
    "mlp_only_layers": [], "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "rope_scaling": null,
    "tie_word_embeddings": false, "attention_bias": false, "attention_dropout": 0.0,
    "hidden_act": "silu", "use_sliding_window": false, "sliding_window": null,
    "max_window_layers": 48, "bos_token_id": 151643, "eos_token_id": 151645,
    "initializer_range": 0.02, "output_router_logits": false, "router_aux_loss_coef": 0.001,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true})",
                    "config.json");
}

// The error of moe_json() with `change` merged into it; null removes nothing but sets null.
std::string error_with(const Json& change) {
  Json json = moe_json();
  json.update(change);
  return error_of([&] { model_config_from_json(json, "config.json"); });
}

ModelConfig load_with(const Json& change) {
  Json json = moe_json();
  json.update(change);
  return model_config_from_json(json, "config.json");
}

TEST(ModelConfig, ReadsAPublishedQwen3Moe) {
  const ModelConfig config = model_config_from_json(moe_json(), "config.json");
  EXPECT_EQ(config.architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(config.num_experts, 128);
  EXPECT_EQ(config.num_experts_per_tok, 8);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{151645});
  EXPECT_EQ(config.bos_token_id, 151643);
  EXPECT_FALSE(config.pad_token_id.has_value());
}

TEST(ModelConfig, RefusesAbsurdSizesByKeyAndValue) {
  constexpr int64_t kHuge[] = {100'000'000, 1'000'000'000, (int64_t{1} << 31) - 1, int64_t{1} << 40,
                               std::numeric_limits<int64_t>::max()};
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "head_dim",
                          "moe_intermediate_size", "num_experts"}) {
    for (const int64_t value : kHuge) {
      expect_contains(error_with({{key, value}}), fmt::format("{} = {}", key, value));
    }
  }
  // Each of these is possible, not all of them in one model.
  expect_contains(error_with({{"num_experts", 65536}, {"num_hidden_layers", 4096}}),
                  "num_experts = 65536 in each of num_hidden_layers = 4096");
  const std::string total = error_with({{"hidden_size", 1 << 20},
                                        {"moe_intermediate_size", 1 << 20},
                                        {"num_experts", 64},
                                        {"num_hidden_layers", 4096}});
  expect_contains(total, "hidden_size = 1048576");
  expect_contains(total, "parameters, more than");
}

// The configurations that these families are published with.
Json qwen2_moe_json() {
  return parse_json(R"({
    "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "vocab_size": 151936,
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 8192,
    "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts": 60,
    "num_experts_per_tok": 4, "norm_topk_prob": false, "decoder_sparse_step": 1,
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false,
    "attention_dropout": 0.0, "hidden_act": "silu", "use_sliding_window": false,
    "sliding_window": 32768, "max_window_layers": 21, "bos_token_id": 151643,
    "eos_token_id": 151643, "initializer_range": 0.02, "output_router_logits": false,
    "router_aux_loss_coef": 0.001, "torch_dtype": "bfloat16", "use_cache": true})",
                    "config.json");
}

Json olmoe_json() {
  return parse_json(R"({
    "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "vocab_size": 50304,
    "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
    "num_attention_heads": 16, "num_key_value_heads": 16, "max_position_embeddings": 4096,
    "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": false, "clip_qkv": null,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "rope_scaling": null, "attention_bias": false,
    "attention_dropout": 0.0, "hidden_act": "silu", "tie_word_embeddings": false,
    "eos_token_id": 50279, "pad_token_id": 1, "initializer_range": 0.02,
    "output_router_logits": false, "router_aux_loss_coef": 0.01, "use_cache": true})",
                    "config.json");
}

Json mixtral_json() {
  return parse_json(R"({
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "vocab_size": 32000,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 32768,
    "num_local_experts": 8, "num_experts_per_tok": 2, "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0, "sliding_window": null, "attention_dropout": 0.0,
    "hidden_act": "silu", "tie_word_embeddings": false, "bos_token_id": 1, "eos_token_id": 2,
    "initializer_range": 0.02, "output_router_logits": false, "router_aux_loss_coef": 0.02,
    "router_jitter_noise": 0.0, "torch_dtype": "bfloat16", "use_cache": true})",
                    "config.json");
}

TEST(ModelConfig, ReadsAPublishedQwen2Moe) {
  const ModelConfig config = model_config_from_json(qwen2_moe_json(), "c");
  EXPECT_EQ(config.architecture, Architecture::kQwen2Moe);
  EXPECT_EQ(config.shared_expert_intermediate_size, 5632);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.norm_topk_prob);
  EXPECT_EQ(config.qk_norm(), QkNorm::kNone);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_TRUE(config.has_shared_expert(0));
}

TEST(ModelConfig, ReadsAPublishedOlmoe) {
  const ModelConfig config = model_config_from_json(olmoe_json(), "c");
  EXPECT_EQ(config.architecture, Architecture::kOlmoe);
  EXPECT_EQ(config.moe_intermediate_size, 1024);
  EXPECT_EQ(config.qk_norm(), QkNorm::kProjection);
  EXPECT_EQ(config.num_experts, 64);
  EXPECT_FALSE(config.qkv_bias);
  Json json = olmoe_json();
  json["num_key_value_heads"] = nullptr;
  EXPECT_EQ(model_config_from_json(json, "c").num_key_value_heads, 16);
}

TEST(ModelConfig, ReadsAPublishedMixtral) {
  const ModelConfig config = model_config_from_json(mixtral_json(), "c");
  EXPECT_EQ(config.architecture, Architecture::kMixtral);
  EXPECT_EQ(config.moe_intermediate_size, 14336);
  EXPECT_EQ(config.num_experts, 8);
  EXPECT_TRUE(config.norm_topk_prob);
  EXPECT_EQ(config.qk_norm(), QkNorm::kNone);
  EXPECT_TRUE(config.is_sparse(0));
}

TEST(ModelConfig, EveryFamilyRoundTripsThroughAFile) {
  const TempDir dir;
  for (Json json : {qwen2_moe_json(), olmoe_json(), mixtral_json()}) {
    json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"truncate", false}};
    const ModelConfig config = model_config_from_json(json, "c");
    save_model_config(config, dir.path());
    EXPECT_EQ(load_model_config(dir.path()), config) << json["model_type"];
  }
}

TEST(ModelConfig, RefusesWhatAFamilyCannotDo) {
  const auto error = [](Json json, const Json& change) {
    json.update(change);
    return error_of([&] { model_config_from_json(json, "c"); });
  };
  expect_contains(error(olmoe_json(), {{"clip_qkv", 8.0}}), "'clip_qkv' = 8.0");
  expect_contains(error(olmoe_json(), {{"attention_bias", true}}), "'attention_bias' = true");
  expect_contains(error(olmoe_json(), {{"sliding_window", 4096}}), "'sliding_window' = 4096");
  expect_contains(error(olmoe_json(), {{"head_dim", 64}}), "head_dim = 64 is not hidden_size");
  expect_contains(error(olmoe_json(), {{"num_experts", 0}}), "num_experts = 0");
  expect_contains(error(mixtral_json(), {{"sliding_window", 4096}}), "'sliding_window' = 4096");
  expect_contains(error(mixtral_json(), {{"router_jitter_noise", 0.1}}),
                  "'router_jitter_noise' = 0.1");
  expect_contains(error(mixtral_json(), {{"shared_expert_intermediate_size", 64}}),
                  "'shared_expert_intermediate_size' = 64 is not supported for Mixtral");
  expect_contains(error(qwen2_moe_json(), {{"use_sliding_window", true}}),
                  "'use_sliding_window' = true");
  expect_contains(error(qwen2_moe_json(), {{"shared_expert_intermediate_size", 0}}),
                  "shared_expert_intermediate_size = 0");
  expect_contains(error(qwen2_moe_json(), {{"clip_qkv", 8.0}}), "'clip_qkv' = 8.0");
}

TEST(ModelConfig, RoundTripsThroughAFile) {
  const TempDir dir;
  ModelConfig config = load_with({{"mlp_only_layers", {0, 3}},
                                  {"decoder_sparse_step", 2},
                                  {"eos_token_id", {5, 6}},
                                  {"pad_token_id", 0},
                                  {"tie_word_embeddings", true},
                                  {"bos_token_id", nullptr}});
  save_model_config(config, dir.path());
  EXPECT_EQ(load_model_config(dir.path()), config);

  config.architecture = Architecture::kQwen3;
  config.num_experts = config.num_experts_per_tok = config.moe_intermediate_size = 0;
  config.norm_topk_prob = false;
  config.decoder_sparse_step = 1;
  config.mlp_only_layers = {};
  save_model_config(config, dir.path());
  EXPECT_EQ(load_model_config(dir.path()), config);

  config.head_dim = 0;
  expect_contains(error_of([&] { save_model_config(config, dir.path()); }), "head_dim = 0");
}

TEST(ModelConfig, SparseLayersFollowTransformersRule) {
  ModelConfig config = load_with({{"decoder_sparse_step", 2}, {"mlp_only_layers", {3}}});
  const std::vector<bool> expected = {false, true, false, false, false, true};
  for (int64_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(config.is_sparse(layer), expected[static_cast<size_t>(layer)]) << layer;
  }
  config.num_experts = 0;
  EXPECT_FALSE(config.is_sparse(1));
}

TEST(ModelConfig, ReadsBothFormsOfTheRopeBase) {
  Json json = moe_json();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(model_config_from_json(json, "c").rope.theta, 5e5);
  json["rope_theta"] = 5e5;
  EXPECT_EQ(model_config_from_json(json, "c").rope.theta, 5e5);
  json["rope_theta"] = 1e6;
  expect_contains(error_of([&] { model_config_from_json(json, "c"); }), "contradicts");
  json.erase("rope_theta");
  json.erase("rope_parameters");
  expect_contains(error_of([&] { model_config_from_json(json, "c"); }), "gives the RoPE base");
}

TEST(ModelConfig, ReadsRopeScalingAsTheQwenModelsDocumentIt) {
  const RopeConfig yarn =
      load_with(
          {{"rope_scaling",
            {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}})
          .rope;
  EXPECT_EQ(yarn.type, RopeType::kYarn);
  EXPECT_EQ(yarn.factor, 4.0);
  EXPECT_EQ(yarn.original_max_position_embeddings, 32768);
  EXPECT_EQ(yarn.theta, 1e6);
  EXPECT_FALSE(yarn.attention_factor.has_value());
  // transformers 5's place and default for the original length.
  EXPECT_EQ(load_with({{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 2}}}})
                .rope.original_max_position_embeddings,
            40960);
  EXPECT_EQ(load_with({{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2.5}}}}).rope.factor,
            2.5);
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4},
                       {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(
      load_with({{"rope_scaling", llama3}, {"rope_parameters", llama3}}).rope.high_freq_factor,
      4.0);
  EXPECT_NO_THROW(load_with({{"rope_scaling", {{"rope_type", "default"}}}}));
}

TEST(ModelConfig, RefusesRopeScalingThatItDoesNotHave) {
  const auto error = [](const Json& scaling) { return error_with({{"rope_scaling", scaling}}); };
  expect_contains(error({{"type", "dynamic"}, {"factor", 4.0}}), "rope_type 'dynamic'");
  expect_contains(error({{"type", "longrope"}, {"long_factor", {1.0}}}), "'longrope'");
  expect_contains(error({{"type", "linear"}}), "'factor' is missing");
  expect_contains(error({{"type", "linear"}, {"factor", 0.5}}), "factor = 0.5 is not in 1..");
  expect_contains(error({{"type", "linear"}, {"factor", 2}, {"beta_fast", 32}}),
                  "beta_fast = 32 is not supported with rope_type 'linear'");
  expect_contains(error({{"type", "yarn"}, {"factor", 4}, {"mscale", 0.7}}), "mscale = 0.7");
  expect_contains(error({{"type", "yarn"}, {"factor", 4}, {"beta_fast", 0.5}}), "beta_fast = 0.5");
  expect_contains(error({{"type", "yarn"}, {"factor", 4}, {"attention_factor", 0}}),
                  "attention_factor = 0");
  expect_contains(error({{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 0}}),
                  "original_max_position_embeddings = 0");
  expect_contains(
      error({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
      "high_freq_factor = 4 is not above low_freq_factor = 4");
  expect_contains(
      error_with({{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}}),
      "partial_rotary_factor = 0.5");
  expect_contains(
      error_with({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}}),
      "full_attention");
  expect_contains(error_with({{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}},
                              {"rope_scaling", {{"rope_type", "linear"}, {"factor", 3}}}}),
                  "contradicts 'rope_parameters'");
}

TEST(ModelConfig, AcceptsTheNewNameOfTheNumberOfExperts) {
  Json json = moe_json();
  json.erase("num_experts");
  json["num_local_experts"] = 64;
  EXPECT_EQ(model_config_from_json(json, "c").num_experts, 64);
  json["num_experts"] = 128;
  expect_contains(error_of([&] { model_config_from_json(json, "c"); }), "contradicts");
}

TEST(ModelConfig, DefaultHeadDimIsThatOfTransformers) {
  Json json = moe_json();
  json.erase("head_dim");
  EXPECT_EQ(model_config_from_json(json, "c").head_dim, 64);
  json["architectures"] = {"Qwen3ForCausalLM"};
  json["model_type"] = "qwen3";
  for (const char* key :
       {"decoder_sparse_step", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob",
        "num_experts", "num_experts_per_tok", "router_aux_loss_coef", "output_router_logits"}) {
    json.erase(key);
  }
  EXPECT_EQ(model_config_from_json(json, "c").head_dim, 128);
}

TEST(ModelConfig, RefusesOtherArchitecturesByName) {
  expect_contains(error_with({{"architectures", {"LlamaForCausalLM"}}}), "'LlamaForCausalLM'");
  expect_contains(error_with({{"model_type", "mixtral"}}), "'mixtral'");
  expect_contains(error_with({{"architectures", {"Qwen3ForCausalLM"}}}), "not supported");
  expect_contains(error_with({{"architectures", {"A", "B"}}}), "2 classes instead of one");
  Json json = moe_json();
  json.erase("model_type");
  EXPECT_NO_THROW(model_config_from_json(json, "c"));
  json.erase("architectures");
  expect_contains(error_of([&] { model_config_from_json(json, "c"); }), "neither");
}

TEST(ModelConfig, RefusesKeysThatWouldChangeTheArithmetic) {
  expect_contains(error_with({{"attention_bias", true}}), "'attention_bias' = true");
  expect_contains(error_with({{"attention_dropout", 0.1}}), "'attention_dropout' = 0.1");
  expect_contains(error_with({{"hidden_act", "gelu"}}), "'hidden_act' = \"gelu\"");
  expect_contains(error_with({{"use_sliding_window", true}}), "'use_sliding_window' = true");
  expect_contains(error_with({{"layer_types", {"full_attention", "sliding_attention"}}}),
                  "'sliding_attention'");
  expect_contains(error_with({{"quantization_config", {{"quant_method", "fp8"}}}}),
                  "'quantization_config'");
  expect_contains(error_with({{"shared_expert_intermediate_size", 512}}),
                  "'shared_expert_intermediate_size' = 512");
  EXPECT_NO_THROW(
      load_with({{"a_new_switch", false}, {"another", nullptr}, {"list", Json::array()}}));
}

TEST(ModelConfig, RefusesSizesThatDoNotGoTogether) {
  const std::vector<std::pair<Json, std::string>> cases = {
      {{{"num_key_value_heads", 5}}, "num_attention_heads = 32 is not a multiple"},
      {{{"num_attention_heads", 0}}, "num_attention_heads = 0"},
      {{{"hidden_size", -1}}, "hidden_size = -1"},
      {{{"vocab_size", 4294967296}}, "vocab_size = 4294967296"},
      {{{"vocab_size", 1e5}}, "not an integer"},
      {{{"head_dim", 127}}, "head_dim = 127 is odd"},
      {{{"num_hidden_layers", nullptr}}, "'num_hidden_layers' is missing"},
      {{{"num_experts_per_tok", 129}}, "num_experts_per_tok = 129 is not in 1..num_experts = 128"},
      {{{"num_experts_per_tok", 0}}, "num_experts_per_tok = 0"},
      {{{"num_experts", -1}}, "num_experts = -1"},
      {{{"moe_intermediate_size", 0}}, "moe_intermediate_size = 0"},
      {{{"decoder_sparse_step", 0}}, "decoder_sparse_step = 0"},
      {{{"mlp_only_layers", {48}}}, "mlp_only_layers holds 48"},
      {{{"rms_norm_eps", 0}}, "rms_norm_eps = 0"},
      {{{"rope_theta", -1.0}}, "rope_theta = -1"},
      {{{"eos_token_id", 151936}}, "eos_token_id = 151936 is not in the vocabulary of 151936"},
      {{{"eos_token_id", {1, -1}}}, "eos_token_id = -1"},
      {{{"pad_token_id", 200000}}, "pad_token_id = 200000"},
      {{{"norm_topk_prob", 1}}, "not true or false"},
  };
  for (const auto& [change, message] : cases) {
    expect_contains(error_with(change), message);
  }
  expect_contains(error_of([&] { model_config_from_json(Json::array(), "c"); }), "not an object");
}

TEST(GenerationConfig, RoundTripsAndIsOptional) {
  const TempDir dir;
  EXPECT_FALSE(load_generation_config(dir.path()).has_value());
  const GenerationConfig config{
      .eos_token_ids = {3, 4}, .bos_token_id = 1, .temperature = 0.6, .top_p = 0.95, .top_k = 20};
  save_generation_config(config, dir.path());
  EXPECT_EQ(load_generation_config(dir.path()), config);
  write_text(dir / "generation_config.json", R"({"eos_token_id": 7, "repetition_penalty": 1.0})");
  EXPECT_EQ(load_generation_config(dir.path())->eos_token_ids, std::vector<int32_t>{7});
}

TEST(GenerationConfig, RefusesValuesOutOfRange) {
  const TempDir dir;
  const auto message = [&](const std::string& text) {
    write_text(dir / "generation_config.json", text);
    return error_of([&] { load_generation_config(dir.path()); });
  };
  expect_contains(message(R"({"temperature": 0})"), "temperature = 0");
  expect_contains(message(R"({"top_p": 1.5})"), "top_p = 1.5");
  expect_contains(message(R"({"top_k": -1})"), "top_k = -1");
  expect_contains(message(R"({"eos_token_id": "x"})"), "'eos_token_id': \"x\"");
}

}  // namespace
}  // namespace quads
