// Fragments back to matrices: the values of numerics' quantisers, exactly.
#include "kernels/cuda/quantize/dequantize_weights.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/quantize/quantize_weights.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

// Blocks differ by many octaves; some are zero.
std::vector<float> weights(int64_t n, int64_t k, uint64_t seed) {
  RandomSequence random(seed, RandomStream::kInit, 0);
  std::vector<float> w;
  for (int64_t block = 0; block < n * k / 16; ++block) {
    const auto octave = static_cast<int>(random.below(12));
    const bool zero = random.below(9) == 0;
    for (int i = 0; i < 16; ++i) {
      const float value = std::ldexp(random.uniform() - 0.5F, -octave);
      w.push_back(zero ? 0.0F : to_float(to_bf16(value)));
    }
  }
  return w;
}

std::vector<float> fake_quantised(const std::vector<float>& w, int64_t n, int64_t k,
                                  WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Fp16:
      return fake_quantise_nvfp4(w, n, k, "w");
    case WeightFormat::kFp8:
      return dequantise_fp8(quantise_fp8(w, n, k, 128, "w"), "w");
    case WeightFormat::kBf16:
      return w;
  }
  return {};
}

class DequantizeWeightsTest : public ::testing::TestWithParam<WeightFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, DequantizeWeightsTest,
                         ::testing::Values(WeightFormat::kNvfp4, WeightFormat::kNvfp4Fp16,
                                           WeightFormat::kFp8, WeightFormat::kBf16));

TEST_P(DequantizeWeightsTest, ValuesAreNumericsInTheNaturalOrder) {
  QUADS_NEEDS_DEVICE();
  const WeightFormat format = GetParam();
  constexpr int kMatrices = 3;
  const CudaContext context = make_context(nullptr);
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{64, 16}, {192, 144}, {64, 2048}}) {
    std::vector<Bf16> flat;
    std::vector<float> expected;
    for (uint64_t i = 0; i < kMatrices; ++i) {
      const std::vector<float> w = weights(n, k, i);
      for (const float x : w) flat.push_back(to_bf16(x));
      const std::vector<float> values = fake_quantised(w, n, k, format);
      expected.insert(expected.end(), values.begin(), values.end());
    }
    for (const bool paired : {false, true}) {  // rows, and then K in another order
      const bool permuted = paired && is_nvfp4(format);
      std::vector<int32_t> positions;  // odd blocks first
      for (int64_t b = 0; b < k / 16; ++b) {
        positions.push_back(static_cast<int32_t>(b % 2 == 1 ? b / 2 : k / 32 + b / 2));
      }
      DeviceArray<Bf16> w(flat), values(flat.size());
      DeviceArray<int32_t> device_positions(positions);
      DeviceArray<uint8_t> fragments(static_cast<size_t>(kMatrices * fragment_bytes(n, k, format)));
      DeviceArray<float> scales(kMatrices);
      DeviceArray<uint32_t> amax(kMatrices), scratch(kMatrices);
      values.fill_bytes(0xFF);
      const int32_t* order = permuted ? device_positions.data() : nullptr;
      quantize_weights(context, {.format = format,
                                 .matrices = kMatrices,
                                 .w = w.data(),
                                 .stride = n * k,
                                 .n = n,
                                 .k = k,
                                 .block_position = order,
                                 .paired = paired,
                                 .fragments = fragments.data(),
                                 .global_scales = scales.data(),
                                 .amax_bits = amax.data(),
                                 .scratch = scratch.data()});
      dequantize_weights(context, {.format = format,
                                   .matrices = kMatrices,
                                   .n = n,
                                   .k = k,
                                   .fragments = fragments.data(),
                                   .global_scales = scales.data(),
                                   .block_position = order,
                                   .paired = paired,
                                   .values = values.data()});
      finish("dequantize_weights");
      const std::vector<Bf16> result = values.download();
      for (size_t i = 0; i < result.size(); ++i) {
        ASSERT_EQ(to_float(result[i]), expected[i])
            << n << " x " << k << ", element " << i << ", paired " << paired;
      }
    }
  }
}

TEST(DequantizeWeights, ShapesThatDoNotFitAreErrors) {
  CudaContext context;
  EXPECT_THROW(dequantize_weights(context, {.matrices = 1, .n = 32, .k = 16}), Error);
  EXPECT_THROW(dequantize_weights(context, {.matrices = 1, .n = 64, .k = 24}), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
