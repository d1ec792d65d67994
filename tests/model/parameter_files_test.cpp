// Parameters in files, read a range at a time: what a device's memory is filled from.
#include "model/parameter_files.h"

#include <gtest/gtest.h>

#include "tests/io/memory_peak.h"
#include "tests/model/model_files.h"

namespace quads::testing {
namespace {

constexpr Bf16 kPoison{0x7FC1};

ModelConfig untied(ModelConfig config) {
  config.tie_word_embeddings = false;
  return config;
}

const std::vector<ModelConfig>& families() {
  static const std::vector<ModelConfig> all = {moe_config(),   untied(moe_config()),
                                               dense_config(), qwen2_moe_config(),
                                               olmoe_config(), mixtral_config()};
  return all;
}

class ParameterFilesTest : public ::testing::Test {
 protected:
  /// Elements [offset, offset + count), with a guard on both sides.
  static std::vector<Bf16> read(const ParameterFiles& files, int64_t offset, int64_t count) {
    std::vector<Bf16> values(static_cast<size_t>(count) + 2, kPoison);
    files.read(offset, count, values.data() + 1);
    EXPECT_EQ(values.front(), kPoison);
    EXPECT_EQ(values.back(), kPoison);
    return {values.begin() + 1, values.end() - 1};
  }
  static void expect_reads(const ParameterFiles& files, const Parameters& parameters) {
    EXPECT_EQ(files.config(), parameters.config());
    const int64_t total = parameters.layout().total;
    ASSERT_EQ(files.layout().total, total);
    const auto expect_range = [&](int64_t offset, int64_t count) {
      const std::vector<Bf16> values = read(files, offset, count);
      ASSERT_TRUE(std::equal(values.begin(), values.end(), parameters.values() + offset))
          << count << " elements from " << offset;
    };
    expect_range(0, total);
    for (const int64_t count : {1013, 4096, 77777}) {
      for (int64_t offset = 0; offset < total; offset += count) {
        expect_range(offset, std::min(count, total - offset));
      }
    }
    for (const Parameter& p : parameters.layout().parameters) {  // around every end and padding
      const int64_t end = p.offset + p.size(), next = p.offset + p.padded_size();
      for (const int64_t offset : {p.offset, end - 1, end, next - 1}) {
        if (offset < total) expect_range(offset, 1);
      }
      expect_range(end, next - end);
      expect_range(end - 1, std::min(next + 1, total) - (end - 1));
      expect_range(end, 0);
    }
  }

  ModelFiles files_;
};

TEST_F(ParameterFilesTest, AnyRangeOfAnyFamilyIsTheFlatArrays) {
  for (const ModelConfig& config : families()) {
    const Parameters parameters = random_parameters(config);
    for (const size_t shard : {size_t{1} << 40, size_t{20'000}}) {
      files_.write(parameters, ModelFiles::views(parameters), shard);
      SCOPED_TRACE(fmt::format("{}, shards of {}", architecture_name(config.architecture), shard));
      expect_reads(*open_parameters(files_.path()), parameters);
    }
  }
}

TEST_F(ParameterFilesTest, FusedExpertsAreReadInPieces) {
  for (const ModelConfig& config : families()) {
    if (config.num_experts == 0) continue;
    const Parameters parameters = random_parameters(config);
    files_.write(parameters, files_.fused_views(parameters), 100'000);
    SCOPED_TRACE(architecture_name(config.architecture));
    expect_reads(*open_parameters(files_.path()), parameters);
  }
}

TEST_F(ParameterFilesTest, WiderTypesAreRoundedToBf16) {
  Parameters parameters = random_parameters(moe_config());
  std::vector<TensorView> views = ModelFiles::views(parameters);
  std::vector<std::vector<std::byte>> wide;
  RandomSequence draws(4, RandomStream::kTask, 0);
  for (size_t i = 0; i < views.size(); ++i) {
    TensorView& view = views[i];
    const DType type = std::array{DType::kBF16, DType::kF16, DType::kF32}[i % 3];
    if (type == DType::kBF16) continue;
    const int64_t count = view.num_elements();
    auto* values = const_cast<Bf16*>(reinterpret_cast<const Bf16*>(view.data));
    std::vector<std::byte>& bytes =
        wide.emplace_back(static_cast<size_t>(count) * dtype_size(type));
    for (int64_t j = 0; j < count; ++j) {
      const float exact = draws.uniform() - 0.5F;
      const auto half = static_cast<_Float16>(exact);
      if (type == DType::kF16) {
        std::memcpy(bytes.data() + 2 * j, &half, 2);
        values[j] = to_bf16(static_cast<float>(half));
      } else {
        std::memcpy(bytes.data() + 4 * j, &exact, 4);
        values[j] = to_bf16(exact);
      }
    }
    view.dtype = type;
    view.data = bytes.data();
    view.nbytes = bytes.size();
  }
  files_.write(parameters, views, 60'000);
  expect_reads(*open_parameters(files_.path()), parameters);
}

TEST_F(ParameterFilesTest, WhatDoesNotFitIsNamedWhenTheFilesAreOpened) {
  const Parameters parameters = random_parameters(untied(moe_config()));
  const auto refusal = [&](const std::function<void(std::vector<TensorView>&)>& change) {
    std::vector<TensorView> views = ModelFiles::views(parameters);
    change(views);
    files_.write(parameters, views, 60'000);
    const std::string opened = error_of([&] { open_parameters(files_.path()); });
    EXPECT_TRUE(opened.starts_with(files_.path().string() + ": ")) << opened;
    EXPECT_EQ(opened, error_of([&] { load_parameters(files_.path()); }));
    return opened;
  };
  expect_contains(refusal([](auto& views) { views.erase(views.begin() + 5); }), " is missing");
  expect_contains(refusal([](auto& views) {
                    views.push_back(views[3]);
                    views.back().name = "model.layers.9.stray";
                  }),
                  "tensor model.layers.9.stray is not part of this model");
  expect_contains(refusal([](auto& views) { std::swap(views[0].shape[0], views[0].shape[1]); }),
                  "tensor model.embed_tokens.weight has shape [64, 43], the configuration says");
  expect_contains(refusal([](auto& views) { views[0].dtype = DType::kI16; }),
                  "tensor model.embed_tokens.weight is I16 [43, 64]; weights are read as BF16");
}

TEST_F(ParameterFilesTest, AValueThatIsNotFiniteIsNamedByTheRangesThatHoldIt) {
  Parameters parameters = random_parameters(moe_config());
  const ParameterLayout& layout = parameters.layout();
  const Parameter& gate_up = layout.at(layout.layers[2].gate_up[5]);
  const int64_t bad = gate_up.offset + (64 + 3) * gate_up.cols + 7;  // row 3 of up_proj
  parameters.values()[bad] = Bf16{0xFF80};
  for (const bool fused : {false, true}) {
    files_.write(parameters,
                 fused ? files_.fused_views(parameters) : ModelFiles::views(parameters));
    const auto files = open_parameters(files_.path());
    const std::string expected =
        fmt::format("{}: tensor model.layers.2.mlp.experts.{} holds -inf at row {}, column 7",
                    files_.path().string(), fused ? "gate_up_proj" : "5.up_proj.weight",
                    fused ? 5 * 128 + 64 + 3 : 3);
    std::vector<Bf16> values(static_cast<size_t>(layout.total));
    EXPECT_EQ(error_of([&] { files->read(0, layout.total, values.data()); }), expected);
    EXPECT_EQ(error_of([&] { files->read(bad, 1, values.data()); }), expected);
    EXPECT_EQ(error_of([&] { load_parameters(files_.path()); }), expected);
    files->read(0, bad, values.data());
    files->read(bad + 1, layout.total - bad - 1, values.data());
  }
}

TEST_F(ParameterFilesTest, SeveralThreadsReadAtOnce) {
  const Parameters parameters = random_parameters(moe_config());
  files_.write(parameters, ModelFiles::views(parameters), 60'000);
  const auto files = open_parameters(files_.path());
  Parameters target(parameters.config());
  constexpr int64_t kPiece = 5003;
  ThreadPool threads(4);
  threads.run(parameters.layout().total / kPiece + 1, [&](int64_t i, int) {
    const int64_t offset = i * kPiece;
    files->read(offset, std::min(kPiece, parameters.layout().total - offset),
                target.values() + offset);
  });
  EXPECT_TRUE(same_values(target, parameters));
}

TEST_F(ParameterFilesTest, ReadingPieceByPieceTakesLessMemoryThanAShard) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer has memory of its own";
#endif
  {
    const Parameters parameters(large_config());
    files_.write(parameters, ModelFiles::views(parameters), size_t{8} << 20);
  }
  const ShardSizes shards(files_.path());
  ASSERT_GE(shards.count, 5);
  const int64_t peak = memory_peak([&] {
    const auto files = open_parameters(files_.path());
    std::vector<Bf16> staging(size_t{1} << 20);
    const auto most = std::ssize(staging);
    for (int64_t offset = 0; offset < files->layout().total; offset += most) {
      files->read(offset, std::min(most, files->layout().total - offset), staging.data());
    }
  });
  EXPECT_GT(peak, 0);
  EXPECT_LE(peak, shards.largest * 12 / 10)
      << shards.count << " shards of up to " << shards.largest;
}

}  // namespace
}  // namespace quads::testing
