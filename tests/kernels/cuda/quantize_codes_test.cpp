// Codes and scales on a device against the scalar quantiser, for any global scale, and back.
#include "kernels/cuda/quantize/quantize_codes.h"

#include <gtest/gtest.h>

#include <climits>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/test_values.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

// Blocks of many sizes; every boundary of E2M1 under scales of powers of two; zeros of both signs.
std::vector<float> values(int64_t rows, int64_t k) {
  RandomSequence random(3, RandomStream::kInit, 7);
  std::vector<float> x(static_cast<size_t>(rows * k));
  for (int64_t i = 0; i < rows * k; i += 16) {
    const int octave = -static_cast<int>(random.below(16));
    const bool ties = random.below(3) == 0;
    for (int64_t j = i; j < i + 16; ++j) {
      const float value = ties ? 0.25F * (static_cast<float>(random.below(49)) - 24.0F)
                               : 12.0F * (random.uniform() - 0.5F);
      x[static_cast<size_t>(j)] = random.below(20) == 0 ? -0.0F : std::ldexp(value, octave);
    }
  }
  return x;
}

void expect_scalar_bits(const std::vector<float>& x, int64_t rows, int64_t k, float g, bool bf16) {
  std::vector<Bf16> rounded;
  for (const float value : x) rounded.push_back(to_bf16(value));
  std::vector<float> exact = x;
  for (size_t i = 0; bf16 && i < x.size(); ++i) exact[i] = to_float(rounded[i]);
  const Nvfp4Matrix expected = quantise_nvfp4(exact, rows, k, g, "x");

  DeviceArray<float> floats(x);
  DeviceArray<Bf16> halves(rounded);
  DeviceArray<uint8_t> codes(expected.packed.size()), scales(expected.block_scales.size());
  DeviceArray<int32_t> bad(std::vector<int32_t>{INT_MAX});
  DeviceArray<float> global(std::vector<float>{g}), back(x.size());
  const CudaContext context = make_context(nullptr);
  const void* input = bf16 ? static_cast<const void*>(halves.data()) : floats.data();
  quantize_codes(context, {.x = input,
                           .x_is_bf16 = bf16,
                           .rows = rows,
                           .k = k,
                           .global_scale = g,
                           .codes = codes.data(),
                           .block_scales = scales.data(),
                           .first_bad_row = bad.data()});
  dequantize_codes(context, {.codes = codes.data(),
                             .block_scales = scales.data(),
                             .global_scale = global.data(),
                             .rows = rows,
                             .k = k,
                             .values = back.data(),
                             .first_bad_row = bad.data()});
  finish("codes");
  EXPECT_EQ(codes.download(), expected.packed);
  EXPECT_EQ(scales.download(), expected.block_scales);
  EXPECT_EQ(differing_bytes(back.download(), dequantise_nvfp4(expected, "x")), 0);
  EXPECT_EQ(bad.download()[0], INT_MAX);
}

TEST(QuantizeCodes, HaveTheBitsOfTheScalarQuantiserForAnyGlobalScale) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [rows, k] : {std::pair<int64_t, int64_t>{1, 16}, {37, 80}, {300, 768}}) {
    for (const float g : {0x1p-8F, 1.0F, 0.00123F, 3e-5F}) {
      for (const bool bf16 : {false, true}) expect_scalar_bits(values(rows, k), rows, k, g, bf16);
    }
  }
}

TEST(QuantizeCodes, AScaleThatIsNegativeOrNanIsReportedWithItsRow) {
  QUADS_NEEDS_DEVICE();
  std::vector<uint8_t> scales(6, 0x38);
  scales[4] = 0x7F;
  scales[5] = 0xB8;
  DeviceArray<uint8_t> codes(std::vector<uint8_t>(48, 0x11)), in(scales);
  DeviceArray<int32_t> bad(std::vector<int32_t>{INT_MAX});
  DeviceArray<float> global(std::vector<float>{1.0F}), back(96);
  dequantize_codes(make_context(nullptr), {.codes = codes.data(),
                                           .block_scales = in.data(),
                                           .global_scale = global.data(),
                                           .rows = 3,
                                           .k = 32,
                                           .values = back.data(),
                                           .first_bad_row = bad.data()});
  finish("codes");
  EXPECT_EQ(bad.download()[0], 2);
}

TEST(QuantizeCodes, SizesAndScalesOutOfRangeAreErrors) {
  const CudaContext nowhere;
  int32_t bad = INT_MAX;
  EXPECT_THROW(quantize_codes(nowhere, {.rows = 1, .k = 24, .first_bad_row = &bad}), Error);
  EXPECT_THROW(quantize_codes(nowhere, {.rows = 1, .k = 32}), Error);
  EXPECT_THROW(
      quantize_codes(nowhere, {.rows = 1, .k = 32, .global_scale = 0.0F, .first_bad_row = &bad}),
      Error);
  EXPECT_THROW(dequantize_codes(nowhere, {.rows = -1, .k = 32, .first_bad_row = &bad}), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
