// Weight sync: in place, repeatable to the bit, and an error by name for whatever does not fit.
#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

/// Every tensor of a model by its Hugging Face name.
struct NamedWeights {
  explicit NamedWeights(const Parameters& parameters) {
    const ParameterLayout& layout = parameters.layout();
    for (int64_t i = 0; i < std::ssize(layout.parameters); ++i) {
      const Parameter& p = layout.at(i);
      for (const ParameterPart& part : p.parts) {
        shapes.push_back(p.vector ? std::vector<int64_t>{p.cols}
                                  : std::vector<int64_t>{part.rows, p.cols});
        tensors.push_back({.name = part.name,
                           .shape = shapes.back(),
                           .bf16 = parameters.of(i) + part.row_begin * p.cols});
      }
    }
  }
  NamedTensor& at(std::string_view name) {
    return *std::ranges::find(tensors, name, &NamedTensor::name);
  }
  std::deque<std::vector<int64_t>> shapes;
  std::vector<NamedTensor> tensors;
};

class WeightSyncTest : public ::testing::Test {
 protected:
  std::vector<Sample> generate() { return engine.generate(make_requests(2), make_options()); }
  void set(int64_t parameter, int64_t element, float value) {
    m.parameters.values()[m.parameters.layout().at(parameter).offset + element] = to_bf16(value);
  }
  TestModel m{parse_precision("nvfp4-rac", {.ratio = 0.5}),
              {.what = QuantizeScope::What::kLinears}};
  Engine engine{m.backend, {.max_context = 64}};
  WeightSync sync{m.runtime, m.parameters, m.model};
};

TEST_F(WeightSyncTest, WeightsAThenBThenAGiveTheSameRolloutsToTheBit) {
  const RacMasks full = full_masks(m.model.sites());
  sync.sync(m.masks);
  const std::vector<Sample> a = generate();
  m.parameters.initialise(8);
  sync.sync(full);
  const std::vector<Sample> b = generate();
  EXPECT_NE(a[0].logprobs, b[0].logprobs);
  m.parameters.initialise(7);
  const WeightSync::Report report = sync.sync(m.masks);
  expect_same(a, generate(), "A again");
  EXPECT_EQ(report.policy_version, 3);
  EXPECT_EQ(sync.policy_version(), 3);
  EXPECT_GT(report.seconds, 0.0);
  EXPECT_EQ(report.bytes_read, 2 * m.parameters.layout().total);
  EXPECT_EQ(report.bytes_written, m.model.packed_bytes());
}

TEST_F(WeightSyncTest, AddressesStayTheSame) {
  const auto addresses = [&] {
    std::vector<const void*> out = {m.parameters.values(), m.model.head().weight.tiles,
                                    m.model.head().norm};
    for (int64_t l = 0; l < m.model.num_layers(); ++l) {
      const kernels::AttentionBlock& attention = m.model.attention(l);
      const kernels::MoeBlock& ffn = m.model.ffn(l);
      for (const kernels::PackedMatrix* matrix : {&attention.qkv.weight, &attention.out.weight}) {
        out.insert(out.end(), {matrix, matrix->tiles, matrix->scales});
      }
      for (int64_t e = 0; e < ffn.experts; ++e) {
        for (const kernels::PackedMatrix* matrix : {&ffn.gate_up[e], &ffn.down[e]}) {
          out.insert(out.end(), {matrix, matrix->tiles, matrix->scales});
        }
      }
      out.insert(out.end(), {attention.norm, ffn.norm, ffn.router});
    }
    return out;
  };
  const std::vector<const void*> before = addresses();
  m.parameters.initialise(8);
  sync.sync(full_masks(m.model.sites()));
  NamedWeights named(m.parameters);
  sync.sync_named(named.tensors, m.masks);
  EXPECT_EQ(before, addresses());
}

TEST_F(WeightSyncTest, NamedTensorsGiveTheRolloutsOfTheSameParameters) {
  Parameters other(small_config());
  other.initialise(8);
  const NamedWeights named(other);
  sync.sync_named(named.tensors, m.masks);
  const std::vector<Sample> by_name = generate();
  m.parameters.initialise(8);
  sync.sync(m.masks);
  expect_same(by_name, generate(), "by name");
}

TEST_F(WeightSyncTest, TensorsThatDoNotFitAreNamedAndNothingChanges) {
  const std::vector<Sample> before = generate();
  Parameters other(small_config());
  other.initialise(8);
  const std::string expert = "model.layers.2.mlp.experts.5.up_proj.weight";
  const auto error_with = [&](const auto& change) {
    NamedWeights named(other);
    change(named);
    return error_of([&] { sync.sync_named(named.tensors, m.masks); });
  };
  EXPECT_MENTIONS(error_with([&](NamedWeights& named) {
                    std::erase_if(named.tensors,
                                  [&](const NamedTensor& t) { return t.name == expert; });
                  }),
                  expert);
  EXPECT_MENTIONS(
      error_with([&](NamedWeights& named) { named.tensors.push_back(named.at(expert)); }), expert);
  EXPECT_MENTIONS(error_with([&](NamedWeights& named) {
                    named.tensors.push_back(named.at(expert));
                    named.tensors.back().name = "model.layers.9.extra.weight";
                  }),
                  "model.layers.9.extra.weight");
  const std::vector<int64_t> transposed = {64, 32};
  EXPECT_MENTIONS(error_with([&](NamedWeights& named) { named.at(expert).shape = transposed; }),
                  expert);
  std::vector<float> with_nan(static_cast<size_t>(32 * 64), 0.5F);
  with_nan[64 * 3 + 9] = std::numeric_limits<float>::quiet_NaN();
  const std::string message = error_with([&](NamedWeights& named) {
    named.at(expert).bf16 = nullptr;
    named.at(expert).f32 = with_nan.data();
  });
  EXPECT_MENTIONS(message, expert);
  EXPECT_MENTIONS(message, "row 3");
  EXPECT_MENTIONS(message, "column 9");

  EXPECT_EQ(sync.policy_version(), 0);
  expect_same(before, generate(), "after errors");
}

TEST_F(WeightSyncTest, ParametersThatAreNotFiniteAreNamed) {
  const ParameterLayout& layout = m.parameters.layout();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto error_with = [&](int64_t parameter, int64_t element, float value) {
    m.parameters.initialise(7);
    set(parameter, element, value);
    return error_of([&] { sync.sync(m.masks); });
  };
  // Row 32 + 1 of gate and up: row 1 of up.
  const std::string expert = error_with(layout.layers[2].gate_up[5], 33 * 64 + 9, nan);
  EXPECT_MENTIONS(expert, "model.layers.2.mlp.experts.5.up_proj.weight");
  EXPECT_MENTIONS(expert, "row 1");
  EXPECT_MENTIONS(expert, "column 9");
  EXPECT_MENTIONS(error_with(layout.layers[1].post_norm, 5, -INFINITY),
                  "model.layers.1.post_attention_layernorm.weight, row 0, column 5");
  EXPECT_MENTIONS(error_with(layout.embedding, 64 * 28 + 63, nan),
                  "model.embed_tokens.weight, row 28, column 63");
  EXPECT_MENTIONS(error_with(layout.head, 3, nan), "lm_head.weight");
  EXPECT_EQ(sync.policy_version(), 0);
  m.parameters.initialise(7);
  EXPECT_EQ(sync.sync(m.masks).policy_version, 1);
}

TEST_F(WeightSyncTest, MasksOfAnotherModelAreAnError) {
  EXPECT_MENTIONS(error_of([&] { sync.sync({}); }), "compensation masks");
  RacMasks short_one = m.masks;
  short_one.at(2, Site::kFfnIn).resize(16);
  EXPECT_MENTIONS(error_of([&] { sync.sync(short_one); }), "layer 2");
}

}  // namespace
}  // namespace quads
