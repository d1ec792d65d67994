// The packing kernels: the bytes of the reference.
#include "kernels/native_fp4/pack_cuda.h"

#include <gtest/gtest.h>

#include <climits>

#include "base/error.h"
#include "kernels/cuda/device_array.h"
#include "kernels/native_fp4/problem.h"

namespace quads::kernels::native_fp4 {
namespace {

using cuda::DeviceArray;

struct OnDevice {
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
  int32_t first_bad_row;
};

OnDevice pack_rows_on_device(const Problem& p) {
  const AugmentedK k = augment(p.k, p.mask);
  const bool compensated = !k.selected.empty();
  DeviceArray<Bf16> x(p.x);
  DeviceArray<int32_t> offsets(p.offsets), place(k.place), bad(std::vector<int32_t>{INT_MAX});
  DeviceArray<uint8_t> mask(p.mask);
  DeviceArray<uint8_t> codes(static_cast<size_t>(p.rows() * k.augmented / 2));
  DeviceArray<uint8_t> scales(
      static_cast<size_t>(scale_rows_bound(p.rows(), p.groups()) * scale_columns(k.augmented)));
  DeviceArray<float> row_scales(static_cast<size_t>(p.rows()));
  codes.fill_bytes(0xEE);
  scales.fill_bytes(0xEE);
  row_scales.fill_bytes(0xEE);
  pack_rows(cuda::make_context(nullptr), {.x = x.data(),
                                          .rows = p.rows(),
                                          .k = p.k,
                                          .offsets = offsets.data(),
                                          .groups = static_cast<int>(p.groups()),
                                          .place = compensated ? place.data() : nullptr,
                                          .selected_blocks = std::ssize(k.selected),
                                          .channel_mask = compensated ? mask.data() : nullptr,
                                          .codes = codes.data(),
                                          .scales = scales.data(),
                                          .row_scales = row_scales.data(),
                                          .first_bad_row = bad.data()});
  cuda::finish("packing rows");
  return {codes.download(), scales.download(), row_scales.download(), bad.download()[0]};
}

void expect_reference_bytes(const Problem& p) {
  const Buffers expected = packed(p);
  const OnDevice rows = pack_rows_on_device(p);
  EXPECT_EQ(rows.first_bad_row, INT_MAX);
  EXPECT_EQ(rows.codes, expected.codes);
  EXPECT_EQ(rows.scales, expected.scales);
  EXPECT_EQ(rows.row_scales, expected.row_scales);
}

TEST(NativeFp4PackCuda, RowsHaveTheBytesOfTheReference) {
  QUADS_NEEDS_DEVICE();
  expect_reference_bytes(random_problem({130, 130, 133}, 16, 80));
  expect_reference_bytes(random_problem({1}, 16, 16));
  expect_reference_bytes(random_problem({0, 0, 300, 301}, 16, 2048));
  expect_reference_bytes(random_problem({7, 9}, 16, 768, false));
  expect_reference_bytes(random_problem({3}, 16, 16384 + 48));
  expect_reference_bytes(random_problem({0, 0}, 16, 32));
  Problem many = random_problem(std::vector<int32_t>(400, 0), 16, 32);
  for (int32_t i = 0; i < 400; ++i) many.offsets[static_cast<size_t>(i)] = i / 2;
  many.x = spread_blocks(many.rows() * many.k, 8);
  expect_reference_bytes(many);
}

TEST(NativeFp4PackCuda, TiesZerosAndExtremesHaveTheBytesOfTheReference) {
  QUADS_NEEDS_DEVICE();
  Problem p = random_problem({64}, 16, 64);
  p.mask.assign(64, 1);
  testing::Fill fill(4);
  for (int64_t i = 0; i < 64 * 64; ++i) {
    const int64_t row = i / 64;
    const float tie = 0.25F * static_cast<float>(fill.below(25));  // every boundary of E2M1
    float value = row % 8 == 0 ? 0.0F : fill.below(2) == 0 ? tie : -tie;
    if (row % 8 == 1) value = i % 64 == 5 ? 0x1p-133F : -0.0F;         // a denormal, alone
    if (row % 8 == 2) value = std::ldexp(value, -120);                 // under the least g
    if (row % 8 == 3) value = std::ldexp(value, 120);                  // near the top
    if (row % 8 == 4 && i % 64 >= 16) value = std::ldexp(value, -14);  // subnormal scales
    if (row % 8 == 5) value += i % 64 == 0 ? 2688.0F : 0.0F;
    p.x[static_cast<size_t>(i)] = to_bf16(value);
  }
  expect_reference_bytes(p);
}

TEST(NativeFp4PackCuda, TheFirstRowThatIsNotFiniteIsNamed) {
  QUADS_NEEDS_DEVICE();
  Problem p = random_problem({3, 40}, 16, 64);
  p.x[30 * 64 + 1] = Bf16{0x7FC0};
  p.x[17 * 64 + 63] = Bf16{0xFF80};
  EXPECT_EQ(pack_rows_on_device(p).first_bad_row, 17);
  p = random_problem({3, 40}, 16, 64);
  p.x[21 * 64] = Bf16{0x7F7F};  // finite, and rounded out of range
  EXPECT_EQ(pack_rows_on_device(p).first_bad_row, 21);
}

TEST(NativeFp4PackCuda, WeightsHaveTheBytesOfTheReference) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [groups, n, k] : {std::tuple{1, 16, 16}, {3, 144, 80}, {2, 48, 768}}) {
    for (const bool compensated : {false, true}) {
      const Problem p =
          random_problem(std::vector<int32_t>(static_cast<size_t>(groups), 0), n, k, compensated);
      const Buffers expected = packed(p);
      std::vector<uint8_t> codes, scales;
      for (int64_t group = 0; group < groups; ++group) {
        const Nvfp4Matrix w = quantised_weight(p, group);
        codes.insert(codes.end(), w.packed.begin(), w.packed.end());
        scales.insert(scales.end(), w.block_scales.begin(), w.block_scales.end());
      }
      DeviceArray<uint8_t> in_codes(codes), in_scales(scales);
      DeviceArray<int32_t> selected(expected.k.selected);
      DeviceArray<uint8_t> out_codes(expected.weight_codes.size());
      DeviceArray<uint8_t> out_scales(expected.weight_scales.size());
      out_codes.fill_bytes(0xEE);
      out_scales.fill_bytes(0xEE);
      pack_weights(cuda::make_context(nullptr), {.groups = groups,
                                                 .n = n,
                                                 .k = k,
                                                 .codes = in_codes.data(),
                                                 .block_scales = in_scales.data(),
                                                 .selected = selected.data(),
                                                 .selected_blocks = std::ssize(expected.k.selected),
                                                 .packed_codes = out_codes.data(),
                                                 .packed_scales = out_scales.data()});
      cuda::finish("packing weights");
      EXPECT_EQ(out_codes.download(), expected.weight_codes);
      EXPECT_EQ(out_scales.download(), expected.weight_scales);
    }
  }
}

TEST(NativeFp4PackCuda, SizesOutOfRangeAreErrors) {
  const CudaContext nowhere;
  EXPECT_THROW(pack_rows(nowhere, {.rows = 1, .k = 24, .groups = 1}), Error);
  EXPECT_THROW(pack_rows(nowhere, {.rows = 1, .k = 32, .groups = 0}), Error);
  EXPECT_THROW(pack_rows(nowhere, {.rows = 1, .k = 32, .groups = 1, .selected_blocks = 3}), Error);
  EXPECT_THROW(pack_weights(nowhere, {.groups = 1, .n = 0, .k = 32}), Error);
  EXPECT_THROW(pack_weights(nowhere, {.groups = 1, .n = 16, .k = 0}), Error);
}

}  // namespace
}  // namespace quads::kernels::native_fp4
