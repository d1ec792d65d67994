// The engine on a GPU: what a sample is depends on weights, masks, prompt and key alone; scoring
// gives generation's bits; and both are what the CPU's engine computes, but for the order of sums.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/cuda_backend.h"
#include "io/memory_peak.h"
#include "io/safetensors_writer.h"
#include "io/test_files.h"
#include "kernels/cuda/device_array.h"
#include "rollout/testing.h"

namespace quads::testing {
namespace {

using cuda::check_cuda;
using cuda::CudaBackend;
using cuda::FileParameters;
using cuda::HostParameters;
using cuda::ParameterSource;

// As the CPU's tests have it, with sizes that a GPU takes; the middle layer is dense.
ModelConfig device_config() {
  ModelConfig c = small_config();
  c.hidden_size = 128;
  c.head_dim = 32;
  c.moe_intermediate_size = 64;
  c.intermediate_size = 96;
  return c;
}

void write_shards(const Parameters& parameters, const std::filesystem::path& directory,
                  size_t shard) {
  save_model_config(parameters.config(), directory);
  std::vector<TensorView> views;
  for (int64_t i = 0; i < std::ssize(parameters.layout().parameters); ++i) {
    parameters.add_views(i, views);
  }
  write_model_tensors(directory, views, shard);
}

// The same with a shared expert of another width, and biases.
ModelConfig shared_config() {
  ModelConfig c = device_config();
  c.architecture = Architecture::kQwen2Moe;
  c.qkv_bias = true;
  c.norm_topk_prob = false;
  c.shared_expert_intermediate_size = 96;
  return c;
}

struct Case {
  std::string name;
  std::string precision;
  Rac rac = {};
  QuantizeScope scope = {};
  ModelConfig config = device_config();
};

constexpr QuantizeScope kAllLinears{.what = QuantizeScope::What::kLinears};

struct Bounds {
  int64_t max_running = 64;
  int64_t prefill_chunk = 64;
  int64_t pages = 0;
  bool overlap = false;
  bool graphs = true;
};

struct Outcome {
  std::vector<Sample> samples;
  std::vector<std::vector<int64_t>> sums;
  int64_t preemptions = 0;
};

class CudaEngine : public ::testing::TestWithParam<Case> {
 protected:
  CudaEngine()
      : host(parse_precision(GetParam().precision, GetParam().rac), GetParam().scope, 1,
             kernels::best_isa(), GetParam().config) {}

  std::unique_ptr<CudaBackend> make_backend(const Bounds& bounds = {}) {
    return make_backend(source, bounds);
  }
  std::unique_ptr<CudaBackend> make_backend(const ParameterSource& values, const Bounds& bounds) {
    auto backend = std::make_unique<CudaBackend>(
        values, CudaBackend::Options{.precision = host.model.precision(),
                                     .scope = host.model.scope(),
                                     .max_running = bounds.max_running,
                                     .max_context = 64,
                                     .prefill_chunk = bounds.prefill_chunk,
                                     .overlap = bounds.overlap,
                                     .graphs = bounds.graphs});
    backend->refresh(host.masks);
    return backend;
  }
  static Engine::Options engine_options(const Bounds& bounds) {
    return {.max_running = bounds.max_running,
            .max_context = 64,
            .kv_pages = bounds.pages,
            .prefill_chunk = bounds.prefill_chunk};
  }
  static Outcome generate(RolloutBackend& backend, const Bounds& bounds,
                          const std::vector<Request>& requests,
                          GenerateOptions options = make_options()) {
    Engine engine(backend, engine_options(bounds));
    ResidualSums sums(backend.sites(), backend.workers());
    options.residual_sums = &sums;
    options.record_routing = true;
    std::vector<Sample> samples = engine.generate(requests, options);
    EXPECT_EQ(engine.cache().free_pages(), engine.cache().pages()) << "pages were lost";
    return {std::move(samples), sums.totals(), engine.preemptions()};
  }
  Outcome outcome(const Bounds& bounds, const std::vector<Request>& requests = make_requests(3)) {
    const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
    return generate(*backend, bounds, requests);
  }
  static void expect_same_outcome(const Outcome& a, const Outcome& b, const std::string& what) {
    expect_same(a.samples, b.samples, what);
    EXPECT_EQ(a.sums, b.sums) << what;
  }

  TestModel host;
  HostParameters source{host.parameters};
};

TEST_P(CudaEngine, ASampleDoesNotDependOnItsCompany) {
  QUADS_NEEDS_DEVICE();
  const Outcome expected = outcome({});
  for (const int64_t max_running : {1, 3, 17}) {
    expect_same_outcome(expected, outcome({.max_running = max_running}),
                        "max_running " + std::to_string(max_running));
  }
  for (const int64_t chunk : {1, 7, 1000}) {
    expect_same_outcome(expected, outcome({.prefill_chunk = chunk}),
                        "prefill_chunk " + std::to_string(chunk));
  }
  std::vector<Request> requests = make_requests(3);
  std::ranges::reverse(requests);
  Outcome reversed = outcome({}, requests);
  std::ranges::sort(reversed.samples, {},
                    [](const Sample& s) { return std::pair(s.prompt_index, s.sample_index); });
  expect_same_outcome(expected, reversed, "requests in reverse");
}

TEST_P(CudaEngine, GraphsAndOverlapChangeNothing) {
  QUADS_NEEDS_DEVICE();
  const Outcome expected = outcome({.overlap = false, .graphs = false});
  expect_same_outcome(expected, outcome({.overlap = true, .graphs = false}), "overlap");
  expect_same_outcome(expected, outcome({.overlap = false, .graphs = true}), "graphs");
  expect_same_outcome(expected, outcome({.overlap = true, .graphs = true}), "both");
}

TEST_P(CudaEngine, AllocatesNothingOnceItRuns) {
  QUADS_NEEDS_DEVICE();
  const Bounds bounds;
  const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
  generate(*backend, bounds, make_requests(3));
  const int64_t before = cuda::held_bytes;
  generate(*backend, bounds, make_requests(3));
  backend->refresh(host.masks);
  generate(*backend, bounds, make_requests(2));
  EXPECT_EQ(cuda::held_bytes, before);
}

TEST_P(CudaEngine, PreemptedSequencesAreComputedAgainWithTheSameResult) {
  QUADS_NEEDS_DEVICE();
  const Outcome expected = outcome({});
  const Outcome tight = outcome({.pages = 12});
  EXPECT_GT(tight.preemptions, 0);
  expect_same_outcome(expected, tight, "12 pages");
}

TEST_P(CudaEngine, ScoringGivesGenerationsBits) {
  QUADS_NEEDS_DEVICE();
  const Bounds bounds;
  const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
  const Outcome generated = generate(*backend, bounds, make_requests(3));
  for (const int64_t chunk : {1, 50, 4000}) {
    const Bounds scoring{.prefill_chunk = chunk};
    const std::unique_ptr<CudaBackend> other = make_backend(scoring);
    Engine engine(*other, engine_options(scoring));
    const std::vector<std::vector<float>> scores = engine.score(generated.samples, 1.0F);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(bits(scores[i]), bits(generated.samples[i].logprobs))
          << "sample " << i << ", chunks of " << chunk;
    }
  }
}

TEST_P(CudaEngine, AnotherWeightAndBackIsTheFirstAgain) {
  QUADS_NEEDS_DEVICE();
  const Bounds bounds;
  const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
  const Outcome first = generate(*backend, bounds, make_requests(2));
  host.parameters.initialise(8);
  backend->refresh(host.masks);
  const Outcome second = generate(*backend, bounds, make_requests(2));
  EXPECT_NE(first.samples[0].logprobs, second.samples[0].logprobs);
  host.parameters.initialise(7);
  backend->refresh(host.masks);
  expect_same_outcome(first, generate(*backend, bounds, make_requests(2)), "A, B, A");
}

TEST_P(CudaEngine, WeightsFromFilesGiveTheHostsSamples) {
  QUADS_NEEDS_DEVICE();
  const Bounds bounds;
  const TempDir directory;
  write_shards(host.parameters, directory.path(), 50'000);
  const std::unique_ptr<ParameterFiles> files = open_parameters(directory.path());
  const FileParameters from_files(*files);
  const std::unique_ptr<CudaBackend> backend = make_backend(from_files, bounds);
  const Outcome expected = outcome(bounds);
  expect_same_outcome(expected, generate(*backend, bounds, make_requests(3)), "from files");
  backend->refresh(host.masks);
  expect_same_outcome(expected, generate(*backend, bounds, make_requests(3)), "read again");
}

TEST_P(CudaEngine, GreedyAndTruncatedSamplingStayInstep) {
  QUADS_NEEDS_DEVICE();
  const Bounds bounds;
  const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
  for (const kernels::SamplingParams& sampling : {kernels::SamplingParams{.temperature = 0.0F},
                                                  {.temperature = 0.7F, .top_k = 5},
                                                  {.temperature = 1.3F, .top_p = 0.8F}}) {
    GenerateOptions options = make_options();
    options.sampling = sampling;
    const Outcome expected = generate(*backend, bounds, make_requests(2), options);
    const Bounds alone{.max_running = 1};
    const std::unique_ptr<CudaBackend> other = make_backend(alone);
    expect_same_outcome(expected, generate(*other, alone, make_requests(2), options), "alone");
  }
}

// A quantiser near a rounding boundary may fall on the other side, so single tokens may differ
// widely; most do not.
TEST_P(CudaEngine, LogprobsAreTheCpusButForTheOrderOfSums) {
  QUADS_NEEDS_DEVICE();
  const Bounds bounds;
  const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
  const Outcome generated = generate(*backend, bounds, make_requests(3));
  Engine cpu(host.backend, {.max_context = 64});
  const std::vector<std::vector<float>> scores = cpu.score(generated.samples, 1.0F);
  std::vector<float> differences;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t t = 0; t < scores[i].size(); ++t) {
      differences.push_back(std::fabs(scores[i][t] - generated.samples[i].logprobs[t]));
    }
  }
  std::ranges::sort(differences);
  ASSERT_GT(differences.size(), 100U);
  // BF16 activations round alike in nearly all places; NVFP4 ones have coarser steps.
  const bool coarse = host.model.precision().activations != Format::kBf16;
  EXPECT_LT(differences[differences.size() / 2], coarse ? 0.05F : 0.01F);
  EXPECT_LT(differences[differences.size() * 9 / 10], coarse ? 0.4F : 0.05F);
}

TEST_P(CudaEngine, ResidualSumsAreNearTheCpus) {
  QUADS_NEEDS_DEVICE();
  if (host.model.precision().activations != Format::kNvfp4) GTEST_SKIP() << "no residuals";
  const Bounds bounds;
  const std::unique_ptr<CudaBackend> backend = make_backend(bounds);
  GenerateOptions options = make_options();
  options.max_new_tokens = 2;  // few tokens in which the two may part
  const Outcome device = generate(*backend, bounds, make_requests(8), options);
  const Outcome cpu = generate(host.backend, bounds, make_requests(8), options);
  for (size_t site = 0; site < cpu.sums.size(); ++site) {
    double of_device = 0.0, of_cpu = 0.0;
    for (const int64_t sum : device.sums[site]) of_device += static_cast<double>(sum);
    for (const int64_t sum : cpu.sums[site]) of_cpu += static_cast<double>(sum);
    if (cpu.sums[site].empty()) continue;
    ASSERT_GT(of_cpu, 0.0);
    EXPECT_NEAR(of_device / of_cpu, 1.0, 0.1) << "site " << site;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Precisions, CudaEngine,
    ::testing::Values(Case{"bf16", "bf16", {}}, Case{"fp8", "fp8", {}}, Case{"w4a16", "w4a16", {}},
                      Case{"nvfp4", "nvfp4", {}}, Case{"rac50", "nvfp4-rac", {.ratio = 0.5}},
                      Case{"floor50", "nvfp4-rac", {.ratio = 0.5, .scale_floor = true}},
                      Case{"rac100", "nvfp4-rac", {.ratio = 1.0}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Linears, CudaEngine,
    ::testing::Values(
        Case{"fp8", "fp8", {}, kAllLinears}, Case{"w4a16", "w4a16", {}, kAllLinears},
        Case{"w16a4", "w16a4", {}, kAllLinears}, Case{"nvfp4", "nvfp4", {}, kAllLinears},
        Case{"rac50", "nvfp4-rac", {.ratio = 0.5}, kAllLinears},
        Case{"rac100", "nvfp4-rac", {.ratio = 1.0}, kAllLinears},
        Case{"shared_rac50", "nvfp4-rac", {.ratio = 0.5}, kAllLinears, shared_config()},
        Case{"shared_floor50",
             "nvfp4-rac",
             {.ratio = 0.5, .scale_floor = true},
             kAllLinears,
             shared_config()},
        Case{"dense_layer_only",
             "nvfp4-rac",
             {.ratio = 0.5},
             {.what = QuantizeScope::What::kLinears,
              .high_precision_first_layers = 1,
              .high_precision_last_layers = 1}}),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Experts, CudaEngine,
    ::testing::Values(
        Case{"shared_bf16", "bf16", {}, {}, shared_config()},
        Case{"shared_fp8", "fp8", {}, {}, shared_config()},
        Case{"shared_rac50", "nvfp4-rac", {.ratio = 0.5}, {}, shared_config()},
        Case{"not_the_first", "nvfp4-rac", {.ratio = 0.5}, {.high_precision_first_layers = 1}},
        Case{"not_the_last", "nvfp4", {}, {.high_precision_last_layers = 1}}),
    [](const auto& info) { return info.param.name; });

TEST(CudaBackend, AWeightThatIsNotFiniteIsNamed) {
  QUADS_NEEDS_DEVICE();
  TestModel host({Format::kNvfp4, Format::kNvfp4, {}}, {}, 1, kernels::best_isa(), device_config());
  const HostParameters source(host.parameters);
  CudaBackend backend(source, {.precision = host.model.precision(), .max_context = 64});
  const ParameterLayout& layout = host.parameters.layout();
  const Parameter& down = layout.at(layout.layers[2].down[5]);
  host.parameters.values()[down.offset + 3 * down.cols + 7] = Bf16{0x7FC0};
  EXPECT_MENTIONS(error_of([&] { backend.refresh({}); }),
                  "model.layers.2.mlp.experts.5.down_proj.weight, row 3, column 7 is not finite");
}

TEST(CudaBackend, AWeightInAFileThatIsNotFiniteIsNamed) {
  QUADS_NEEDS_DEVICE();
  Parameters parameters(device_config());
  const ParameterLayout& layout = parameters.layout();
  const Parameter& down = layout.at(layout.layers[2].down[5]);
  parameters.values()[down.offset + 3 * down.cols + 7] = Bf16{0x7FC0};
  const TempDir directory;
  write_shards(parameters, directory.path(), 50'000);
  const std::unique_ptr<ParameterFiles> files = open_parameters(directory.path());
  const FileParameters source(*files);
  CudaBackend backend(source, {.max_context = 64});
  EXPECT_EQ(
      error_of([&] { backend.refresh({}); }),
      directory.path().string() +
          ": tensor model.layers.2.mlp.experts.5.down_proj.weight holds nan at row 3, column 7");
}

// In pieces that the staging memory takes in one, in two, and cut in the middle.
TEST(FileParameters, AnyRangeArrives) {
  QUADS_NEEDS_DEVICE();
  ModelConfig config = device_config();
  config.hidden_size = config.moe_intermediate_size = 1024;
  Parameters parameters(config);
  for (int64_t i = 0; i < parameters.layout().total; ++i) {
    parameters.values()[i] = to_bf16(static_cast<float>(i * 2654435761 % 65521));
  }
  for (const Parameter& p : parameters.layout().parameters) {
    std::fill(parameters.values() + p.offset + p.size(),
              parameters.values() + p.offset + p.padded_size(), Bf16{});
  }
  const TempDir directory;
  write_shards(parameters, directory.path(), size_t{32} << 20);
  const ShardSizes shards(directory.path());
  ASSERT_GE(shards.count, 3);
  const std::unique_ptr<ParameterFiles> files = open_parameters(directory.path());
  const cuda::Stream stream;
  const FileParameters source(*files);
  const int64_t total = files->layout().total;
  ASSERT_GT(total, int64_t{40} << 20);
  const cuda::DeviceArray<Bf16> device(total);
  for (const int64_t count : {total, int64_t{8} << 20, int64_t{10'000'019}}) {
    device.clear(stream.get());
    for (int64_t offset = 0; offset < total; offset += count) {
      source.copy(offset, std::min(count, total - offset), device.data() + offset, stream.get());
    }
    Parameters arrived(config);
    check_cuda(cudaMemcpyAsync(arrived.values(), device.data(), device.bytes(),
                               cudaMemcpyDeviceToHost, stream.get()),
               "copying from the device");
    stream.wait("copying from the device");
    EXPECT_TRUE(std::equal(arrived.values(), arrived.values() + total, parameters.values()))
        << count << " at a time";
  }
}

TEST(FileParameters, TheHostHoldsNoMoreThanAShardOfThem) {
  QUADS_NEEDS_DEVICE();
  ModelConfig config = device_config();
  config.hidden_size = config.moe_intermediate_size = 1024;
  config.num_experts = 32;
  const TempDir directory;
  write_shards(Parameters(config), directory.path(), size_t{128} << 20);
  const ShardSizes shards(directory.path());
  ASSERT_GE(shards.count, 3);
  cudaFree(nullptr);                            // what the driver takes for itself
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  const int64_t before = status_bytes("VmRSS");
  if (status_bytes("VmHWM") > before + (int64_t{8} << 20)) {
    GTEST_SKIP() << "NOT TESTED: the peak of the memory cannot be reset here";
  }
  const std::unique_ptr<ParameterFiles> files = open_parameters(directory.path());
  const FileParameters source(*files);
  CudaBackend backend(source, {.max_context = 64});
  backend.refresh({});
  EXPECT_LE(status_bytes("VmHWM") - before, shards.largest * 12 / 10)
      << shards.count << " shards of up to " << shards.largest;
}

TEST(CudaBackend, AProjectionOrASharedExpertThatIsNotFiniteIsNamed) {
  QUADS_NEEDS_DEVICE();
  TestModel host({Format::kNvfp4, Format::kNvfp4, {}}, kAllLinears, 1, kernels::best_isa(),
                 shared_config());
  const HostParameters source(host.parameters);
  CudaBackend backend(
      source,
      {.precision = host.model.precision(), .scope = host.model.scope(), .max_context = 64});
  const ParameterLayout& layout = host.parameters.layout();
  const auto expect_named = [&](int64_t parameter, const char* name) {
    const Parameter& p = layout.at(parameter);
    Bf16& value = host.parameters.values()[p.offset + 3 * p.cols + 7];
    const Bf16 before = value;
    value = Bf16{0x7F80};
    EXPECT_MENTIONS(error_of([&] { backend.refresh({}); }),
                    std::string(name) + ", row 3, column 7 is not finite");
    value = before;
  };
  expect_named(layout.layers[1].qkv, "model.layers.1.self_attn.q_proj.weight");
  expect_named(layout.layers[1].o, "model.layers.1.self_attn.o_proj.weight");
  expect_named(layout.layers[2].down.back(), "model.layers.2.mlp.shared_expert.down_proj.weight");
  backend.refresh({});
}

TEST(CudaBackend, WhatAGpuDoesNotComputeIsNamed) {
  QUADS_NEEDS_DEVICE();
  ModelConfig config = device_config();
  config.hidden_size = 96;
  config.head_dim = 32;
  const Parameters parameters(config);
  const HostParameters source(parameters);
  EXPECT_MENTIONS(error_of([&] { CudaBackend(source, {.max_context = 64}); }), "hidden_size 96");

  config = device_config();
  config.num_key_value_heads = 1;
  config.head_dim = 48;  // q, k and v together have 288 rows
  const Parameters odd(config);
  const HostParameters odd_source(odd);
  const CudaBackend plain(odd_source, {.max_context = 64});
  EXPECT_MENTIONS(error_of([&] {
                    CudaBackend(odd_source, {.precision = {Format::kNvfp4, Format::kNvfp4, {}},
                                             .scope = kAllLinears,
                                             .max_context = 64});
                  }),
                  "model.layers.0.self_attn.qkv_proj is [288, 128]");
}

}  // namespace
}  // namespace quads::testing
