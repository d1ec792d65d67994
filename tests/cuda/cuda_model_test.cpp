// What of a model becomes fragments on a GPU, and what that takes of its memory.
#include "cuda/cuda_model.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/cuda_backend.h"
#include "cuda/memory_plan.h"
#include "kernels/cuda/device_array.h"
#include "model/side.h"
#include "numerics/nvfp4.h"
#include "rollout/testing.h"

namespace quads::testing {
namespace {

using cuda::CudaModel;
using cuda::HostParameters;
using kernels::cuda::fragment_bytes;
using kernels::cuda::WeightFormat;

constexpr QuantizeScope kAllLinears{.what = QuantizeScope::What::kLinears};
constexpr Precision kNvfp4{Format::kNvfp4, Format::kNvfp4, {}};

int64_t packed_in(const QuantisedSites& sites, int64_t layer, WeightFormat format) {
  const ParameterLayout layout(sites.config);
  int64_t count = 0;
  for (const cuda::PackedParameter& p : cuda::packed_parameters(layout, sites, layer)) {
    count += p.format == format ? 1 : 0;
  }
  return count;
}

TEST(PackedParameters, AreExpertsAndWhatElseIsQuantised) {
  const ModelConfig config = qwen2_moe_config();  // 6 experts and a shared one; layer 1 is dense
  const QuantisedSites experts{config, kNvfp4, {}}, linears{config, kNvfp4, kAllLinears};
  EXPECT_EQ(packed_in(experts, 0, WeightFormat::kNvfp4), 12);
  EXPECT_EQ(packed_in(experts, 0, WeightFormat::kBf16), 2);  // the shared expert
  EXPECT_EQ(packed_in(experts, 1, WeightFormat::kNvfp4), 0);
  EXPECT_EQ(packed_in(experts, 1, WeightFormat::kBf16), 2);
  EXPECT_EQ(packed_in(linears, 0, WeightFormat::kNvfp4), 16);  // q, k and v are one
  EXPECT_EQ(packed_in(linears, 0, WeightFormat::kBf16), 0);
  EXPECT_EQ(packed_in(linears, 1, WeightFormat::kNvfp4), 4);
  const QuantisedSites inner{
      config, kNvfp4, {QuantizeScope::What::kLinears, /*first=*/1, /*last=*/1}};
  EXPECT_EQ(packed_in(inner, 0, WeightFormat::kNvfp4), 0);
  EXPECT_EQ(packed_in(inner, 0, WeightFormat::kBf16), 14);
  EXPECT_EQ(packed_in(inner, 1, WeightFormat::kNvfp4), 4);
}

TEST(PackedParameters, LieInTheOrderOfTheFlatArray) {
  const QuantisedSites sites{qwen2_moe_config(), kNvfp4, kAllLinears};
  const ParameterLayout layout(sites.config);
  for (int64_t l = 0; l < sites.num_layers(); ++l) {
    const auto packed = cuda::packed_parameters(layout, sites, l);
    const cuda::ParameterRange range = cuda::range_of(layout, packed);
    int64_t end = range.offset;
    for (const cuda::PackedParameter& p : packed) {
      EXPECT_GE(layout.at(p.index).offset, end);
      end = layout.at(p.index).offset + layout.at(p.index).padded_size();
    }
    EXPECT_EQ(end, range.offset + range.elements);
  }
}

TEST(ModelBytes, CountEveryParameterOnceAndTheLargestLayerAgain) {
  ModelConfig config = dense_config();
  config.num_hidden_layers = 1;
  const ParameterLayout layout(config);
  const ParameterLayout::Layer& layer = layout.layers[0];
  int64_t quantised = 0, fragments = 0;
  for (const int64_t index : {layer.qkv, layer.o, layer.gate_up[0], layer.down[0]}) {
    const Parameter& p = layout.at(index);
    quantised += p.padded_size() * 2;
    fragments += fragment_bytes(p.rows, p.cols, WeightFormat::kNvfp4);
  }
  const Parameter& last = layout.at(layer.down[0]);
  const int64_t staged = (last.offset + last.padded_size() - layout.at(layer.qkv).offset) * 2;
  const QuantisedSites sites = {config, kNvfp4, kAllLinears};
  const int64_t weights = layout.total * 2 - quantised + fragments;
  EXPECT_EQ(cuda::model_bytes(layout, sites, true), weights);
  EXPECT_EQ(cuda::model_bytes(layout, sites, false), weights + staged);
}

TEST(ModelBytes, AreWhatAModelTakes) {
  QUADS_NEEDS_DEVICE();
  const cuda::Stream stream;
  for (const ModelConfig& config : {moe_config(), qwen2_moe_config(), dense_config()}) {
    for (const QuantizeScope& scope : {QuantizeScope{}, kAllLinears}) {
      const Parameters parameters(config);
      const HostParameters source(parameters);
      const CudaModel model(stream.get(), source, kNvfp4, scope, 16);
      int64_t staged = 0;
      for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
        const auto packed = cuda::packed_parameters(parameters.layout(), model.sites(), l);
        staged = std::max(staged, cuda::range_of(parameters.layout(), packed).elements * 2);
      }
      // Scales, four bytes a matrix, are not in the plan.
      const auto planned = [&](bool resident) {
        return static_cast<double>(cuda::model_bytes(parameters.layout(), model.sites(), resident));
      };
      EXPECT_NEAR(static_cast<double>(model.weight_bytes()), planned(true), 256);
      EXPECT_NEAR(static_cast<double>(model.weight_bytes() + staged), planned(false), 256);
    }
  }
}

// What a checkpoint would hold of the matrices that `side` quantises, global scales times `factor`.
StoredWeights stored_weights(const Parameters& parameters, const Side& side, float factor) {
  const ParameterLayout& layout = parameters.layout();
  StoredWeights stored;
  for (int64_t l = 0; l < side.model.num_layers(); ++l) {
    for (const cuda::PackedParameter& p : cuda::packed_parameters(layout, side.model.sites(), l)) {
      if (p.format != WeightFormat::kNvfp4) continue;
      const Parameter& parameter = layout.at(p.index);
      std::vector<float> values;
      float amax = 0.0F;
      for (int64_t i = 0; i < parameter.size(); ++i) {
        values.push_back(to_float(parameters.of(p.index)[i]));
        amax = std::max(amax, std::fabs(values.back()));
      }
      const Nvfp4Matrix matrix = quantise_nvfp4(values, parameter.rows, parameter.cols,
                                                global_scale_pow2(amax), parameter.name);
      stored[p.index] = {matrix.packed, matrix.block_scales, matrix.global_scale * factor};
    }
  }
  return stored;
}

class StoredOnDevice : public ::testing::TestWithParam<ModelConfig> {
 protected:
  StoredOnDevice()
      : parameters(GetParam()),
        side(
            (randomise(parameters, 3), parameters),
            {.precision = {Format::kNvfp4, Format::kNvfp4, {.ratio = 0.5}}, .scope = kAllLinears}) {
  }
  Parameters parameters;
  Side side;
};

TEST_P(StoredOnDevice, OwnWeightsAreTheVeryFragmentsThatRefreshingMakes) {
  QUADS_NEEDS_DEVICE();
  const StoredWeights stored = stored_weights(parameters, side, 1.0F);
  const HostParameters source(parameters);
  const cuda::Stream stream;
  CudaModel made(stream.get(), source, side.model.precision(), kAllLinears, 16);
  CudaModel copied(stream.get(), source, side.model.precision(), kAllLinears, 16, &stored);
  made.refresh(side.masks);
  copied.refresh(side.masks);
  const auto bytes_of = [](const cuda::DeviceExperts& experts) {
    std::vector<uint8_t> bytes(experts.fragments.bytes() + experts.global_scales.bytes());
    kernels::cuda::check_cuda(cudaMemcpy(bytes.data(), experts.fragments.data(),
                                         experts.fragments.bytes(), cudaMemcpyDeviceToHost),
                              "fragments");
    kernels::cuda::check_cuda(
        cudaMemcpy(bytes.data() + experts.fragments.bytes(), experts.global_scales.data(),
                   experts.global_scales.bytes(), cudaMemcpyDeviceToHost),
        "scales");
    return bytes;
  };
  for (int64_t l = 0; l < side.model.num_layers(); ++l) {
    const cuda::DeviceLayer &a = made.layer(l), &b = copied.layer(l);
    EXPECT_EQ(bytes_of(a.qkv.quantised), bytes_of(b.qkv.quantised)) << l;
    EXPECT_EQ(bytes_of(a.out.quantised), bytes_of(b.out.quantised)) << l;
    EXPECT_EQ(bytes_of(a.ffn.gate_up), bytes_of(b.ffn.gate_up)) << l;
    EXPECT_EQ(bytes_of(a.ffn.down), bytes_of(b.ffn.down)) << l;
    EXPECT_EQ(bytes_of(a.shared.gate_up), bytes_of(b.shared.gate_up)) << l;
    EXPECT_EQ(bytes_of(a.shared.down), bytes_of(b.shared.down)) << l;
  }
}

TEST_P(StoredOnDevice, AnyGlobalScaleIsMultipliedWithAsOnTheCpu) {
  QUADS_NEEDS_DEVICE();
  const StoredWeights stored = stored_weights(parameters, side, 0.9F);
  constexpr Precision kW4a16{Format::kNvfp4, Format::kBf16, {}};
  const HostParameters source(parameters);
  cuda::CudaBackend backend(
      source, {.precision = kW4a16, .scope = kAllLinears, .max_context = 64, .stored = &stored});
  backend.refresh({});
  PackedModel packed(parameters, {.precision = kW4a16, .scope = kAllLinears, .stored = &stored});
  packed.refresh(side.runtime.context(), {});
  CpuBackend cpu_backend(side.runtime, packed);
  Engine device(backend, {.max_context = 64}), cpu(cpu_backend, {.max_context = 64});
  const std::vector<Sample> samples = device.generate(make_requests(3), make_options());
  const std::vector<std::vector<float>> scores = cpu.score(samples, 1.0F);
  std::vector<float> differences;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t t = 0; t < scores[i].size(); ++t) {
      differences.push_back(std::fabs(scores[i][t] - samples[i].logprobs[t]));
    }
  }
  std::ranges::sort(differences);
  ASSERT_GT(differences.size(), 50U);
  EXPECT_LT(differences[differences.size() * 9 / 10], 0.05F);
}

TEST(StoredWeightsOnDevice, WhatIsStoredAndWhatIsQuantisedMustBeTheSame) {
  QUADS_NEEDS_DEVICE();
  Parameters parameters(moe_config());
  randomise(parameters, 3);
  const Side side(parameters, {.precision = kNvfp4});
  const StoredWeights stored = stored_weights(parameters, side, 1.0F);
  const HostParameters source(parameters);
  EXPECT_MENTIONS(
      error_of([&] {
        cuda::CudaBackend(
            source,
            {.precision = kNvfp4, .scope = kAllLinears, .max_context = 64, .stored = &stored});
      }),
      "qkv_proj is to be multiplied as NVFP4, but the checkpoint stores it unquantised");
}

INSTANTIATE_TEST_SUITE_P(Models, StoredOnDevice,
                         ::testing::Values(moe_config(), qwen2_moe_config()),
                         [](const auto& info) { return std::to_string(info.index); });

}  // namespace
}  // namespace quads::testing
