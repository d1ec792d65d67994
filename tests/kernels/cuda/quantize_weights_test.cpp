// Weights quantised on a device: the bytes of numerics' quantisers, packed on the CPU.
#include "kernels/cuda/quantize/quantize_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

struct Shape {
  int matrices;
  int64_t n, k;
};

struct Result {
  std::vector<uint8_t> fragments;
  std::vector<float> global_scales;
  std::vector<uint32_t> amax_bits;
};

// Weights whose blocks differ by many octaves; some blocks are zero, some rows tiny. `shift`
// octaves larger, where that is finite and may be quantised.
std::vector<Bf16> weights(int matrix, int64_t n, int64_t k, int shift = 0) {
  RandomSequence random(9, RandomStream::kInit, static_cast<uint64_t>(matrix));
  std::vector<Bf16> w(static_cast<size_t>(n * k));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t block = 0; block < k / 16; ++block) {
      const auto octave = static_cast<int>(random.below(12)) + (row % 7 == 3 ? 40 : 0);
      const bool zero = random.below(9) == 0;
      for (int64_t i = 0; i < 16; ++i) {
        const float value = std::ldexp(random.uniform() - 0.5F, shift - octave);
        w[static_cast<size_t>(row * k + block * 16 + i)] = to_bf16(zero ? 0.0F : value);
      }
    }
  }
  return w;
}

std::vector<float> to_floats(const std::vector<Bf16>& w) {
  std::vector<float> values;
  for (const Bf16 x : w) values.push_back(to_float(x));
  return values;
}

Result quantise(const std::vector<std::vector<Bf16>>& all, int64_t n, int64_t k,
                WeightFormat format, const std::vector<int32_t>& block_position,
                bool paired = false, std::vector<float> scales_before = {}) {
  // Another matrix lies between them, as an expert's down follows its gate_up.
  const int64_t stride = n * k + 64;
  std::vector<Bf16> flat(all.size() * static_cast<size_t>(stride), Bf16{0x7FC0});
  for (size_t i = 0; i < all.size(); ++i) {
    std::ranges::copy(all[i], flat.begin() + static_cast<int64_t>(i) * stride);
  }
  DeviceArray<Bf16> w(flat);
  DeviceArray<int32_t> positions(block_position);
  DeviceArray<uint8_t> fragments(all.size() * static_cast<size_t>(fragment_bytes(n, k, format)));
  scales_before.resize(all.size(), std::numeric_limits<float>::quiet_NaN());
  DeviceArray<float> scales(scales_before);
  DeviceArray<uint32_t> amax(all.size()), scratch(all.size());
  fragments.fill_bytes(0xEE);
  amax.fill_bytes(0xEE);
  scratch.fill_bytes(0xEE);
  quantize_weights(make_context(nullptr),
                   {.format = format,
                    .matrices = static_cast<int>(all.size()),
                    .w = w.data(),
                    .stride = stride,
                    .n = n,
                    .k = k,
                    .block_position = block_position.empty() ? nullptr : positions.data(),
                    .paired = paired,
                    .fragments = fragments.data(),
                    .global_scales = scales.data(),
                    .amax_bits = amax.data(),
                    .scratch = scratch.data()});
  finish("quantize_weights");
  return {fragments.download(), scales.download(), amax.download()};
}

std::vector<uint8_t> packed_on_cpu(const std::vector<Bf16>& w, int64_t n, int64_t k,
                                   WeightFormat format, const std::vector<int32_t>& positions,
                                   bool paired, float* g) {
  std::vector<uint8_t> out(static_cast<size_t>(fragment_bytes(n, k, format)));
  *g = 1.0F;
  switch (format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Fp16: {
      const std::vector<float> values = to_floats(w);
      *g = global_scale_pow2(checked_amax(values, n, k, "w"));
      pack_fragments(quantise_nvfp4(values, n, k, *g, "w"), positions, out, {format, paired});
      break;
    }
    case WeightFormat::kFp8:
      pack_fp8_fragments(quantise_fp8(to_floats(w), n, k, kFp8Block, "w"), out, paired);
      break;
    case WeightFormat::kBf16:
      pack_bf16_fragments(w, n, k, out, paired);
      break;
  }
  return out;
}

class QuantizeWeightsTest : public ::testing::TestWithParam<WeightFormat> {};

TEST_P(QuantizeWeightsTest, BytesAreTheCpus) {
  QUADS_NEEDS_DEVICE();
  const WeightFormat format = GetParam();
  for (const Shape& shape : {Shape{1, 64, 16}, Shape{3, 64, 128}, Shape{5, 192, 144},
                             Shape{2, 128, 2048}, Shape{2, 448, 256}, Shape{512, 64, 32}}) {
    std::vector<std::vector<Bf16>> all;
    for (int i = 0; i < shape.matrices; ++i) all.push_back(weights(i, shape.n, shape.k));
    for (const bool paired : {false, true}) {  // rows of a gate_up, and then another order of K
      std::vector<int32_t> positions;
      if (paired && is_nvfp4(format)) {
        for (int64_t b = 0; b < shape.k / 16; ++b) {  // odd blocks first
          const int64_t odd = shape.k / 32;
          positions.push_back(static_cast<int32_t>(b % 2 == 1 ? b / 2 : odd + b / 2));
        }
      }
      const Result result = quantise(all, shape.n, shape.k, format, positions, paired);
      const Result again =  // under the right scales, where a first pass is the last
          quantise(all, shape.n, shape.k, format, positions, paired, result.global_scales);
      EXPECT_EQ(again.fragments, result.fragments)
          << shape.n << " x " << shape.k << ", paired " << paired;
      const auto bytes = static_cast<int64_t>(fragment_bytes(shape.n, shape.k, format));
      for (int i = 0; i < shape.matrices; ++i) {
        float g = 0.0F;
        const std::vector<uint8_t> expected = packed_on_cpu(all[static_cast<size_t>(i)], shape.n,
                                                            shape.k, format, positions, paired, &g);
        const auto begin = result.fragments.begin() + i * bytes;
        ASSERT_EQ(std::vector<uint8_t>(begin, begin + bytes), expected)
            << shape.n << " x " << shape.k << ", matrix " << i << ", paired " << paired;
        ASSERT_EQ(result.global_scales[static_cast<size_t>(i)], g);
      }
    }
  }
}

TEST_P(QuantizeWeightsTest, BytesAreTheSameWhateverScalesWereThere) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kN = 192, kK = 528;
  std::vector<std::vector<Bf16>> all;
  for (int i = 0; i < 300; ++i) all.push_back(weights(i % 12, kN, kK, i % 5));
  const Result first = quantise(all, kN, kK, GetParam(), {});
  std::vector<float> scales = first.global_scales;  // a sync without news
  EXPECT_EQ(quantise(all, kN, kK, GetParam(), {}, false, scales).fragments, first.fragments);
  for (size_t i = 0; i < scales.size(); ++i) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float wrong[] = {scales[i], scales[i] * 2.0F, scales[i] * 0.5F, 0.0F, scales[i] * 1.5F,
                           -1.0F,     kInfinity,        0x1p127F};
    scales[i] = wrong[i % 8];
  }
  const Result result = quantise(all, kN, kK, GetParam(), {}, false, scales);
  EXPECT_EQ(result.fragments, first.fragments);
  EXPECT_EQ(result.global_scales, first.global_scales);
  EXPECT_EQ(result.amax_bits, first.amax_bits);
  float g = 0.0F;
  const auto bytes = fragment_bytes(kN, kK, GetParam());
  const std::vector<uint8_t> last(result.fragments.end() - bytes, result.fragments.end());
  EXPECT_EQ(last, packed_on_cpu(all.back(), kN, kK, GetParam(), {}, false, &g));
}

TEST_P(QuantizeWeightsTest, BytesAreTheCpusAtBothEndsOfTheRange) {
  QUADS_NEEDS_DEVICE();
  const bool fp8 = GetParam() == WeightFormat::kFp8;  // whose largest weights are smaller
  for (const int shift : {fp8 ? 20 : 127, fp8 ? 10 : 60, -60, -100, -120}) {
    const std::vector<std::vector<Bf16>> all = {weights(1, 64, 256, shift)};
    float g = 0.0F;
    const std::vector<uint8_t> expected = packed_on_cpu(all[0], 64, 256, GetParam(), {}, false, &g);
    const Result result = quantise(all, 64, 256, GetParam(), {});
    EXPECT_EQ(result.fragments, expected) << "shift " << shift;
    EXPECT_EQ(result.global_scales[0], g) << "shift " << shift;
  }
}

TEST_P(QuantizeWeightsTest, AValueThatIsNotFiniteShowsInItsMatrixAlone) {
  QUADS_NEEDS_DEVICE();
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<std::vector<Bf16>> all;
    for (int i = 0; i < 3; ++i) all.push_back(weights(i, 64, 64));
    all[1][64 * 63 + 63] = to_bf16(bad);
    const Result result = quantise(all, 64, 64, GetParam(), {});
    EXPECT_LE(result.amax_bits[0], max_weight_bits(GetParam()));
    EXPECT_GE(result.amax_bits[1], 0x7F80U);
    EXPECT_LE(result.amax_bits[2], max_weight_bits(GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeWeightsTest,
                         ::testing::Values(WeightFormat::kNvfp4, WeightFormat::kNvfp4Fp16,
                                           WeightFormat::kFp8, WeightFormat::kBf16));

TEST(QuantizeWeights, ShapesThatDoNotFitAreErrors) {
  CudaContext context;
  uint32_t memory = 0;  // never read
  for (const QuantizeWeights& args :
       {QuantizeWeights{.matrices = 0, .n = 64, .k = 16},
        QuantizeWeights{.matrices = 1, .n = 32, .k = 16},
        QuantizeWeights{.matrices = 1, .n = 64, .k = 24},
        QuantizeWeights{.matrices = 513, .n = 64, .k = 16},
        QuantizeWeights{.matrices = 1, .stride = 4, .n = 64, .k = 16}}) {
    QuantizeWeights with_memory = args;
    with_memory.amax_bits = with_memory.scratch = &memory;
    EXPECT_THROW(quantize_weights(context, with_memory), Error);
  }
  const QuantizeWeights good{.matrices = 1, .stride = 1024, .n = 64, .k = 16};
  EXPECT_THROW(quantize_weights(context, good), Error) << "no memory for amax_bits";
}

}  // namespace
}  // namespace quads::kernels::cuda
