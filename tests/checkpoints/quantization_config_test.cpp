#include "checkpoints/quantization_config.h"

#include "tests/io/test_files.h"

namespace quads {
namespace {

Json nvfp4(CheckpointFormat format = CheckpointFormat::kNvfp4CompressedTensors) {
  return quantization_config_json(format, false, {"lm_head"});
}

class QuantizationConfigTest : public ::testing::Test {
 protected:
  std::optional<QuantizationConfig> read(const Json& quantization) {
    Json config = Json::object();
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_json_file(dir_ / "config.json", config);
    return read_quantization_config(dir_.path());
  }
  void expect_refused(const Json& quantization, const std::string& message) {
    expect_contains(error_of([&] { read(quantization); }), message);
  }

  TempDir dir_;
};

TEST_F(QuantizationConfigTest, WhatIsWrittenIsReadBack) {
  for (const char* name : {"nvfp4-modelopt", "nvfp4-compressed-tensors", "fp8"}) {
    const CheckpointFormat format = parse_checkpoint_format(name);
    EXPECT_EQ(checkpoint_format_name(format), name);
    for (const bool weights_only : {false, true}) {
      if (format == CheckpointFormat::kFp8 && weights_only) continue;
      const auto config = read(quantization_config_json(format, weights_only, {"a.b", "lm_head"}));
      ASSERT_TRUE(config);
      EXPECT_EQ(config->format, format);
      EXPECT_EQ(config->weights_only, weights_only);
      EXPECT_FALSE(config->kv_cache_scales);
      EXPECT_TRUE(config->quantises("a.c"));
      EXPECT_FALSE(config->quantises("a.b"));
      EXPECT_FALSE(config->quantises("lm_head"));
    }
  }
}

TEST_F(QuantizationConfigTest, AnUnquantisedCheckpointHasNone) { EXPECT_FALSE(read(nullptr)); }

TEST_F(QuantizationConfigTest, ModelOptsOwnFileIsEnough) {
  Json json = hf_quant_config_json(true, {"lm_head", "model.layers.0.self_attn*"});
  json["quantization"]["kv_cache_quant_algo"] = "FP8";
  write_json_file(dir_ / "hf_quant_config.json", json);
  const auto config = read(nullptr);
  ASSERT_TRUE(config);
  EXPECT_EQ(config->format, CheckpointFormat::kNvfp4ModelOpt);
  EXPECT_TRUE(config->weights_only);
  EXPECT_TRUE(config->kv_cache_scales);
  EXPECT_FALSE(config->quantises("model.layers.0.self_attn.q_proj"));
}

TEST_F(QuantizationConfigTest, TwoFilesThatDifferAreRefused) {
  write_json_file(dir_ / "hf_quant_config.json", hf_quant_config_json(true, {}));
  expect_refused(nvfp4(CheckpointFormat::kNvfp4ModelOpt), "contradict each other");
  expect_refused(nvfp4(), "contradict each other");
}

TEST_F(QuantizationConfigTest, TargetsNarrowWhatIsQuantised) {
  Json json = nvfp4();
  json["config_groups"]["group_0"]["targets"] = {"re:.*experts.*"};
  const auto config = read(json);
  EXPECT_TRUE(config->quantises("model.layers.0.mlp.experts.0.up_proj"));
  EXPECT_FALSE(config->quantises("model.layers.0.self_attn.q_proj"));
}

TEST_F(QuantizationConfigTest, OtherMethodsAndFormsAreRefusedByName) {
  expect_refused({{"quant_method", "awq"}}, "quant_method 'awq'");
  expect_refused(Json::object(), "quant_method");
  Json json = nvfp4();
  json["format"] = "pack-quantized";
  expect_refused(json, "format 'pack-quantized'");
  json = nvfp4();
  json["transform_config"] = {{"config_groups", {{"u", 1}}}};
  expect_refused(json, "transform_config");
  json = nvfp4();
  json["config_groups"]["group_0"]["weights"]["group_size"] = 32;
  expect_refused(json, "group_size");
  json = nvfp4();
  json["config_groups"]["group_0"]["weights"]["symmetric"] = false;
  expect_refused(json, "symmetric");
  json = nvfp4();
  json["config_groups"] = Json::object();
  expect_refused(json, "config_groups");
  json = nvfp4();
  json["config_groups"]["group_1"] = json["config_groups"]["group_0"];
  json["config_groups"]["group_1"].erase("input_activations");
  expect_refused(json, "some groups quantise activations");
  json = nvfp4(CheckpointFormat::kNvfp4ModelOpt);
  json["quant_algo"] = "NVFP4_AWQ";
  expect_refused(json, "quant_algo 'NVFP4_AWQ'");
  json["quant_algo"] = "W4A16_NVFP4";
  expect_refused(json, "contradict each other");
  json = quantization_config_json(CheckpointFormat::kFp8, false, {});
  json["weight_block_size"] = {64, 64};
  expect_refused(json, "weight_block_size");
  json.erase("weight_block_size");
  expect_refused(json, "weight_block_size");
  json["weight_block_size"] = {128, 128};
  json["activation_scheme"] = "static";
  expect_refused(json, "activation_scheme");
}

TEST(CheckpointFormat, UnknownNamesAreRefusedWithTheList) {
  expect_contains(error_of([] { parse_checkpoint_format("gguf"); }), "nvfp4-modelopt");
}

}  // namespace
}  // namespace quads
