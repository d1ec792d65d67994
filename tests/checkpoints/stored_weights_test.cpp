// Rolling out with a checkpoint's own codes: packed as they are, the global scale applied to sums.
#include "kernels/cpu/linear.h"
#include "numerics/nvfp4.h"
#include "tests/checkpoints/checkpoint_files.h"

namespace quads::testing {
namespace {

constexpr Precision kW4a16{Format::kNvfp4, Format::kBf16, {}};

std::vector<uint8_t> tiles_of(const kernels::PackedMatrix& m) {
  std::vector<uint8_t> bytes(m.tiles, m.tiles + kernels::packed_tile_bytes(m.format, m.n, m.k));
  bytes.insert(bytes.end(), m.scales, m.scales + kernels::packed_scale_bytes(m.format, m.n, m.k));
  return bytes;
}

struct Packed {
  Packed(const Parameters& parameters, const Precision& precision, const StoredWeights* stored,
         QuantizeScope scope = {})
      : runtime(kernels::best_isa(), 1),
        model(parameters, {.precision = precision, .scope = scope, .stored = stored}) {
    RacMasks masks;
    if (precision.rac.ratio > 0) masks = random_masks(model, precision.rac, 3);
    model.refresh(runtime.context(), masks);
  }
  kernels::CpuRuntime runtime;
  PackedModel model;
};

void expect_same_tiles(const PackedModel& a, const PackedModel& b) {
  for (int64_t l = 0; l < a.num_layers(); ++l) {
    for (int64_t e = 0; e < a.ffn(l).experts; ++e) {
      for (const auto matrix : {&kernels::MoeBlock::gate_up, &kernels::MoeBlock::down}) {
        const kernels::PackedMatrix& x = (a.ffn(l).*matrix)[e];
        const kernels::PackedMatrix& y = (b.ffn(l).*matrix)[e];
        EXPECT_EQ(x.format, y.format);
        EXPECT_EQ(x.alpha, y.alpha);
        if (x.format == kernels::WeightFormat::kNvfp4) {
          EXPECT_EQ(tiles_of(x), tiles_of(y));
        }
      }
    }
  }
}

TEST(StoredWeights, OwnCheckpointsPackToTheVeryTilesOfTheModelTheyCameFrom) {
  for (const ModelConfig& config : {moe_config(), qwen2_moe_config(), mixtral_config()}) {
    Quantised model(config);
    for (const CheckpointFormat format :
         {CheckpointFormat::kNvfp4ModelOpt, CheckpointFormat::kNvfp4CompressedTensors}) {
      const LoadedWeights loaded = load_weights(model.write(format), StoredCodes::kKeep);
      for (const double ratio : {0.0, 0.5}) {
        Precision precision = kW4a16;
        if (ratio > 0) precision = {Format::kNvfp4, Format::kNvfp4, {.ratio = ratio}};
        const Packed direct(model.parameters, precision, nullptr);
        const Packed stored(loaded.parameters, precision, loaded.stored.get());
        expect_same_tiles(direct.model, stored.model);
      }
    }
  }
}

TEST(StoredWeights, AnArbitraryGlobalScaleIsAppliedToTheFp32Sums) {
  Quantised model;
  WriteQuantisedOptions options;
  options.global_scale = GlobalScale::kAmax;
  const LoadedWeights loaded = load_weights(model.write(options), StoredCodes::kKeep);
  StoredWeights unit = *loaded.stored;
  for (auto& [index, matrix] : unit) matrix.global_scale = 1.0F;
  Packed scaled(loaded.parameters, kW4a16, loaded.stored.get());
  Packed plain(loaded.parameters, kW4a16, &unit);
  const kernels::PackedMatrix& a = scaled.model.ffn(0).down[3];
  const kernels::PackedMatrix& b = plain.model.ffn(0).down[3];
  EXPECT_FALSE(is_power_of_two(a.alpha));
  std::vector<Bf16> x(static_cast<size_t>(a.k));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = to_bf16(std::sin(static_cast<float>(i)) * kernels::kQuantisedActivationScale);
  }
  const auto multiply = [&](Packed& packed, const kernels::PackedMatrix& weight) {
    std::vector<float> y(static_cast<size_t>(weight.n), std::nanf(""));
    kernels::linear(packed.runtime.context(), {.q1 = x.data(), .ld1 = weight.k}, 1, weight,
                    y.data(), weight.n);
    return y;
  };
  const std::vector<float> ya = multiply(scaled, a), yb = multiply(plain, b);
  for (size_t i = 0; i < ya.size(); ++i) EXPECT_EQ(ya[i], yb[i] * a.alpha) << i;
}

TEST(StoredWeights, GateAndUpWithScalesOfTheirOwnAreRefusedWithBothValues) {
  Quantised model;
  const std::filesystem::path out = model.write(CheckpointFormat::kNvfp4ModelOpt);
  OwnedTensors tensors = read_tensors(out);
  const std::string at = "model.layers.2.mlp.experts.1.";
  tensors.at(at + "gate_proj.weight_scale_2").as<float>(0) = 0.125F;
  tensors.at(at + "up_proj.weight_scale_2").as<float>(0) = 0.375F;
  write_tensors(out, tensors);
  load_weights(out);  // dequantised they are no matter
  const std::string message = error_of([&] { load_weights(out, StoredCodes::kKeep); });
  expect_contains(message, at + "gate_proj has the global scale 0.125");
  expect_contains(message, at + "up_proj 0.375");
}

TEST(StoredWeights, WhatIsStoredAndWhatIsQuantisedMustBeTheSame) {
  Quantised model;
  const LoadedWeights loaded =
      load_weights(model.write(CheckpointFormat::kNvfp4ModelOpt), StoredCodes::kKeep);
  const auto refusal = [&](const Precision& precision, const StoredWeights& stored,
                           QuantizeScope scope = {}) {
    return error_of([&] { Packed(loaded.parameters, precision, &stored, scope); });
  };
  QuantizeScope linears{.what = QuantizeScope::What::kLinears};
  expect_contains(
      refusal(kW4a16, *loaded.stored, linears),
      "qkv_proj is to be multiplied as NVFP4, but the checkpoint stores it unquantised");
  QuantizeScope last{.high_precision_first_layers = 1};
  expect_contains(refusal(kW4a16, *loaded.stored, last),
                  "stores model.layers.0.mlp.experts.0.gate_up_proj as NVFP4, but it is not among");
  expect_contains(refusal({}, *loaded.stored), "precision bf16");
  StoredWeights short_codes = *loaded.stored;
  short_codes.begin()->second.codes.pop_back();
  expect_contains(refusal(kW4a16, short_codes), "bytes of codes");
  StoredWeights strange = *loaded.stored;
  strange[1 << 20] = {};
  expect_contains(refusal(kW4a16, strange), "1 stored weights are of no matrix");
}

TEST(StoredWeights, CheckpointsWithoutCodesAreRefused) {
  Quantised model;
  expect_contains(error_of([&] { load_weights(model.source(), StoredCodes::kKeep); }),
                  "not quantised");
  const auto fp8 = model.write(CheckpointFormat::kFp8);
  expect_contains(error_of([&] { load_weights(fp8, StoredCodes::kKeep); }), "FP8");
}

}  // namespace
}  // namespace quads::testing
