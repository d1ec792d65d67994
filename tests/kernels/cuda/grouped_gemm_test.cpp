// The grouped product on a device: against FP64 on the same operands, and its rows bit for bit over
// tiles, batches, orders and neighbours.
#include "kernels/cuda/experts/grouped_gemm.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <map>
#include <numeric>

#include "base/error.h"
#include "kernels/cuda/device_moe.h"
#include "kernels/cuda/experts/fragment_weights.h"

namespace quads::kernels::cuda {
namespace {

std::vector<int64_t> ids(int64_t count, int64_t first = 0) {
  std::vector<int64_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<GemmTile> fitting_tiles(const GroupedGemm& gemm) {
  const CudaContext context = make_context(nullptr);
  std::vector<GemmTile> tiles;
  for (const GemmTile tile : kGemmTiles) {
    if (tile_fits(context, gemm, tile)) tiles.push_back(tile);
  }
  return tiles;
}

std::vector<Operands> operands_of(const Routing& routing, int64_t k, const Compensation& c) {
  std::map<int64_t, Operands> by_token;
  std::vector<Operands> rows;
  for (const int64_t token : routing.tokens) {
    auto [at, added] = by_token.try_emplace(token);
    if (added) at->second = reference_operands(token_row(token, k), c);
    rows.push_back(at->second);
  }
  return rows;
}

// Products are exact, so all error is that of the sums. A step of 16 k adds 16 terms to the sum in
// the tensor core, which cuts what falls below its accumulator's last places: at most 2^-22 of the
// largest partial sum, which the sum of magnitudes bounds. Typical errors add up to far less.
void expect_close(const std::vector<uint32_t>& bits, const Product& product, int64_t n, int64_t k,
                  const Routing& routing, const char* what) {
  const double steps = 2.0 * stages_of(k) * 8 + 2;
  double error2 = 0.0;
  double norm2 = 0.0;
  double worst = 0.0;
  int64_t bad = 0;
  for (int e = 0; e < routing.experts; ++e) {
    for (int64_t i = routing.offsets[e] * n; i < routing.offsets[e + 1] * n; ++i) {
      const double error = std::bit_cast<float>(bits[i]) - product.y[i];
      if (!(std::fabs(error) <= steps * 0x1p-22 * product.magnitude[i])) ++bad;
      if (product.magnitude[i] > 0.0) {
        worst = std::max(worst, std::fabs(error) / product.magnitude[i]);
      }
      error2 += error * error;
      norm2 += product.y[i] * product.y[i];
    }
  }
  EXPECT_EQ(bad, 0) << what << ": of " << bits.size() << "; worst error / magnitude " << worst;
  EXPECT_LE(std::sqrt(error2), steps * 0x1p-24 * std::sqrt(norm2)) << what;
}

struct Case {
  int experts;
  int64_t n, k, tokens;
  int top_k;
};

void check_against_fp64(const Case& c, const Compensation& compensation,
                        WeightFormat format = WeightFormat::kNvfp4) {
  const std::vector<Nvfp4Matrix> weights = random_experts(c.experts, c.n, c.k, 100);
  const std::vector<int64_t> tokens = ids(c.tokens);
  const Routing routing = route_tokens(tokens, c.top_k, c.experts, [&](int64_t token, int j) {
    return hashed_expert(token, j, c.experts);
  });
  const Product product =
      reference_product(weights, routing, operands_of(routing, c.k, compensation));
  DeviceMoe moe(weights, compensation, {format});
  moe.load(routing, token_rows(tokens, c.k));
  moe.quantize();
  for (const GemmTile tile : fitting_tiles(moe.gemm())) {
    SCOPED_TRACE(testing::Message() << tile_name(tile) << ", n " << c.n << ", k " << c.k << ", "
                                    << compensation.residual_blocks << " compensated blocks");
    const std::vector<uint32_t> y = moe.multiply(tile);
    expect_close(y, product, c.n, c.k, routing, tile_name(tile));
  }
}

// NVFP4 under a floor of residual scales, in two passes and in one, by every tile.
void expect_close_in_both_forms(const std::vector<Nvfp4Matrix>& weights,
                                const Compensation& compensation, const Routing& routing,
                                const std::vector<int64_t>& tokens, int64_t n, int64_t k) {
  const Product product =
      reference_product(weights, routing, operands_of(routing, k, compensation));
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kNvfp4Fp16}) {
    DeviceMoe moe(weights, compensation, {format});
    moe.load(routing, token_rows(tokens, k));
    moe.quantize();
    for (const GemmTile tile : fitting_tiles(moe.gemm())) {
      expect_close(moe.multiply(tile), product, n, k, routing, tile_name(tile));
    }
  }
}

TEST(GroupedGemm, GateAndUpAgreeWithFp64) {
  QUADS_NEEDS_DEVICE();
  for (const int blocks : {0, 64, 128}) {
    check_against_fp64({8, 1536, 2048, 20, 2}, {shuffled_positions(128, 9), blocks, {}, false});
  }
}

TEST(GroupedGemm, DownAgreesWithFp64) {
  QUADS_NEEDS_DEVICE();
  for (const int blocks : {0, 24, 48}) {
    check_against_fp64({8, 2048, 768, 40, 2}, {shuffled_positions(48, 9), blocks, {}, false});
  }
}

TEST(GroupedGemm, OnePassOfFp16AgreesWithFp64) {
  QUADS_NEEDS_DEVICE();
  for (const int blocks : {0, 64, 128}) {
    check_against_fp64({8, 1536, 2048, 20, 2}, {shuffled_positions(128, 9), blocks, {}, true},
                       WeightFormat::kNvfp4Fp16);
  }
  check_against_fp64({8, 2048, 768, 40, 2}, {shuffled_positions(48, 9), 48, {}, true},
                     WeightFormat::kNvfp4Fp16);
}

// Gates and ups of paired rows are those of the natural order, and silu(gate) * up is what the CPU
// makes of them, for every tile.
TEST(GroupedGemm, PairedRowsGiveGatesAndUpsAndTheirActivation) {
  QUADS_NEEDS_DEVICE();
  constexpr int kExperts = 8;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{192, 768}, {64, 144}, {1536, 256}}) {
    const std::vector<Nvfp4Matrix> weights = random_experts(kExperts, n, k, 70);
    const std::vector<int64_t> tokens = ids(77);
    const Routing routing = route_tokens(tokens, 2, kExperts, [](int64_t token, int j) {
      return hashed_expert(token, j, kExperts);
    });
    for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kNvfp4Fp16}) {
      const Compensation compensation{{}, static_cast<int>(k / 32), {}, true};
      DeviceMoe plain(weights, compensation, {format}),
          paired(weights, compensation, {format, true});
      for (DeviceMoe* moe : {&plain, &paired}) {
        moe->load(routing, token_rows(tokens, k));
        moe->quantize();
      }
      const std::vector<uint32_t> expected = plain.multiply(GemmTile::kMma256x32);
      const std::vector<uint32_t> activated = silu_mul_bits(expected, routing.rows(), n / 2);
      for (const GemmTile tile : fitting_tiles(paired.gemm())) {
        EXPECT_EQ(paired.multiply(tile, GemmOutput::kGatesUps), expected) << tile_name(tile);
        EXPECT_EQ(paired.multiply(tile, GemmOutput::kSilu), activated) << tile_name(tile);
      }
    }
  }
}

// The smallest scale: all weights are subnormal in FP16.
TEST(GroupedGemm, SubnormalOperandsCount) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kN = 128;
  constexpr int64_t kK = 256;
  std::vector<Nvfp4Matrix> weights = random_experts(2, kN, kK, 12);
  for (Nvfp4Matrix& w : weights) {
    for (uint8_t& scale : w.block_scales) scale = 0x01;
  }
  const std::vector<int64_t> tokens = ids(30);
  const Routing routing =
      route_tokens(tokens, 1, 2, [](int64_t token, int) { return static_cast<int>(token % 2); });
  const Compensation compensation{{}, 16, {}, true};
  expect_close_in_both_forms(weights, compensation, routing, tokens, kN, kK);
}

TEST(GroupedGemm, CutTilesAndPaddedStagesAgreeWithFp64) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{64, 16}, {192, 400}, {320, 144}, {64, 128}}) {
    const int all = static_cast<int>(k / 16);
    for (const int blocks : {0, 1, all / 2, all}) {
      const Compensation compensation{shuffled_positions(all, 3), blocks, {}, true};
      check_against_fp64({4, n, k, 50, 2}, compensation);
      check_against_fp64({4, n, k, 50, 2}, compensation, WeightFormat::kNvfp4Fp16);
    }
  }
}

TEST(GroupedGemm, ARowsBitsDependOnNothingButTheRow) {
  QUADS_NEEDS_DEVICE();
  constexpr int kExperts = 16;
  constexpr int kTopK = 4;
  constexpr int64_t kWatched = 8;
  const auto expert_of = [](int64_t token, int j) { return hashed_expert(token, j, kExperts); };
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 2048}, {512, 768}}) {
    const std::vector<Nvfp4Matrix> weights = random_experts(kExperts, n, k, 40);
    const int64_t all = k / 16;
    const std::vector<Bf16> every_row = token_rows(ids(4096), k);
    const std::pair<WeightFormat, int64_t> cases[] = {{WeightFormat::kNvfp4, 0},
                                                      {WeightFormat::kNvfp4, all / 2},
                                                      {WeightFormat::kNvfp4, all},
                                                      {WeightFormat::kNvfp4Fp16, all}};
    for (const auto& [format, blocks] : cases) {
      const bool fp16 = format == WeightFormat::kNvfp4Fp16;
      DeviceMoe moe(weights, {shuffled_positions(all, 2), static_cast<int>(blocks), {}, fp16},
                    {format});
      std::vector<uint32_t> expected;
      for (const int64_t count : {8, 9, 40, 256, 1000, 4096}) {
        // Other neighbours in every batch, the watched tokens in other places.
        std::vector<int64_t> tokens = ids(count);
        for (int64_t i = kWatched; i < count; ++i) tokens[i] = kWatched + (i * 5 + count) % 4088;
        std::rotate(tokens.begin(), tokens.begin() + count / 3, tokens.end());
        std::vector<Bf16> x;
        for (const int64_t token : tokens) {
          x.insert(x.end(), every_row.begin() + token * k, every_row.begin() + (token + 1) * k);
        }
        const Routing routing = route_tokens(tokens, kTopK, kExperts, expert_of);
        moe.load(routing, x);
        moe.quantize();
        for (const GemmTile tile : fitting_tiles(moe.gemm())) {
          const std::vector<uint32_t> y = moe.multiply(tile);
          std::vector<uint32_t> watched(kWatched * kTopK * n);
          for (size_t i = 0; i < tokens.size(); ++i) {
            if (tokens[i] >= kWatched) continue;
            for (int j = 0; j < kTopK; ++j) {
              const int64_t row = routing.sorted_rows[i * kTopK + j];
              std::copy_n(y.begin() + row * n, n, watched.begin() + (tokens[i] * kTopK + j) * n);
            }
          }
          if (expected.empty()) expected = watched;
          int64_t differ = 0;
          for (size_t i = 0; i < watched.size(); ++i) differ += watched[i] != expected[i];
          EXPECT_EQ(differ, 0) << tile_name(tile) << ", " << count << " tokens, k " << k << ", "
                               << blocks << " blocks, of " << watched.size();
        }
      }
    }
  }
}

TEST(GroupedGemm, EmptyExpertsAndOneThatIsHot) {
  QUADS_NEEDS_DEVICE();
  constexpr int kExperts = 128;
  constexpr int64_t kN = 256;
  constexpr int64_t kK = 256;
  const std::vector<Nvfp4Matrix> weights = random_experts(kExperts, kN, kK, 7);
  const Compensation compensation{shuffled_positions(16, 1), 9, {}, true};
  for (const int hot : {0, 77, 127}) {
    for (const int64_t count : {1, 7, 300}) {
      const std::vector<int64_t> tokens = ids(count, 50);
      const Routing routing = route_tokens(tokens, 1, kExperts, [&](int64_t, int) { return hot; });
      expect_close_in_both_forms(weights, compensation, routing, tokens, kN, kK);
    }
  }
}

TEST(GroupedGemm, MoreUnitsThanABlockListsAtOnce) {
  QUADS_NEEDS_DEVICE();
  // 512 experts x 64 tiles of N over the blocks: a queue of units is filled several times.
  constexpr int kExperts = 512;
  const std::vector<Nvfp4Matrix> weights = random_experts(kExperts, 4096, 16, 3);
  const std::vector<int64_t> tokens = ids(1024);
  const Routing routing = route_tokens(tokens, 2, kExperts, [](int64_t token, int j) {
    return static_cast<int>((token * 2 + j) % kExperts);
  });
  const Compensation compensation{{}, 1, {}, true};
  const Product product =
      reference_product(weights, routing, operands_of(routing, 16, compensation));
  for (const WeightFormat format : {WeightFormat::kNvfp4, WeightFormat::kNvfp4Fp16}) {
    DeviceMoe moe(weights, compensation, {format});
    moe.load(routing, token_rows(tokens, 16));
    moe.quantize();
    for (const GemmTile tile : fitting_tiles(moe.gemm())) {
      expect_close(moe.multiply(tile), product, 4096, 16, routing, tile_name(tile));
    }
  }
}

TEST(GroupedGemm, RowsThatGoNowhereAreLeftOut) {
  QUADS_NEEDS_DEVICE();
  const std::vector<Nvfp4Matrix> weights = random_experts(4, 128, 128, 5);
  const Compensation compensation{{}, 8, {}, false};
  const std::vector<int64_t> tokens = ids(6);
  const Routing whole =
      route_tokens(tokens, 1, 4, [](int64_t token, int) { return static_cast<int>(token % 4); });
  Routing routing = whole;  // as a graph of fixed size has it: two places more than rows
  routing.sorted_rows.insert(routing.sorted_rows.begin(), -1);
  routing.sorted_rows.push_back(static_cast<int32_t>(routing.rows()));
  std::vector<int64_t> padded = {100};
  padded.insert(padded.end(), tokens.begin(), tokens.end());
  padded.push_back(101);
  const Product product = reference_product(weights, whole, operands_of(whole, 128, compensation));
  DeviceMoe moe(weights, compensation);
  moe.load(routing, token_rows(padded, 128));
  moe.quantize();
  for (const GemmTile tile : fitting_tiles(moe.gemm())) {
    expect_close(moe.multiply(tile), product, 128, 128, whole, tile_name(tile));
  }
}

TEST(GroupedGemm, ACapturedGraphGivesTheSameBitsWithAndWithoutOverlap) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kN = 512;
  constexpr int64_t kK = 768;
  const std::vector<Nvfp4Matrix> weights = random_experts(8, kN, kK, 60);
  const std::vector<int64_t> tokens = ids(64);
  const Routing routing =
      route_tokens(tokens, 2, 8, [](int64_t token, int j) { return hashed_expert(token, j, 8); });
  const Compensation compensation{shuffled_positions(48, 4), 24, {}, true};
  DeviceMoe two(weights, compensation), one(weights, compensation, {WeightFormat::kNvfp4Fp16});
  std::vector<std::pair<DeviceMoe*, GemmTile>> cases;
  for (DeviceMoe* moe : {&two, &one}) {
    moe->load(routing, token_rows(tokens, kK));
    moe->quantize();
    for (const GemmTile tile : fitting_tiles(moe->gemm())) cases.emplace_back(moe, tile);
  }
  for (const auto& [which, tile] : cases) {
    DeviceMoe& moe = *which;
    const std::vector<uint32_t> expected = moe.multiply(tile);
    for (const bool overlap : {false, true}) {
      cudaStream_t stream;
      check_cuda(cudaStreamCreate(&stream), "stream");
      CudaContext context = make_context(stream);
      context.overlap = overlap;
      cudaGraph_t graph;
      cudaGraphExec_t executable;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
      for (int i = 0; i < 3; ++i) {
        moe.quantize(context);
        grouped_gemm(context, moe.gemm(), tile);
      }
      check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
      check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
      moe.poison_y();
      check_cuda(cudaDeviceSynchronize(), "poison");
      for (int i = 0; i < 3; ++i) check_cuda(cudaGraphLaunch(executable, stream), "replay");
      check_cuda(cudaStreamSynchronize(stream), "replay");
      EXPECT_EQ(moe.y_bits(), expected) << tile_name(tile) << ", overlap " << overlap;
      cudaGraphExecDestroy(executable);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
  }
}

// What follows needs no device.

CudaContext chip(int capability, int multiprocessors, int shared_bytes) {
  CudaContext context;
  context.capability = capability;
  context.multiprocessors = multiprocessors;
  context.shared_bytes = shared_bytes;
  return context;
}

TEST(GroupedGemmTiles, TheChosenTileFitsEveryChipAndShape) {
  for (const CudaContext& context :
       {chip(90, 132, 232448), chip(100, 148, 232448), chip(120, 170, 101376)}) {
    for (const int64_t k : {64, 768, 2048, 7168}) {
      for (const int residual_stages : {0, 1, stages_of(k)}) {
        for (const int64_t rows : {1, 64, 512, 8192, 131072}) {
          GroupedGemm gemm;
          gemm.experts = 128;
          gemm.n = 1536;
          gemm.k = k;
          gemm.residual_stages = residual_stages;
          gemm.rows_bound = rows;
          EXPECT_TRUE(tile_fits(context, gemm, choose_tile(context, gemm)))
              << "sm_" << context.capability << ", k " << k << ", rows " << rows;
          const bool hopper = context.capability == 90;
          EXPECT_EQ(tile_fits(context, gemm, GemmTile::kWgmma256x96), hopper);
        }
      }
    }
  }
}

TEST(GroupedGemmTiles, ShapesOutOfRangeAreRefused) {
  const CudaContext context = chip(90, 132, 232448);
  GroupedGemm good;
  good.experts = 8;
  good.n = 128;
  good.k = 256;
  const auto refused = [&](auto change) {
    GroupedGemm gemm = good;
    change(&gemm);
    EXPECT_THROW(grouped_gemm(context, gemm, GemmTile::kMma256x32), Error);
  };
  EXPECT_NO_THROW(grouped_gemm(context, good, GemmTile::kMma256x32));  // no rows, no launch
  refused([](GroupedGemm* gemm) { gemm->experts = 0; });
  refused([](GroupedGemm* gemm) { gemm->experts = kMaxExperts + 1; });
  refused([](GroupedGemm* gemm) { gemm->n = 96; });
  refused([](GroupedGemm* gemm) { gemm->n = 0; });
  refused([](GroupedGemm* gemm) { gemm->k = 0; });
  refused([](GroupedGemm* gemm) { gemm->residual_stages = 3; });
  refused([](GroupedGemm* gemm) { gemm->rows_bound = int64_t{1} << 40; });
  refused([](GroupedGemm* gemm) {
    gemm->format = WeightFormat::kNvfp4Fp16;
    gemm->rows_bound = 8;  // whose scales are not there
  });
  refused([](GroupedGemm* gemm) {
    gemm->format = WeightFormat::kNvfp4Fp16;
    gemm->residual_stages = 1;
  });
  EXPECT_THROW(grouped_gemm(context, good, GemmTile::kWgmma128x192), Error);  // no second pass
}

}  // namespace
}  // namespace quads::kernels::cuda
