#include "checkpoints/input_amax.h"

#include <numeric>

#include "tests/checkpoints/checkpoint_files.h"

namespace quads::testing {
namespace {

using Prompts = std::vector<std::vector<int32_t>>;

InputAmax measure(const Parameters& parameters, const Prompts& prompts, int threads = 1) {
  kernels::CpuRuntime runtime(kernels::best_isa(), threads);
  return measure_input_amax(runtime, parameters, prompts, [](int64_t) {});
}

TEST(InputAmax, TheFirstLayersInputIsTheNormalisedEmbeddingsLargestValue) {
  const Parameters parameters = random_parameters(moe_config());
  const ParameterLayout& layout = parameters.layout();
  const int64_t hidden = parameters.config().hidden_size;
  const Prompts prompts = {{3, 17, 42}};
  const Bf16* norm = parameters.of(layout.layers[0].input_norm);
  double largest = 0;
  for (const int32_t token : prompts[0]) {
    const Bf16* x = parameters.of(layout.embedding) + token * hidden;
    double squares = 0;
    for (int64_t i = 0; i < hidden; ++i) squares += double{to_float(x[i])} * to_float(x[i]);
    const double scale = 1 / std::sqrt(squares / static_cast<double>(hidden) + 1e-6);
    for (int64_t i = 0; i < hidden; ++i) {
      largest = std::max(largest, std::abs(to_float(x[i]) * scale * to_float(norm[i])));
    }
  }
  const float measured = measure(parameters, prompts).at(0, Site::kAttentionIn);
  EXPECT_NEAR(measured, largest, largest * 0x1p-7);  // two roundings to BF16
}

TEST(InputAmax, ItIsTheLargestOverPromptsWhateverTheirOrderAndTheThreads) {
  for (const ModelConfig& config : {moe_config(), qwen2_moe_config(), dense_config()}) {
    const Parameters parameters = random_parameters(config);
    const Prompts prompts = {{1, 2, 3, 4, 5, 6, 7}, {9}, {20, 21, 22}};
    std::vector<float> expected(static_cast<size_t>(config.num_hidden_layers * kSites));
    for (const auto& prompt : prompts) {
      const InputAmax one = measure(parameters, {prompt});
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = std::max(expected[i], one.values[i]);
      }
    }
    EXPECT_EQ(measure(parameters, prompts).values, expected);
    EXPECT_EQ(measure(parameters, {prompts[2], prompts[1], prompts[0]}, 3).values, expected);
    for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
      for (int s = 0; s < kSites; ++s) {
        const auto site = static_cast<Site>(s);
        const bool used = site != Site::kSharedMid || config.has_shared_expert(l);
        EXPECT_EQ(expected[static_cast<size_t>(l * kSites + s)] > 0, used) << l << " " << s;
      }
    }
  }
}

TEST(InputAmax, EmptyAndTooLongPromptsAreNamed) {
  const Parameters parameters = random_parameters(moe_config());
  expect_contains(error_of([&] { measure(parameters, {{1}, {}}); }), "prompt 1 is empty");
  const std::vector<int32_t> endless(257, 1);
  expect_contains(error_of([&] { measure(parameters, {endless}); }), "257 tokens");
}

}  // namespace
}  // namespace quads::testing
