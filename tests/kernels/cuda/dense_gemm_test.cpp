// The dense product on a device: against FP64, and its rows bit for bit over tiles, numbers and
// orders of rows.
#include "kernels/cuda/dense/dense_gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/moe_problem.h"
#include "kernels/cuda/test_values.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kGuard = 64;            // numbers behind y
constexpr uint32_t kPoison = 0xFFA5FFA5;  // NaN, as FP32 and as a pair of BF16

std::vector<DenseTile> fitting_tiles() {
  std::vector<DenseTile> tiles;
  for (const DenseTile tile : kDenseTiles) {
    if (tile_fits(make_context(nullptr), tile)) tiles.push_back(tile);
  }
  return tiles;
}

std::vector<Bf16> rows_of(const std::vector<int64_t>& tokens, int64_t k) {
  std::vector<Bf16> x;
  for (const int64_t token : tokens) {
    const std::vector<Bf16> row = token_row(token, k);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

std::vector<int64_t> first_tokens(int64_t count) {
  std::vector<int64_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

/// A weight on the device, and products with it.
class Weight {
 public:
  Weight(int64_t n, int64_t k) : n_(n), k_(k), values_(bell_bf16(n * k, n + k)), device_(values_) {}

  DenseGemm gemm(DeviceArray<Bf16>& x, int64_t rows, void* y) {
    DenseGemm gemm;
    gemm.x = x.data();
    gemm.weight = device_.data();
    gemm.y = y;
    gemm.rows = rows;
    gemm.n = n_;
    gemm.k = k_;
    return gemm;
  }

  /// y [rows, n] as bits; checks that nothing behind it is touched.
  std::vector<uint32_t> multiply(const std::vector<int64_t>& tokens, DenseTile tile) {
    const auto rows = static_cast<int64_t>(tokens.size());
    DeviceArray<Bf16> x(rows_of(tokens, k_));
    DeviceArray<uint32_t> y(std::vector<uint32_t>(rows * n_ + kGuard, kPoison));
    dense_gemm(make_context(nullptr), gemm(x, rows, y.data()), tile);
    finish(tile_name(tile));
    std::vector<uint32_t> bits = y.download();
    for (int64_t i = 0; i < kGuard; ++i) EXPECT_EQ(bits[rows * n_ + i], kPoison);
    bits.resize(rows * n_);
    return bits;
  }

  const std::vector<Bf16>& values() const { return values_; }

 private:
  int64_t n_, k_;
  std::vector<Bf16> values_;
  DeviceArray<Bf16> device_;
};

struct Shape {
  int64_t rows, n, k;
};

// Products of BF16 are exact, so all error is that of the sums: a step of 16 k adds to the sum in
// the tensor core, which cuts what falls below its accumulator's last places, at most 2^-22 of the
// largest partial sum, which the sum of magnitudes bounds; three more additions join the parts.
TEST(DenseGemm, ProductsAreWithinTheBoundOfFp64) {
  QUADS_NEEDS_DEVICE();
  for (const Shape& s : {Shape{1, 16, 128},
                         {7, 1, 8},
                         {64, 151, 72},
                         {130, 333, 2048},
                         {33, 128, 2048},
                         {5, 2048, 4096},
                         {513, 640, 320},
                         {200, 40, 12296}}) {
    Weight weight(s.n, s.k);
    const std::vector<int64_t> tokens = first_tokens(s.rows);
    const std::vector<Bf16> x = rows_of(tokens, s.k);
    RandomSequence random(1, RandomStream::kTask, 3);
    for (const DenseTile tile : fitting_tiles()) {
      const std::vector<uint32_t> y = weight.multiply(tokens, tile);
      const double steps = static_cast<double>(s.k) / 16 + 4;
      int64_t bad = 0;
      for (int i = 0; i < 1500; ++i) {
        const int64_t r = random.below(static_cast<uint32_t>(s.rows));
        const int64_t c = random.below(static_cast<uint32_t>(s.n));
        double sum = 0.0;
        double magnitude = 0.0;
        for (int64_t j = 0; j < s.k; ++j) {
          const double term =
              double{to_float(x[r * s.k + j])} * to_float(weight.values()[c * s.k + j]);
          sum += term;
          magnitude += std::fabs(term);
        }
        const double error = std::fabs(std::bit_cast<float>(y[r * s.n + c]) - sum);
        bad += error <= steps * 0x1p-22 * magnitude ? 0 : 1;
      }
      EXPECT_EQ(bad, 0) << tile_name(tile) << ": [" << s.rows << ", " << s.n << ", " << s.k << "]";
    }
  }
}

TEST(DenseGemm, ARowsBitsAreTheSameForEveryTileNumberAndOrderOfRows) {
  QUADS_NEEDS_DEVICE();
  for (const Shape& s : {Shape{513, 5120, 2048},
                         {513, 333, 4104},
                         {513, 128, 2048},
                         {513, 16, 128},
                         {300, 2048, 4096},
                         {140, 9000, 768}}) {
    Weight weight(s.n, s.k);
    const std::vector<uint32_t> all = weight.multiply(first_tokens(s.rows), DenseTile::kCluster16);
    for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{64}, s.rows}) {
      std::vector<int64_t> tokens(rows);
      for (int64_t i = 0; i < rows; ++i) tokens[i] = (s.rows - 1 - i * 5 % s.rows + i / 7) % s.rows;
      for (const DenseTile tile : fitting_tiles()) {
        const std::vector<uint32_t> y = weight.multiply(tokens, tile);
        int64_t different = 0;
        for (int64_t r = 0; r < rows; ++r) {
          different += std::memcmp(&y[r * s.n], &all[tokens[r] * s.n], s.n * 4) != 0;
        }
        EXPECT_EQ(different, 0) << tile_name(tile) << ": of " << rows << " rows, n " << s.n
                                << ", k " << s.k;
      }
    }
  }
}

TEST(DenseGemm, BiasThenResidualThenRounding) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kK = 136;
  for (const int64_t n : {6, 33, 200}) {
    for (const int64_t rows : {3, 140}) {
      Weight weight(n, kK);
      const std::vector<int64_t> tokens = first_tokens(rows);
      const std::vector<uint32_t> plain = weight.multiply(tokens, DenseTile::kCluster16);
      const std::vector<Bf16> bias = bell_bf16(n, 5);
      const std::vector<float> residual = bell(rows * n, 6);
      DeviceArray<Bf16> x(rows_of(tokens, kK)), device_bias(bias);
      for (const DenseTile tile : fitting_tiles()) {
        DeviceArray<float> in_place(residual), device_residual(residual);
        DeviceArray<Bf16> rounded(rows * n);
        DenseGemm gemm = weight.gemm(x, rows, in_place.data());
        gemm.bias = device_bias.data();
        gemm.residual = in_place.data();
        dense_gemm(make_context(nullptr), gemm, tile);
        gemm.residual = device_residual.data();
        gemm.y = rounded.data();
        gemm.y_is_bf16 = true;
        dense_gemm(make_context(nullptr), gemm, tile);
        finish(tile_name(tile));
        std::vector<float> expected(rows * n);
        std::vector<Bf16> expected_bf16(rows * n);
        for (int64_t i = 0; i < rows * n; ++i) {
          const float sum = std::bit_cast<float>(plain[i]) + to_float(bias[i % n]);
          expected[i] = residual[i] + sum;
          expected_bf16[i] = to_bf16(expected[i]);
        }
        EXPECT_EQ(differing_bytes(in_place.download(), expected), 0) << tile_name(tile);
        EXPECT_EQ(differing_bytes(rounded.download(), expected_bf16), 0) << tile_name(tile);
      }
    }
  }
}

TEST(DenseGemm, AResidualGivesTheSameBitsWhereverItLiesWithSubnormalsAsZeros) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kK = 136;
  const auto flush = [](float v) { return std::fabs(v) < 0x1p-126F ? std::copysign(0.0F, v) : v; };
  for (const int64_t n : {33, 200}) {
    for (const int64_t rows : {3, 140}) {
      Weight weight(n, kK);
      std::vector<Bf16> small = rows_of(first_tokens(rows), kK);
      for (Bf16& x : small) x = to_bf16(std::ldexp(to_float(x), -120));
      DeviceArray<Bf16> x(small);
      DeviceArray<float> plain(rows * n);
      dense_gemm(make_context(nullptr), weight.gemm(x, rows, plain.data()), DenseTile::kCluster16);
      finish("sums");
      const std::vector<float> sums = plain.download();
      std::vector<float> residual(rows * n), expected(rows * n);
      int64_t flushed = 0;
      for (int64_t i = 0; i < rows * n; ++i) {
        residual[i] = i % 3 == 0   ? std::nextafter(-sums[i], 1.0F)  // the result is subnormal
                      : i % 3 == 1 ? 0x1.8p-130F
                                   : 0x1p-119F * static_cast<float>(i % 7);
        const float sum = flush(residual[i]) + flush(sums[i]);
        expected[i] = flush(sum);
        flushed += sum != expected[i] ? 1 : 0;
      }
      EXPECT_GT(flushed, rows * n / 4);
      for (const DenseTile tile : fitting_tiles()) {
        DeviceArray<float> in_place(residual), apart(residual), y(rows * n);
        DenseGemm gemm = weight.gemm(x, rows, in_place.data());
        gemm.residual = in_place.data();
        dense_gemm(make_context(nullptr), gemm, tile);
        gemm.residual = apart.data();
        gemm.y = y.data();
        dense_gemm(make_context(nullptr), gemm, tile);
        finish(tile_name(tile));
        EXPECT_EQ(differing_bytes(in_place.download(), expected), 0) << tile_name(tile);
        EXPECT_EQ(differing_bytes(y.download(), expected), 0) << tile_name(tile);
      }
    }
  }
}

TEST(DenseGemm, TheDeviceSaysHowManyRowsThereAre) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kRows = 300, kN = 96, kK = 264;
  Weight weight(kN, kK);
  const std::vector<int64_t> tokens = first_tokens(kRows);
  const std::vector<uint32_t> all = weight.multiply(tokens, DenseTile::kCluster16);
  for (const int32_t count : {0, 1, 129, 300, 1000}) {
    const int64_t used = std::min<int64_t>(count, kRows);
    std::vector<Bf16> values = rows_of(tokens, kK);
    for (int64_t i = used * kK; i < kRows * kK; ++i) values[i].bits = 0x7FC0;  // NaN behind
    if (used > 1) values[kK].bits = 0x7F80;  // an infinity stays in its row
    DeviceArray<Bf16> x(values);
    DeviceArray<int32_t> row_count(std::vector<int32_t>{count});
    for (const DenseTile tile : fitting_tiles()) {
      DeviceArray<uint32_t> y(std::vector<uint32_t>(kRows * kN, kPoison));
      DenseGemm gemm = weight.gemm(x, kRows, y.data());
      gemm.row_count = row_count.data();
      dense_gemm(make_context(nullptr), gemm, tile);
      finish(tile_name(tile));
      std::vector<uint32_t> expected(all.begin(), all.begin() + used * kN);
      expected.resize(kRows * kN, kPoison);
      std::vector<uint32_t> bits = y.download();
      for (int64_t c = 0; c < kN && used > 1; ++c) {
        EXPECT_FALSE(std::isfinite(std::bit_cast<float>(bits[kN + c])));
        bits[kN + c] = expected[kN + c];
      }
      EXPECT_EQ(differing_bytes(bits, expected), 0) << tile_name(tile) << ", " << count << " rows";
    }
  }
}

TEST(DenseGemm, AChainInACapturedGraphGivesTheSameBitsOverlappedOrNot) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kD = 512;
  Weight up(kD, kD), down(kD, kD);
  for (const int64_t rows : {5, 200}) {
    std::vector<std::vector<uint16_t>> results;
    for (const bool overlap : {false, true}) {
      DeviceArray<Bf16> x(rows_of(first_tokens(rows), kD)), h(rows * kD);
      DeviceArray<uint16_t> y(rows * kD);
      y.fill_bytes(0xFF);
      cudaStream_t stream;
      check_cuda(cudaStreamCreate(&stream), "stream");
      CudaContext context = make_context(stream);
      context.overlap = overlap;
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
      DenseGemm first = up.gemm(x, rows, h.data());
      first.y_is_bf16 = true;
      DenseGemm second = down.gemm(h, rows, x.data());  // x: written while the first may still read
      second.y_is_bf16 = true;
      DenseGemm third = up.gemm(x, rows, y.data());
      third.y_is_bf16 = true;
      for (const DenseGemm& gemm : {first, second, third}) dense_gemm(context, gemm);
      check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
      check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      check_cuda(cudaGraphLaunch(executable, stream), "replay");
      check_cuda(cudaStreamSynchronize(stream), "replay");
      results.push_back(y.download());
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
    EXPECT_EQ(differing_bytes(results[0], results[1]), 0) << rows << " rows";
    EXPECT_EQ(std::count(results[0].begin(), results[0].end(), 0xFFFF), 0);
  }
}

TEST(DenseGemm, ArgumentsOutOfRangeAreRefused) {
  CudaContext context;
  DenseGemm gemm;
  gemm.n = 8;
  gemm.k = 12;
  EXPECT_THROW(dense_gemm(context, gemm), Error);
  gemm.k = 16;
  EXPECT_NO_THROW(dense_gemm(context, gemm));  // no rows
  gemm.rows = -1;
  EXPECT_THROW(dense_gemm(context, gemm), Error);
  gemm.rows = 1 << 24;
  gemm.n = 1 << 24;
  EXPECT_THROW(dense_gemm(context, gemm), Error);
  gemm.rows = 1;
  gemm.n = 0;
  EXPECT_THROW(dense_gemm(context, gemm), Error);
  gemm.n = 1;
  EXPECT_THROW(dense_gemm(context, gemm, DenseTile::kWgmma128x64), Error);  // no Hopper
}

}  // namespace
}  // namespace quads::kernels::cuda
