// FP8 and BF16 weights in the grouped product on a device: against FP64, and bit for bit against
// NVFP4 and each other on weights of equal value.
#include <gtest/gtest.h>

#include <bit>
#include <climits>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/cuda/device_moe.h"
#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kExperts = 8;
constexpr int kTopK = 2;

std::vector<int64_t> ids(int64_t count) {
  std::vector<int64_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

Routing routed(int64_t tokens) {
  return route_tokens(ids(tokens), kTopK, kExperts,
                      [](int64_t token, int j) { return hashed_expert(token, j, kExperts); });
}

std::vector<uint8_t> packed_bf16(const std::vector<std::vector<float>>& experts, int64_t n,
                                 int64_t k, bool paired = false) {
  const int64_t bytes = fragment_bytes(n, k, WeightFormat::kBf16);
  std::vector<uint8_t> packed(bytes * experts.size());
  for (size_t e = 0; e < experts.size(); ++e) {
    pack_bf16_fragments(as_bf16(experts[e]), n, k, std::span(packed).subspan(e * bytes, bytes),
                        paired);
  }
  return packed;
}

// The product of other weights with the operands that `moe` holds.
std::vector<uint32_t> multiply_as(DeviceMoe* moe, WeightFormat format,
                                  DeviceArray<uint8_t>* weights, GemmTile tile,
                                  GemmOutput output = GemmOutput::kFp32) {
  GroupedGemm gemm = moe->gemm(output);
  gemm.format = format;
  gemm.weights = weights->data();
  gemm.global_scales = nullptr;
  moe->poison_y();
  grouped_gemm(make_context(nullptr), gemm, tile);
  finish(tile_name(tile));
  return moe->y_bits(output);
}

std::vector<GemmTile> tiles_of(WeightFormat format) {
  GroupedGemm gemm;
  gemm.experts = kExperts;
  gemm.n = 64;
  gemm.k = 128;
  gemm.format = format;
  std::vector<GemmTile> tiles;
  for (const GemmTile tile : kGemmTiles) {
    if (tile_fits(make_context(nullptr), gemm, tile)) tiles.push_back(tile);
  }
  return tiles;
}

int64_t differences(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  int64_t count = a.size() == b.size() ? 0 : INT64_MAX;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) count += a[i] != b[i];
  return count;
}

TEST(WeightFormats, Bf16WeightsOfEqualValueGiveTheBitsOfNvfp4) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 2048}, {192, 400}}) {
    const std::vector<Nvfp4Matrix> weights = random_experts(kExperts, n, k, 21);
    std::vector<std::vector<float>> values;
    for (const Nvfp4Matrix& w : weights) values.push_back(dequantise_nvfp4(w, "w"));
    DeviceArray<uint8_t> plain(packed_bf16(values, n, k));
    for (const int64_t tokens : {1, 13, 300}) {
      DeviceMoe moe(weights, {});
      moe.load(routed(tokens), token_rows(ids(tokens), k));
      moe.quantize();
      const std::vector<uint32_t> expected = moe.multiply(GemmTile::kMma256x32);
      for (const GemmTile tile : tiles_of(WeightFormat::kBf16)) {
        EXPECT_EQ(differences(multiply_as(&moe, WeightFormat::kBf16, &plain, tile), expected), 0)
            << tile_name(tile) << ", " << tokens << " tokens, k " << k;
      }
    }
  }
}

TEST(WeightFormats, Fp8AgreesWithFp64AndGivesTheBitsOfBf16) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{384, 2048}, {128, 768}, {192, 400}}) {
    const int64_t bytes = fragment_bytes(n, k, WeightFormat::kFp8);
    std::vector<uint8_t> packed(bytes * kExperts);
    std::vector<std::vector<float>> values;
    for (int e = 0; e < kExperts; ++e) {
      const Fp8Matrix w = random_fp8_weight(n, k, 50 + e);
      pack_fp8_fragments(w, std::span(packed).subspan(e * bytes, bytes));
      values.push_back(dequantise_fp8(w, "w"));
    }
    DeviceArray<uint8_t> fp8(packed), plain(packed_bf16(values, n, k));
    for (const int64_t tokens : {1, 13, 300}) {
      const Routing routing = routed(tokens);
      DeviceMoe moe(random_experts(kExperts, n, k, 1), {});  // for its rows
      moe.load(routing, token_rows(ids(tokens), k));
      moe.quantize();
      std::vector<uint32_t> expected;
      for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kBf16}) {
        for (const GemmTile tile : tiles_of(format)) {
          const auto y =
              multiply_as(&moe, format, format == WeightFormat::kFp8 ? &fp8 : &plain, tile);
          if (expected.empty()) expected = y;
          EXPECT_EQ(differences(y, expected), 0)
              << tile_name(tile) << ", " << tokens << " tokens, k " << k;
        }
      }
      // Products are exact; the bound of the sums is that of grouped_gemm_test.cpp.
      const double bound = (2.0 * stages_of(k) * 8 + 2) * 0x1p-22;
      int64_t bad = 0;
      for (int e = 0; e < kExperts; ++e) {
        for (int64_t r = routing.offsets[e]; r < routing.offsets[e + 1]; ++r) {
          const std::vector<float> x = reference_operands(token_row(routing.tokens[r], k), {}).q1;
          for (int64_t i = 0; i < n; ++i) {
            double sum = 0.0;
            double magnitude = 0.0;
            for (int64_t c = 0; c < k; ++c) {
              const double term = double{values[e][i * k + c]} * x[c];
              sum += term;
              magnitude += std::fabs(term);
            }
            const double error = std::bit_cast<float>(expected[r * n + i]) - sum;
            bad += !(std::fabs(error) <= bound * magnitude);
          }
        }
      }
      EXPECT_EQ(bad, 0) << tokens << " tokens, k " << k;
    }
  }
}

// Gates and ups of paired rows are those of the natural order, and silu(gate) * up is what the CPU
// makes of them, for every tile.
TEST(WeightFormats, PairedRowsGiveGatesAndUpsAndTheirActivation) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{192, 768}, {64, 144}, {1536, 256}}) {
    const int64_t bytes = fragment_bytes(n, k, WeightFormat::kFp8);
    std::vector<uint8_t> packed(bytes * kExperts);
    std::vector<std::vector<float>> values;
    for (int e = 0; e < kExperts; ++e) {
      const Fp8Matrix w = random_fp8_weight(n, k, 90 + e);
      pack_fp8_fragments(w, std::span(packed).subspan(e * bytes, bytes), true);
      values.push_back(dequantise_fp8(w, "w"));
    }
    DeviceArray<uint8_t> natural(packed_bf16(values, n, k));
    DeviceArray<uint8_t> fp8(packed), bf16(packed_bf16(values, n, k, true));
    const Routing routing = routed(77);
    DeviceMoe moe(random_experts(kExperts, n, k, 1), {});  // for its rows
    moe.load(routing, token_rows(ids(77), k));
    moe.quantize();
    const std::vector<uint32_t> expected =
        multiply_as(&moe, WeightFormat::kBf16, &natural, tiles_of(WeightFormat::kBf16).front());
    const std::vector<uint32_t> activated = silu_mul_bits(expected, routing.rows(), n / 2);
    for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kBf16}) {
      DeviceArray<uint8_t>& paired = format == WeightFormat::kFp8 ? fp8 : bf16;
      for (const GemmTile tile : tiles_of(format)) {
        EXPECT_EQ(multiply_as(&moe, format, &paired, tile, GemmOutput::kGatesUps), expected)
            << tile_name(tile) << ", n " << n;
        EXPECT_EQ(multiply_as(&moe, format, &paired, tile, GemmOutput::kSilu), activated)
            << tile_name(tile) << ", n " << n;
      }
    }
  }
}

TEST(WeightFormats, CompensationOfOtherFormatsIsRefused) {
  CudaContext context;
  context.capability = 90;
  context.shared_bytes = 232448;
  GroupedGemm gemm;
  gemm.experts = 1;
  gemm.n = 64;
  gemm.k = 128;
  gemm.format = WeightFormat::kFp8;
  EXPECT_NO_THROW(grouped_gemm(context, gemm, GemmTile::kMma256x32Fp8));  // no rows, no launch
  EXPECT_THROW(grouped_gemm(context, gemm, GemmTile::kMma256x32), Error);
  gemm.residual_stages = 1;
  EXPECT_THROW(grouped_gemm(context, gemm, GemmTile::kMma256x32Fp8), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
