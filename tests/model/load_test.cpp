// Reading a model's files: the names and groupings that transformers writes, files in shards, and
// the memory it takes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "model/load_tensor.h"
#include "tests/io/memory_peak.h"
#include "tests/model/model_files.h"

namespace quads::testing {
namespace {

class LoadTest : public ::testing::Test {
 protected:
  std::string refusal() {
    return error_of([&] { load_parameters(files_.path()); });
  }
  std::vector<TensorView> views(const Parameters& parameters) const {
    return ModelFiles::views(parameters);
  }
  bool is_loaded(const Parameters& parameters) const {
    const Parameters loaded = load_parameters(files_.path());
    return loaded.config() == parameters.config() && same_values(loaded, parameters);
  }

  ModelFiles files_;
};

TEST_F(LoadTest, EveryFamilySavedAndLoadedIsTheSameModel) {
  for (const auto config :
       {moe_config, dense_config, qwen2_moe_config, olmoe_config, mixtral_config}) {
    const Parameters parameters = random_parameters(config());
    save_parameters(parameters, files_.path());
    EXPECT_TRUE(is_loaded(parameters)) << architecture_name(config().architecture);
  }
}

TEST_F(LoadTest, FusedExpertsAreReadAsTheExpertsOneByOne) {
  for (const auto config : {moe_config, qwen2_moe_config, olmoe_config, mixtral_config}) {
    const Parameters parameters = random_parameters(config());
    files_.write(parameters, files_.fused_views(parameters));
    EXPECT_TRUE(is_loaded(parameters)) << architecture_name(config().architecture);
  }
}

TEST_F(LoadTest, AnExpertThatIsThereTwiceIsAnErrorThatNamesBothTensors) {
  const Parameters parameters = random_parameters(moe_config());
  std::vector<TensorView> tensors = files_.fused_views(parameters);
  for (const TensorView& view : views(parameters)) {
    if (view.name == "model.layers.2.mlp.experts.3.up_proj.weight") tensors.push_back(view);
  }
  files_.write(parameters, tensors);
  const std::string error = refusal();
  EXPECT_NE(error.find("model.layers.2.mlp.experts.3.up_proj.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("model.layers.2.mlp.experts.gate_up_proj"), std::string::npos) << error;
}

TEST_F(LoadTest, FusedExpertsOfTheWrongShapeAreRefused) {
  const Parameters parameters = random_parameters(moe_config());
  std::vector<TensorView> tensors = files_.fused_views(parameters);
  tensors.back().shape = {6 * 64, 64};
  files_.write(parameters, tensors);
  const std::string error = refusal();
  EXPECT_NE(error.find("experts.down_proj has shape [384, 64], the configuration says [6, 64, 64]"),
            std::string::npos)
      << error;
}

TEST_F(LoadTest, AMissingFusedTensorIsMissedByItsExperts) {
  const Parameters parameters = random_parameters(moe_config());
  std::vector<TensorView> tensors = files_.fused_views(parameters);
  tensors.pop_back();
  files_.write(parameters, tensors);
  EXPECT_NE(refusal().find("model.layers.2.mlp.experts.0.down_proj.weight is missing"),
            std::string::npos)
      << refusal();
}

TEST_F(LoadTest, ANonFiniteElementOfAFusedTensorIsNamedWithRowAndColumn) {
  const Parameters parameters = random_parameters(moe_config());
  const std::vector<TensorView> tensors = files_.fused_views(parameters);
  files_.fused.back()[static_cast<size_t>((3 * 64 + 5) * 64 + 7)] = to_bf16(INFINITY);
  files_.write(parameters, tensors);
  EXPECT_NE(refusal().find("experts.down_proj holds inf at row 197, column 7"), std::string::npos)
      << refusal();
}

TEST_F(LoadTest, ATiedHeadMustBeTheEmbeddingWhicheverComesFirst) {
  const Parameters parameters = random_parameters(moe_config());
  std::vector<Bf16> head(parameters.values(), parameters.values() + 43 * 64);
  for (const bool first : {true, false}) {
    for (const bool equal : {true, false}) {
      std::vector<TensorView> tensors = views(parameters);
      TensorView view = tensors[0];
      ASSERT_EQ(view.name, "model.embed_tokens.weight");
      view.name = "lm_head.weight";
      view.data = reinterpret_cast<const std::byte*>(head.data());
      head[99].bits = static_cast<uint16_t>(parameters.values()[99].bits ^ (equal ? 0 : 1));
      tensors.insert(first ? tensors.begin() : tensors.end(), view);
      files_.write(parameters, tensors, 1);  // a shard a tensor
      if (equal) {
        EXPECT_TRUE(is_loaded(parameters));
      } else {
        EXPECT_NE(refusal().find("lm_head.weight differs from model.embed_tokens.weight"),
                  std::string::npos)
            << refusal();
      }
    }
  }
}

TEST_F(LoadTest, BesidesTheParametersNoMoreThanAShardIsInMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer has memory of its own";
#endif
  const ModelConfig config = large_config();
  {
    const Parameters parameters(config);
    files_.write(parameters, views(parameters), size_t{8} << 20);
  }
  const ShardSizes shards(files_.path());
  ASSERT_GE(shards.count, 5);
  const auto own = ParameterLayout(config).total * static_cast<int64_t>(sizeof(Bf16));
  const int64_t peak = memory_peak([&] { load_parameters(files_.path()); });
  EXPECT_GE(peak, own);
  EXPECT_LE(peak - own, shards.largest * 12 / 10)
      << shards.count << " shards of up to " << shards.largest;
}

TEST(ReadTensor, EveryHalfIsWhatTheCompilerMakesOfIt) {
  std::vector<uint16_t> halves;
  std::vector<Bf16> expected;
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    if (!std::isfinite(static_cast<float>(half))) continue;
    halves.push_back(static_cast<uint16_t>(bits));
    expected.push_back(to_bf16(static_cast<float>(half)));
  }
  TensorView view{.name = "w", .dtype = DType::kF16, .shape = {std::ssize(halves)}};
  view.data = reinterpret_cast<const std::byte*>(halves.data());
  view.nbytes = halves.size() * sizeof(uint16_t);
  std::vector<Bf16> values(halves.size());
  read_tensor(view, 0, std::ssize(halves), values.data());
  EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(Bf16)), 0);
  for (const uint16_t bad : {0x7C00, 0xFC00, 0x7C01, 0x7E00, 0xFFFF}) {
    halves[70] = bad;
    const std::string error =
        error_of([&] { read_tensor(view, 0, std::ssize(halves), values.data()); });
    EXPECT_TRUE(error.starts_with("tensor w holds ")) << error;
  }
}

}  // namespace
}  // namespace quads::testing
