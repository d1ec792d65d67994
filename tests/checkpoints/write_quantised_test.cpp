#include "checkpoints/write_quantised.h"

#include <limits>

#include "checkpoints/quantisable.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"
#include "tests/checkpoints/checkpoint_files.h"

namespace quads::testing {
namespace {

constexpr const char* kExpert = "model.layers.0.mlp.experts.3.";

std::vector<float> floats(const Bf16* values, int64_t count) {
  std::vector<float> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(to_float(values[i]));
  return result;
}

// What a checkpoint in `format` should hold, by the reference quantisers.
Parameters expected_values(const Parameters& parameters, const WriteQuantisedOptions& options) {
  const ModelConfig& config = parameters.config();
  Parameters result(config);
  std::copy_n(parameters.values(), parameters.layout().total, result.values());
  for (const QuantisableLinear& l : quantisable_linears(config, parameters.layout())) {
    if (!options.scope.covers(l.layer, config.num_hidden_layers, config.is_sparse(l.layer),
                              l.site)) {
      continue;
    }
    const Parameter& p = parameters.layout().at(l.parameter);
    std::vector<float> values;
    if (options.format == CheckpointFormat::kFp8) {
      for (const ParameterPart& part : p.parts) {
        const auto x =
            floats(parameters.of(l.parameter) + part.row_begin * p.cols, part.rows * p.cols);
        const auto q = dequantise_fp8(quantise_fp8(x, part.rows, p.cols, 128, p.name), p.name);
        values.insert(values.end(), q.begin(), q.end());
      }
    } else {
      values =
          fake_quantise_nvfp4(floats(parameters.of(l.parameter), p.size()), p.rows, p.cols, p.name);
    }
    for (int64_t i = 0; i < p.size(); ++i) {
      result.values()[p.offset + i] = to_bf16(values[static_cast<size_t>(i)]);
    }
  }
  return result;
}

TEST(WriteQuantised, EveryFormatOfEveryFamilyReadsBackAsTheReferenceQuantisersValues) {
  for (const ModelConfig& config :
       {moe_config(), dense_config(), qwen2_moe_config(), olmoe_config(), mixtral_config()}) {
    Quantised model(config);
    for (const CheckpointFormat format : kAllFormats) {
      for (const auto what : {QuantizeScope::What::kExperts, QuantizeScope::What::kLinears}) {
        if (config.num_experts == 0 && what == QuantizeScope::What::kExperts) continue;
        WriteQuantisedOptions options;
        options.format = format;
        options.scope.what = what;
        const LoadedWeights loaded = load_weights(model.write(options));
        EXPECT_EQ(loaded.parameters.config(), config);
        EXPECT_TRUE(same_values(loaded.parameters, expected_values(model.parameters, options)))
            << architecture_name(config.architecture) << checkpoint_format_name(format);
      }
    }
  }
}

TEST(WriteQuantised, TensorsHaveTheNamesTypesAndShapesThatEnginesRead) {
  Quantised model;
  const auto describe_all = [&](CheckpointFormat format) {
    const OwnedTensors tensors = read_tensors(model.write(format));
    std::vector<std::string> result;
    for (const auto& [name, tensor] : tensors) {
      if (!name.starts_with(std::string(kExpert) + "down_proj.")) continue;
      result.push_back(fmt::format("{} {} [{}]", name.substr(std::strlen(kExpert)),
                                   dtype_name(tensor.dtype), fmt::join(tensor.shape, ", ")));
    }
    return result;
  };
  using Strings = std::vector<std::string>;
  EXPECT_EQ(describe_all(CheckpointFormat::kNvfp4ModelOpt),
            (Strings{"down_proj.input_scale F32 []", "down_proj.weight U8 [64, 32]",
                     "down_proj.weight_scale F8_E4M3 [64, 4]", "down_proj.weight_scale_2 F32 []"}));
  EXPECT_EQ(
      describe_all(CheckpointFormat::kNvfp4CompressedTensors),
      (Strings{"down_proj.input_global_scale F32 [1]", "down_proj.weight_global_scale F32 [1]",
               "down_proj.weight_packed U8 [64, 32]", "down_proj.weight_scale F8_E4M3 [64, 4]"}));
  EXPECT_EQ(
      describe_all(CheckpointFormat::kFp8),
      (Strings{"down_proj.weight F8_E4M3 [64, 64]", "down_proj.weight_scale_inv F32 [1, 1]"}));
}

TEST(WriteQuantised, ModelOptMultipliesCompressedTensorsDividesAndGateAndUpShareTheScale) {
  Quantised model;
  const ParameterLayout& layout = model.parameters.layout();
  const int64_t index = layout.layers[0].gate_up[3];
  // Gate alone would have a smaller scale than gate and up together.
  Bf16* values = model.parameters.values() + layout.at(index).offset;
  std::fill_n(values, layout.at(index).size(), to_bf16(0.5F));
  values[layout.at(index).size() - 1] = to_bf16(5376.0F);
  const auto value = [&](CheckpointFormat format, const std::string& name) {
    return read_tensors(model.write(format)).at(kExpert + name).as<float>(0);
  };
  for (const char* projection : {"gate_proj", "up_proj"}) {
    const std::string at = projection;
    EXPECT_EQ(value(CheckpointFormat::kNvfp4ModelOpt, at + ".weight_scale_2"), 2.0F);
    EXPECT_EQ(value(CheckpointFormat::kNvfp4CompressedTensors, at + ".weight_global_scale"), 0.5F);
    const float amax = model.amax.at(0, Site::kFfnIn);
    EXPECT_EQ(value(CheckpointFormat::kNvfp4ModelOpt, at + ".input_scale"), amax / 2688.0F);
    EXPECT_EQ(value(CheckpointFormat::kNvfp4CompressedTensors, at + ".input_global_scale"),
              2688.0F / amax);
  }
  EXPECT_EQ(value(CheckpointFormat::kNvfp4ModelOpt, "down_proj.input_scale"),
            model.amax.at(0, Site::kFfnMid) / 2688.0F);
}

TEST(WriteQuantised, AnInputThatWasNeverSeenHasAFiniteScale) {
  Quantised model;
  model.amax.values.assign(model.amax.values.size(), 0.0F);
  const OwnedTensors tensors = read_tensors(model.write(CheckpointFormat::kNvfp4CompressedTensors));
  OwnedTensor tensor = tensors.at(std::string(kExpert) + "up_proj.input_global_scale");
  EXPECT_EQ(tensor.as<float>(0), 1.0F);
}

TEST(WriteQuantised, ArbitraryGlobalScalesUseTheWholeRange) {
  Quantised model;
  WriteQuantisedOptions options;
  options.global_scale = GlobalScale::kAmax;
  const OwnedTensors tensors = read_tensors(model.write(options));
  const ParameterLayout& layout = model.parameters.layout();
  const int64_t index = layout.layers[0].down[3];
  float amax = 0;
  for (float x : floats(model.parameters.of(index), layout.at(index).size())) {
    amax = std::max(amax, std::fabs(x));
  }
  OwnedTensor global = tensors.at(std::string(kExpert) + "down_proj.weight_scale_2");
  EXPECT_EQ(global.as<float>(0), amax / 2688.0F);
  OwnedTensor scales = tensors.at(std::string(kExpert) + "down_proj.weight_scale");
  uint8_t largest = 0;
  for (int64_t i = 0; i < std::ssize(scales.bytes); ++i) {
    largest = std::max(largest, scales.as<uint8_t>(i));
  }
  EXPECT_EQ(largest, 0x7E);  // 448
}

TEST(WriteQuantised, RoutersHeadAndWhatIsExcludedStayAndAreListed) {
  Quantised model(qwen2_moe_config());
  WriteQuantisedOptions options;
  options.scope.what = QuantizeScope::What::kLinears;
  options.exclude = {"model.layers.0.self_attn", "*.shared_expert.*"};
  const std::filesystem::path out = model.write(options);
  const Json config = read_json_file(out / "config.json");
  const Json& ignore = config.at("quantization_config").at("ignore");
  const auto ignored = ignore.get<std::vector<std::string>>();
  const auto lists = [&](const char* name) { return std::ranges::count(ignored, name) == 1; };
  EXPECT_TRUE(lists("lm_head"));
  EXPECT_TRUE(lists("model.layers.0.mlp.gate"));
  EXPECT_TRUE(lists("model.layers.0.mlp.shared_expert_gate"));
  EXPECT_TRUE(lists("model.layers.0.mlp.shared_expert.up_proj"));
  EXPECT_TRUE(lists("model.layers.0.self_attn.k_proj"));
  EXPECT_FALSE(lists("model.layers.1.self_attn.k_proj"));
  EXPECT_EQ(ignore,
            read_json_file(out / "hf_quant_config.json")["quantization"]["exclude_modules"]);
  const OwnedTensors tensors = read_tensors(out);
  EXPECT_EQ(tensors.at("model.layers.0.self_attn.k_proj.weight").dtype, DType::kBF16);
  EXPECT_EQ(tensors.at("model.layers.1.self_attn.k_proj.weight").dtype, DType::kU8);
  EXPECT_EQ(tensors.at("lm_head.weight").dtype, DType::kBF16);
  EXPECT_EQ(config.at("hidden_size"), 64);
}

TEST(WriteQuantised, ExclusionsThatEnginesCouldNotFollowAreRefused) {
  Quantised model;
  const auto refusal = [&](std::vector<std::string> exclude) {
    WriteQuantisedOptions options;
    options.exclude = std::move(exclude);
    return error_of([&] { model.write(options); });
  };
  expect_contains(refusal({"*.experts.*.gate_proj"}), "multiply with both at once");
  expect_contains(refusal({"*.experts.3.*"}), "all or none");
  expect_contains(refusal({"*.experts.*.down_proj"}), "all or none");
  expect_contains(refusal({"model.layer.0"}), "--exclude model.layer.0: the model has no such");
  expect_contains(refusal({"*"}), "nothing is left");
}

TEST(WriteQuantised, CompanionsAreCopiedAndThreadsDoNotMatter) {
  Quantised model;
  write_text(model.source() / "tokenizer.json", "{\"version\": \"1.0\"}");
  write_text(model.source() / "generation_config.json", "{}");
  WriteQuantisedOptions options;
  int64_t last = -1;
  options.on_progress = [&](int64_t done, int64_t total) {
    EXPECT_EQ(done, ++last);
    EXPECT_LE(done, total);
  };
  const auto one = model.write(options, "one", 1);
  EXPECT_EQ(last, 2 * 2 * 6);  // two sparse layers, two matrices an expert
  last = -1;
  const auto three = model.write(options, "three", 3);
  EXPECT_EQ(read_text(one / "tokenizer.json"), "{\"version\": \"1.0\"}");
  EXPECT_EQ(read_text(one / "generation_config.json"), "{}");
  EXPECT_EQ(read_text(one / "model.safetensors"), read_text(three / "model.safetensors"));
}

TEST(WriteQuantised, AValueThatIsNotFiniteIsNamed) {
  Quantised model;
  const int64_t index = model.parameters.layout().layers[2].down[1];
  Bf16* values = model.parameters.values() + model.parameters.layout().at(index).offset;
  values[70] = to_bf16(std::numeric_limits<float>::infinity());
  const std::string message = error_of([&] { model.write(WriteQuantisedOptions{}); });
  expect_contains(message, "model.layers.2.mlp.experts.1.down_proj");
  expect_contains(message, "row 1, column 6");
}

}  // namespace
}  // namespace quads::testing
