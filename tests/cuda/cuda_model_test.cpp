// What of a model becomes fragments on a GPU, and what that takes of its memory.
#include "cuda/cuda_model.h"

#include <gtest/gtest.h>

#include "cuda/memory_plan.h"
#include "kernels/cuda/device_array.h"
#include "model/side.h"

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
  EXPECT_EQ(cuda::model_bytes(layout, {config, kNvfp4, kAllLinears}),
            layout.total * 2 - quantised + fragments + staged);
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
      EXPECT_NEAR(static_cast<double>(model.weight_bytes() + staged),
                  static_cast<double>(cuda::model_bytes(parameters.layout(), model.sites())), 256);
    }
  }
}

}  // namespace
}  // namespace quads::testing
