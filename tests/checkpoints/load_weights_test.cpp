#include "checkpoints/load_weights.h"

#include <functional>
#include <limits>

#include "tests/checkpoints/checkpoint_files.h"
#include "tests/io/memory_peak.h"

namespace quads::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr const char* kDown = "model.layers.0.mlp.experts.3.down_proj.";

class LoadWeightsTest : public ::testing::Test {
 protected:
  // The message with which a checkpoint is refused after `change`.
  std::string refusal(CheckpointFormat format, const std::function<void(OwnedTensors&)>& change) {
    const std::filesystem::path out = model_.write(format);
    OwnedTensors tensors = read_tensors(out);
    change(tensors);
    write_tensors(out, tensors);
    const std::string message = error_of([&] { load_weights(out); });
    EXPECT_TRUE(message.starts_with(out.string())) << message;
    return message;
  }
  std::string refusal(CheckpointFormat format, const std::string& name,
                      const std::function<void(OwnedTensor&)>& change) {
    return refusal(format, [&](OwnedTensors& tensors) { change(tensors.at(kDown + name)); });
  }
  // Loaded after `change` of config.json.
  std::string config_refusal(CheckpointFormat format, const std::function<void(Json&)>& change) {
    const std::filesystem::path out = model_.write(format);
    std::filesystem::remove(out / "hf_quant_config.json");
    Json config = read_json_file(out / "config.json");
    change(config);
    write_json_file(out / "config.json", config);
    return error_of([&] { load_weights(out); });
  }

  Quantised model_;
};

TEST_F(LoadWeightsTest, AnUnquantisedCheckpointIsReadAsItIs) {
  const LoadedWeights loaded = load_weights(model_.source());
  EXPECT_TRUE(same_values(loaded.parameters, model_.parameters));
  EXPECT_FALSE(loaded.stored);
}

TEST_F(LoadWeightsTest, ShardsMayPartALayersTensors) {
  const std::filesystem::path out = model_.write(CheckpointFormat::kNvfp4ModelOpt);
  const LoadedWeights whole = load_weights(out);
  write_tensors(out, read_tensors(out), 1024);
  std::filesystem::remove(out / "model.safetensors");
  EXPECT_TRUE(same_values(load_weights(out).parameters, whole.parameters));
}

TEST_F(LoadWeightsTest, AnyRangeIsThatOfTheWhole) {
  for (const CheckpointFormat format : kAllFormats) {
    const std::filesystem::path out = model_.write(format);
    const Parameters whole = load_weights(out).parameters;
    const OpenedWeights opened = open_weights(out);
    const int64_t total = whole.layout().total;
    for (const int64_t count : {37, 1013, 65536}) {
      std::vector<Bf16> values(static_cast<size_t>(total), Bf16{0x7FC1});
      for (int64_t offset = 0; offset < total; offset += count) {
        opened.files->read(offset, std::min(count, total - offset), values.data() + offset);
      }
      EXPECT_TRUE(std::equal(values.begin(), values.end(), whole.values()))
          << checkpoint_format_name(format) << ", " << count << " at a time";
    }
  }
}

TEST_F(LoadWeightsTest, BesidesTheParametersNoMoreThanAShardIsInMemory) {
#if defined(__SANITIZE_ADDRESS__) || defined(QUADS_COVERAGE)
  GTEST_SKIP() << "the address sanitizer and counters of lines have memory of their own";
#endif
  Quantised model(large_config());
  for (const CheckpointFormat format : kAllFormats) {
    const std::filesystem::path out = model.write(format);
    const OwnedTensors tensors = read_tensors(out);
    write_tensors(out, tensors, size_t{3} << 20);
    std::filesystem::remove(out / "model.safetensors");
    const ShardSizes shards(out);
    ASSERT_GE(shards.count, 5);
    const int64_t own = model.parameters.layout().total * 2;
    const int64_t peak = memory_peak([&] { load_weights(out); });
    EXPECT_GE(peak, own);
    EXPECT_LE(peak - own, shards.largest * 12 / 10)
        << checkpoint_format_name(format) << ", shards of up to " << shards.largest;
  }
}

TEST_F(LoadWeightsTest, AMissingTensorOfALayerIsNamed) {
  for (const CheckpointFormat format : kAllFormats) {
    const OwnedTensors tensors = read_tensors(model_.write(format));
    int found = 0;
    for (const auto& [name, tensor] : tensors) {
      if (!name.starts_with(kDown)) continue;
      ++found;
      const std::string missing = name;
      expect_contains(refusal(format, [&](OwnedTensors& t) { t.erase(missing); }),
                      "tensor " + missing + " is missing");
    }
    EXPECT_EQ(found, format == CheckpointFormat::kFp8 ? 2 : 4);
  }
}

TEST_F(LoadWeightsTest, WrongShapesAndTypesAreNamed) {
  for (const CheckpointFormat format : kAllFormats) {
    const OwnedTensors tensors = read_tensors(model_.write(format));
    for (const auto& [name, tensor] : tensors) {
      if (!name.starts_with(kDown)) continue;
      const std::string changed = name;
      const std::string shaped = refusal(format, [&](OwnedTensors& t) {
        OwnedTensor& x = t.at(changed);
        x.shape = {2, 3};
        x.bytes.resize(6 * dtype_size(x.dtype));
      });
      expect_contains(shaped, "tensor " + changed);
      expect_contains(shaped, "[2, 3]");
      const std::string typed = refusal(format, [&](OwnedTensors& t) {
        OwnedTensor& x = t.at(changed);
        x.dtype = dtype_size(x.dtype) == 1 ? DType::kI8 : DType::kI32;
      });
      expect_contains(typed, "tensor " + changed);
      expect_contains(typed, dtype_size(tensor.dtype) == 1 ? "I8" : "I32");
    }
  }
}

TEST_F(LoadWeightsTest, BlockScalesThatAreNegativeOrNaNAreNamedWithTheirPlace) {
  for (const CheckpointFormat format :
       {CheckpointFormat::kNvfp4ModelOpt, CheckpointFormat::kNvfp4CompressedTensors}) {
    for (const uint8_t code : {0x7F, 0xFF, 0x80, 0xB8}) {
      const std::string message = refusal(format, "weight_scale", [&](OwnedTensor& scales) {
        scales.as<uint8_t>(4 * 5 + 2) = code;
      });
      expect_contains(message, std::string(kDown) + "weight_scale: row 5, block 2");
      expect_contains(message, fmt::format("code {:02X}", code));
    }
  }
}

TEST_F(LoadWeightsTest, GlobalScalesThatAreNotPositiveAndFiniteAreNamed) {
  const auto change = [&](CheckpointFormat format, const char* name, float value) {
    return refusal(format, name, [&](OwnedTensor& scale) { scale.as<float>(0) = value; });
  };
  for (const float value : {0.0F, -0.0F, -1.0F, kInf, kNan}) {
    for (const char* name : {"weight_scale_2", "input_scale"}) {
      expect_contains(change(CheckpointFormat::kNvfp4ModelOpt, name, value),
                      fmt::format("tensor {}{} is {}", kDown, name, value));
    }
    for (const char* name : {"weight_global_scale", "input_global_scale"}) {
      expect_contains(change(CheckpointFormat::kNvfp4CompressedTensors, name, value),
                      fmt::format("tensor {}{} is {}", kDown, name, value));
    }
  }
  // A divisor of 2^120 is a multiplier of 2^-120; one of 2^-140 is an infinite one.
  expect_contains(change(CheckpointFormat::kNvfp4ModelOpt, "weight_scale_2", 0x1p-120F), "2^-100");
  expect_contains(
      change(CheckpointFormat::kNvfp4CompressedTensors, "weight_global_scale", 0x1p120F), "2^-100");
  expect_contains(
      change(CheckpointFormat::kNvfp4CompressedTensors, "weight_global_scale", 0x1p-140F),
      "weight_global_scale");
  // So large that a value leaves BF16.
  expect_contains(change(CheckpointFormat::kNvfp4ModelOpt, "weight_scale_2", 0x1p127F),
                  "when dequantised");
}

TEST_F(LoadWeightsTest, Fp8ScalesAndCodesThatAreNotNumbersAreNamed) {
  for (const float value : {-1.0F, kInf, kNan}) {
    const std::string message = refusal(CheckpointFormat::kFp8, "weight_scale_inv",
                                        [&](OwnedTensor& scales) { scales.as<float>(0) = value; });
    expect_contains(message, fmt::format("weight_scale_inv: scale [0, 0] is {}", value));
  }
  expect_contains(refusal(CheckpointFormat::kFp8, "weight",
                          [](OwnedTensor& codes) { codes.as<uint8_t>(64 + 3) = 0xFF; }),
                  "down_proj.weight: row 1, column 3 is an E4M3 NaN");
}

TEST_F(LoadWeightsTest, Fp8ScalesMayBeAnyNumberAndBf16) {
  const std::filesystem::path out = model_.write(CheckpointFormat::kFp8);
  OwnedTensors tensors = read_tensors(out);
  OwnedTensor& scales = tensors.at(std::string(kDown) + "weight_scale_inv");
  const Bf16 scale = to_bf16(0.3F);
  scales.dtype = DType::kBF16;
  scales.bytes.resize(2);
  scales.as<Bf16>(0) = scale;
  tensors.at(std::string(kDown) + "weight").as<uint8_t>(0) = 0x3B;  // 1.375
  write_tensors(out, tensors);
  const Parameters parameters = load_weights(out).parameters;
  const int64_t index = parameters.layout().layers[0].down[3];
  EXPECT_EQ(parameters.of(index)[0].bits, to_bf16(1.375F * to_float(scale)).bits);
}

TEST_F(LoadWeightsTest, TensorsThatBelongToNothingAreNamed) {
  const OwnedTensor one{DType::kF32, {}, std::vector<std::byte>(4, std::byte{0x3F})};
  for (const char* name : {"model.layers.0.mlp.experts.9.down_proj.weight_scale",
                           "model.layers.0.self_attn.q_proj.pre_quant_scale",
                           "model.layers.0.self_attn.k_proj.k_scale", "input_scale"}) {
    expect_contains(refusal(CheckpointFormat::kNvfp4ModelOpt,
                            [&](OwnedTensors& tensors) { tensors[name] = one; }),
                    name);
  }
  // Scales beside a weight that is not quantised.
  expect_contains(refusal(CheckpointFormat::kNvfp4ModelOpt,
                          [&](OwnedTensors& tensors) {
                            tensors["model.layers.0.self_attn.q_proj.weight_scale_2"] = one;
                          }),
                  "leaves model.layers.0.self_attn.q_proj unquantised");
  expect_contains(refusal(CheckpointFormat::kNvfp4ModelOpt,
                          [&](OwnedTensors& tensors) { tensors["model.norm.weight_scale"] = one; }),
                  "model.norm");
}

TEST_F(LoadWeightsTest, KvCacheScalesAreSkippedWhereTheConfigurationHasThem) {
  const std::filesystem::path out = model_.write(CheckpointFormat::kNvfp4ModelOpt);
  OwnedTensors tensors = read_tensors(out);
  tensors["model.layers.0.self_attn.k_proj.k_scale"] = {DType::kF32, {}, std::vector<std::byte>(4)};
  write_tensors(out, tensors);
  Json config = read_json_file(out / "config.json");
  config["quantization_config"]["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  write_json_file(out / "config.json", config);
  load_weights(out);
}

TEST_F(LoadWeightsTest, AConfigurationThatLiesAboutTheTensorsIsRefused) {
  const auto set = [](const char* key, Json value) {
    return [=](Json& config) { config["quantization_config"][key] = value; };
  };
  const auto formats = [&](CheckpointFormat says, CheckpointFormat is) {
    return config_refusal(is, [&](Json& config) {
      const Json ignore = config["quantization_config"].contains("ignore")
                              ? config["quantization_config"]["ignore"]
                              : config["quantization_config"]["modules_to_not_convert"];
      config["quantization_config"] =
          quantization_config_json(says, false, ignore.get<std::vector<std::string>>());
    });
  };
  for (const CheckpointFormat is : kAllFormats) {
    for (const CheckpointFormat says : kAllFormats) {
      if (says == is) continue;
      const std::string message = formats(says, is);
      expect_contains(message, "model.layers.0.mlp.experts.0.down_proj.");
    }
  }
  expect_contains(
      config_refusal(CheckpointFormat::kNvfp4ModelOpt, set("quant_algo", "W4A16_NVFP4")),
      "contradict each other");
  expect_contains(config_refusal(CheckpointFormat::kNvfp4CompressedTensors,
                                 [](Json& config) {
                                   config["quantization_config"]["config_groups"]["group_0"].erase(
                                       "input_activations");
                                 }),
                  "activations are not quantised");
  expect_contains(config_refusal(CheckpointFormat::kNvfp4ModelOpt, set("ignore", {"re:.*"})),
                  "leaves model.layers.0.mlp.experts.0.down_proj unquantised");
  expect_contains(config_refusal(CheckpointFormat::kNvfp4ModelOpt, set("ignore", {"lm_head"})),
                  "tensor model.layers.0.self_attn.q_proj.weight is not quantised");
  expect_contains(config_refusal(CheckpointFormat::kFp8,
                                 [](Json& config) { config.erase("quantization_config"); }),
                  "there is no quantization_config");
}

}  // namespace
}  // namespace quads::testing
