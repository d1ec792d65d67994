// ATen's blocks on a GPU against this project's own there: the same function up to rounding,
// forward and backward, in every precision both can run.
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "aten/aten_blocks.h"
#include "aten/cuda_device.h"
#include "cuda/cuda_blocks.h"
#include "cuda/models.h"
#include "cuda/rounded_parameters.h"
#include "kernels/cuda/device_array.h"
#include "model/side.h"
#include "ops/fake_quantize.h"
#include "rollout/testing.h"
#include "trainer/aten_memory.h"
#include "trainer/sequence_batch.h"

namespace quads::testing {
namespace {

using cuda::CudaBlocks;
using cuda::CudaModel;
using cuda::DeviceParameters;
using cuda::HostParameters;
using cuda::RoundedParameters;
using kernels::cuda::DeviceArray;

constexpr int64_t kPositions = 256;
constexpr int64_t kMemory = int64_t{8} << 30;

struct Case {
  std::string name;
  ModelConfig config;
  std::string precision = "bf16";
  QuantizeScope::What what = QuantizeScope::What::kExperts;
};

constexpr auto kLinears = QuantizeScope::What::kLinears;

ModelConfig tied_config() {
  ModelConfig c = moe_config();
  c.tie_word_embeddings = true;
  return c;
}

struct Result {
  std::vector<float> y, dx, grads;
};

struct Whole {
  std::vector<float> logp, entropy, grads;
  std::vector<int32_t> routing;
};

std::vector<float> minus(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return a;
}

float max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0.0F;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(a[i] - b[i]));
  return largest;
}

// Both kinds of blocks on one model on the device.
class Both {
 public:
  explicit Both(const Case& c, int64_t memory = kMemory)
      : parameters_(c.config), values_(initial(parameters_), stream_.get()) {
    const QuantizeScope scope{.what = c.what};
    const Precision precision = parse_precision(c.precision, {});
    model_ = std::make_unique<CudaModel>(stream_.get(), values_, precision, scope, kPositions);
    model_->refresh({});
    shared_ = std::make_unique<CudaBlocks>(stream_.get(), *model_);
    rounded_ = std::make_unique<RoundedParameters>(stream_.get(), values_, precision, scope,
                                                   kPositions, memory);
    rounded_->refresh();
    aten_ = std::make_unique<AtenBlocks>(make_aten_cuda(*rounded_));
  }

  Blocks& shared() { return *shared_; }
  Blocks& aten() { return *aten_; }
  const RoundedParameters& rounded() const { return *rounded_; }
  const ParameterLayout& layout() const { return parameters_.layout(); }
  const ModelConfig& config() const { return parameters_.config(); }
  void wait() const { stream_.wait("a test's blocks"); }

  static RowBatch rows_of(SequenceBatch& batch, const std::vector<std::vector<int32_t>>& tokens) {
    std::vector<TrainSequence> sequences;
    for (const std::vector<int32_t>& t : tokens) {
      sequences.push_back({.tokens = t, .prompt_length = 1, .routing = {}});
    }
    batch.assign(sequences, 1.0F / 1.25F);
    return batch.rows();
  }

  // Forward, and the gradients of a weighted sum of log-probs.
  Whole run(Blocks& blocks, const std::vector<std::vector<int32_t>>& tokens,
            const std::vector<int32_t>* replay) {
    SequenceBatch batch(config());
    RowBatch rows = rows_of(batch, tokens);
    const int64_t layers = blocks.num_layers(), size = rows.rows * blocks.hidden();
    Whole result;
    result.routing.assign(static_cast<size_t>(layers * rows.rows * top_k()), -1);
    if (top_k() > 0) rows.record_routing = result.routing.data();
    if (replay != nullptr) rows.replay_routing = replay->data();
    std::vector<std::unique_ptr<DeviceArray<float>>> buffers;
    std::vector<float*> saved;
    for (int64_t i = 0; i < 2 * layers + 3; ++i) {
      buffers.push_back(std::make_unique<DeviceArray<float>>(static_cast<size_t>(size)));
      saved.push_back(buffers.back()->data());
    }
    forward_layers(blocks, rows, nullptr, saved.data());
    const Targets& targets = batch.targets();
    float* last = saved[static_cast<size_t>(2 * layers)];
    result.logp.resize(static_cast<size_t>(targets.count));
    result.entropy.resize(result.logp.size());
    blocks.head_forward(targets, last, rows.rows, result.logp.data(), result.entropy.data());
    DeviceArray<float> grads(std::vector<float>(static_cast<size_t>(layout().total), 0.0F));
    std::vector<float> dlogp(result.logp.size());
    for (size_t i = 0; i < dlogp.size(); ++i) dlogp[i] = 0.25F + 0.5F * std::sin(float(i));
    float *d0 = saved[static_cast<size_t>(2 * layers + 1)], *d1 = saved.back();
    blocks.head_backward(targets, last, rows.rows, dlogp.data(), grads.data(), d0);
    rows.record_routing = nullptr;
    for (int64_t l = layers - 1; l >= 0; --l) {
      blocks.ffn_backward(l, rows, saved[static_cast<size_t>(2 * l + 1)], d0, grads.data(), d1);
      blocks.attention_backward(l, rows, saved[static_cast<size_t>(2 * l)], d1, grads.data(), d0);
    }
    blocks.embed_backward(rows, d0, grads.data());
    wait();
    result.grads = grads.download();
    return result;
  }

  // One block on a given input: what it adds to it, and gradients.
  Result run_block(Blocks& blocks, const RowBatch& rows, int64_t layer, bool attention,
                   const std::vector<float>& x, const std::vector<float>& dy) {
    DeviceArray<float> in(x), d(dy), y(x.size()), dx(x.size());
    DeviceArray<float> grads(std::vector<float>(static_cast<size_t>(layout().total), 0.0F));
    blocks.embed(rows, y.data());
    wait();
    y.fill_bytes(0xFF);
    dx.fill_bytes(0xFF);
    if (attention) {
      blocks.attention_forward(layer, rows, in.data(), y.data());
      blocks.attention_backward(layer, rows, in.data(), d.data(), grads.data(), dx.data());
    } else {
      blocks.ffn_forward(layer, rows, in.data(), y.data());
      blocks.ffn_backward(layer, rows, in.data(), d.data(), grads.data(), dx.data());
    }
    wait();
    return {minus(y.download(), x), minus(dx.download(), dy), grads.download()};
  }

 private:
  static HostParameters initial(Parameters& parameters) {
    randomise(parameters, 3);
    return HostParameters(parameters);
  }
  int64_t top_k() const { return config().num_experts_per_tok; }

  Parameters parameters_;
  cuda::Stream stream_;
  DeviceParameters values_;
  std::unique_ptr<CudaModel> model_;
  std::unique_ptr<CudaBlocks> shared_;
  std::unique_ptr<RoundedParameters> rounded_;
  std::unique_ptr<AtenBlocks> aten_;
};

const std::vector<int64_t> kLengths = {34, 2, 71, 3, 18, 17, 65};

class AtenCuda : public ::testing::TestWithParam<Case> {};

// Without quantised activations the engines differ by roundings to BF16 (2^-9 each) at a score of
// places a block; most by those of a router's logits, whose rounding of up to 2^-6 its
// probabilities follow: 2.7 % at worst on an H200. With them a rounding moves a code now and then,
// by up to half its value in NVFP4 and an eighth in FP8: 8.2 % at worst. What a quantiser that is
// left out does is told by another test.
double bound_of(const Case& c) {
  switch (parse_precision(c.precision, {}).activations) {
    case Format::kNvfp4:
      return 0.1;
    case Format::kFp8:
      return 0.05;
    case Format::kBf16:
      break;
  }
  return 0.04;
}

TEST_P(AtenCuda, BlocksAreTheSharedOnesUpToRounding) {
  QUADS_NEEDS_DEVICE();
  Both both(GetParam());
  const double bound = bound_of(GetParam());
  const auto tokens = random_sequences(kLengths, 43, 12);
  const std::vector<int32_t> routing = both.run(both.shared(), tokens, nullptr).routing;
  SequenceBatch batch(both.config());
  RowBatch rows = Both::rows_of(batch, tokens);
  if (!routing.empty()) rows.replay_routing = routing.data();
  RandomSequence random(11, RandomStream::kTask, 1);
  std::vector<float> x(static_cast<size_t>(rows.rows * both.shared().hidden())), dy(x.size());
  for (float& v : x) v = random.uniform() + random.uniform() - 1.0F;
  for (float& v : dy) v = random.uniform() + random.uniform() - 1.0F;
  for (int64_t l = 0; l < both.shared().num_layers(); ++l) {
    for (const bool attention : {true, false}) {
      SCOPED_TRACE("layer " + std::to_string(l) + (attention ? ", attention" : ", feed-forward"));
      const Result expected = both.run_block(both.shared(), rows, l, attention, x, dy);
      const Result actual = both.run_block(both.aten(), rows, l, attention, x, dy);
      EXPECT_LT(relative_error(actual.y, expected.y), bound);
      EXPECT_LT(relative_error(actual.dx, expected.dx), bound);
      EXPECT_GT(relative_error(actual.y, expected.y), 1e-7) << "two engines with one rounding";
      for (const Parameter& p : both.layout().parameters) {
        EXPECT_LT(relative_error(actual.grads.data() + p.offset, expected.grads.data() + p.offset,
                                 p.padded_size()),
                  bound)
            << p.name;
      }
    }
  }
}

TEST_P(AtenCuda, WholeModelsAgree) {
  QUADS_NEEDS_DEVICE();
  Both both(GetParam());
  const auto tokens = random_sequences(kLengths, 43, 12);
  const Whole expected = both.run(both.shared(), tokens, nullptr);
  const std::vector<int32_t>* replay = expected.routing.empty() ? nullptr : &expected.routing;
  const Whole actual = both.run(both.aten(), tokens, replay);
  EXPECT_EQ(actual.routing, expected.routing);
  if (parse_precision(GetParam().precision, {}).activations == Format::kBf16) {
    // These models' norms have outliers, which amplify a rounding from layer to layer (0.48 and
    // 14 % at worst); moved codes more, so that with them only blocks can be compared.
    EXPECT_LT(max_difference(actual.logp, expected.logp), 0.8F);
    EXPECT_LT(max_difference(actual.entropy, expected.entropy), 0.8F);
    EXPECT_LT(relative_error(actual.grads, expected.grads), 0.25);
  }
  const Whole again = both.run(both.aten(), tokens, replay);
  EXPECT_EQ(bits(again.logp), bits(actual.logp));
  EXPECT_EQ(bits(again.grads), bits(actual.grads)) << "a second run";
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AtenCuda,
    ::testing::Values(Case{"bf16", moe_config()}, Case{"w4a16", moe_config(), "w4a16"},
                      Case{"fp8", moe_config(), "fp8"}, Case{"nvfp4", moe_config(), "nvfp4"},
                      Case{"w16a4", moe_config(), "w16a4"}, Case{"dense", dense_config()},
                      Case{"tied", tied_config(), "w4a16"}, Case{"shared", qwen2_moe_config()},
                      Case{"shared_nvfp4", qwen2_moe_config(), "nvfp4"},
                      Case{"whole_norm", whole_norm_config(), "w4a16"},
                      Case{"mixtral", mixtral_config(), "nvfp4"},
                      Case{"wide", wide_config(), "w4a16"}),
    [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Linears, AtenCuda,
                         ::testing::Values(Case{"w4a16", moe_config(), "w4a16", kLinears},
                                           Case{"w8a16", moe_config(), "w8a16", kLinears},
                                           Case{"fp8", moe_config(), "fp8", kLinears},
                                           Case{"nvfp4", moe_config(), "nvfp4", kLinears},
                                           Case{"dense", dense_config(), "nvfp4", kLinears},
                                           Case{"shared", qwen2_moe_config(), "w4a16", kLinears}),
                         [](const auto& info) { return info.param.name; });

// The bounds above would not tell a quantiser that is left out from rounding noise; this does.
TEST(AtenCuda, AQuantiserThatIsLeftOutWouldShow) {
  QUADS_NEEDS_DEVICE();
  const auto tokens = random_sequences(kLengths, 43, 12);
  Both bf16({"", moe_config(), "bf16", kLinears});
  const Whole reference = bf16.run(bf16.aten(), tokens, nullptr);
  Both w4a16({"", moe_config(), "w4a16", kLinears}), w4a4({"", moe_config(), "nvfp4", kLinears});
  const Whole weights = w4a16.run(w4a16.aten(), tokens, &reference.routing);
  const Whole both = w4a4.run(w4a4.aten(), tokens, &reference.routing);
  EXPECT_GT(relative_error(weights.grads, reference.grads), 0.1);
  EXPECT_GT(relative_error(both.grads, weights.grads), 0.1);
}

TEST(RoundedParameters, ActivationsHaveTheBitsOfTheCpusQuantiser) {
  QUADS_NEEDS_DEVICE();
  const Both both({"", moe_config(), "nvfp4"});
  constexpr int64_t kRows = 16384 + 37;
  for (const int64_t width : {int64_t{64}, both.rounded().sites().width(1, Site::kFfnMid)}) {
    RandomSequence random(5, RandomStream::kTask, 2);
    std::vector<Bf16> x(static_cast<size_t>(kRows * width));
    for (Bf16& v : x) v = to_bf16((random.uniform() - 0.5F) * 8.0F);
    DeviceArray<Bf16> in(x), out(x.size());
    both.rounded().fake_quantise(in.data(), kRows, width, Format::kNvfp4, out.data());
    both.wait();
    const at::Tensor host =
        at::from_blob(x.data(), {kRows, width}, at::TensorOptions().dtype(at::kBFloat16));
    const at::Tensor expected =
        ops::fake_quantize_activation(host, kernels::ActivationFormat::kNvfp4, "a test");
    const std::vector<Bf16> actual = out.download();
    EXPECT_EQ(std::memcmp(actual.data(), expected.const_data_ptr(), actual.size() * sizeof(Bf16)),
              0)
        << width;
  }
}

// The bound of ATen's allocator, against what it took.
TEST(AtenCuda, BatchesTakeNoMoreThanPlanned) {
  QUADS_NEEDS_DEVICE();
  namespace allocator = c10::cuda::CUDACachingAllocator;
  for (const ModelConfig& config : {wide_config(), qwen2_moe_config(), dense_config()}) {
    constexpr int64_t kSequences = 256, kTokens = 250;
    const int64_t rows = kSequences * kTokens, planned = aten_bytes(config, rows, false);
    Both both({"", config, "nvfp4"}, planned);
    allocator::emptyCache();
    allocator::resetPeakStats(0);
    const std::vector<std::vector<int32_t>> tokens(kSequences, std::vector<int32_t>(kTokens, 7));
    both.run(both.aten(), tokens, nullptr);
    const auto& reserved = allocator::getDeviceStats(0).reserved_bytes;
    const int64_t taken = reserved[0].peak;  // of all kinds of memory
    EXPECT_LT(taken, planned);
    RecordProperty("taken_share", std::to_string(double(taken) / double(planned)));
    std::printf("planned %.2f GiB, taken %.2f\n", double(planned) / 0x1p30, double(taken) / 0x1p30);
  }
}

TEST(AtenCuda, MoreThanPlannedIsAnErrorThatSaysWhatToDo) {
  QUADS_NEEDS_DEVICE();
  c10::cuda::CUDACachingAllocator::emptyCache();
  Both both({"", wide_config()}, int64_t{64} << 20);
  const std::vector<std::vector<int32_t>> tokens(256, std::vector<int32_t>(250, 7));
  EXPECT_MENTIONS(error_of([&] { both.run(both.aten(), tokens, nullptr); }),
                  "--max-tokens-per-batch");
}

TEST(AtenCuda, WhatIsNoBatchOfWholeSequencesIsAnError) {
  QUADS_NEEDS_DEVICE();
  Both both({"", moe_config()});
  DeviceArray<float> x(static_cast<size_t>(300 * 64));
  SequenceBatch batch(both.config());
  RowBatch rows = Both::rows_of(batch, random_sequences({258}, 43, 1));
  EXPECT_MENTIONS(error_of([&] { both.aten().embed(rows, x.data()); }), "a sequence of 257 tokens");
  rows = Both::rows_of(batch, random_sequences({5}, 43, 1));
  rows.cu_seqlens = nullptr;
  EXPECT_MENTIONS(error_of([&] { both.aten().embed(rows, x.data()); }), "whole sequences");
}

}  // namespace
}  // namespace quads::testing
