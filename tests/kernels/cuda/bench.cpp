// Speed of the kernels of the experts by tile, and of sampling: medians of replays of captured
// graphs.
#include "kernels/cuda/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <numeric>
#include <string_view>
#include <vector>

#include "base/random.h"
#include "bench/device_copy.h"
#include "bench/expert_layer.h"
#include "bench/graph_time.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/sampling/sample_rows.h"

namespace quads::kernels::cuda {
namespace {

using bench::ExpertLayer;
using bench::Projection;
using bench::time_graph;

constexpr bench::ExpertShape kShape = {128, 8, 2048, 768};
constexpr int kTokens[] = {8, 64, 256, 1024, 4096};

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kNvfp4:
      return "nvfp4";
    case WeightFormat::kNvfp4Fp16:
      return "nvfp4-floor";
    case WeightFormat::kFp8:
      return "fp8";
    case WeightFormat::kBf16:
      return "bf16";
  }
  return "?";
}

// Rows of a JSON array, with their commas.
class Rows {
 public:
  void next() {
    std::fputs(first_ ? "" : ",\n", stdout);
    std::fflush(stdout);
    first_ = false;
  }

 private:
  bool first_ = true;
};

void print_tiles(ExpertLayer* layer, Projection projection, int tokens, int percent) {
  const int calls = tokens >= 1024 ? 6 : 12;
  fmt::print(R"({{"format":"{}","shape":"{}","tokens":{},"rac":{},"tiles":{{)",
             format_name(layer->format()), projection == Projection::kGateUp ? "gate_up" : "down",
             tokens, percent);
  const auto here = make_context(nullptr);
  layer->quantize(here, projection);
  const char* comma = "";
  for (const GemmTile tile : kGemmTiles) {
    if (!tile_fits(here, layer->gemm(projection, 0), tile)) continue;
    const auto product = [&](const CudaContext& context, int i) {
      grouped_gemm(context, layer->gemm(projection, i), tile);
    };
    fmt::print(R"({}"{}":[{:.1f},{:.1f}])", comma, tile_name(tile),
               time_graph(false, calls, 5, product), time_graph(true, calls, 5, product));
    comma = ",";
  }
  fmt::print("}}}}");
}

void print_parts(ExpertLayer* layer, int tokens, int percent) {
  const int calls = tokens >= 1024 ? 4 : 8;
  const auto time = [&](auto part) {
    return time_graph(true, 20, 7, [&](const CudaContext& context, int) { part(context); });
  };
  fmt::print(
      R"({{"format":"{}","tokens":{},"rac":{},"route_us":{:.2f},"sort_us":{:.2f},"combine_us":{:.2f})",
      format_name(layer->format()), tokens, percent,
      time([&](const CudaContext& context) { layer->route(context); }),
      time([&](const CudaContext& context) { layer->sort(context); }),
      time([&](const CudaContext& context) { layer->combine(context); }));
  if (is_nvfp4(layer->format())) {
    layer->count_residuals(true);
    fmt::print(R"(,"layer_with_sums_us":{:.1f})",
               time_graph(true, calls, 7,
                          [&](const CudaContext& context, int i) { layer->all(context, i); }));
    layer->count_residuals(false);
  }
  fmt::print("}}");
}

// Logits of a vocabulary of 151,936, on which draws with and without truncation and scores run.
class BenchLogits {
 public:
  explicit BenchLogits(int64_t rows)
      : z_(rows * kVocab),
        scratch_(sample_scratch(rows, kVocab)),
        first_draw_(rows + 1),
        tokens_(std::vector<int32_t>(rows)),
        keys_(rows),
        results_(2 * rows),
        bad_(std::vector<int32_t>{INT_MAX}) {
    constexpr int64_t kDistinct = 8;
    RandomSequence random(1, RandomStream::kTask, 0);
    std::vector<float> some(std::min(rows, kDistinct) * kVocab);
    for (float& z : some) z = 4.0F * (random.uniform() + random.uniform() + random.uniform());
    const DeviceArray<float> distinct(some);
    for (int64_t r = 0; r < rows; r += kDistinct) z_.copy_from(distinct, r * kVocab);
    std::vector<int32_t> first(rows + 1);
    std::iota(first.begin(), first.end(), 0);
    first_draw_.upload(first);
    std::vector<DrawKey> keys(rows);
    for (int64_t r = 0; r < rows; ++r) keys[r] = {r, 0, 0};
    keys_.upload(keys);
    logits_.z = z_.data();
    logits_.ldz = logits_.vocab = kVocab;
    logits_.rows = rows;
    logits_.scratch = scratch_.data();
    logits_.first_bad_row = bad_.data();
  }
  static constexpr int64_t kVocab = 151936;

  void draw(const CudaContext& context, int top_k, float top_p) {
    DrawRows args;
    args.logits = logits_;
    args.top_k = top_k;
    args.top_p = top_p;
    args.first_draw = first_draw_.data();
    args.keys = keys_.data();
    args.tokens = tokens_.data();
    args.logprobs = results_.data();
    draw_rows(context, args);
  }
  void score(const CudaContext& context) {
    ScoreRows args;
    args.logits = logits_;
    args.targets = tokens_.data();
    args.logp = results_.data();
    args.entropy = results_.data() + logits_.rows;
    score_rows(context, args);
  }

 private:
  DeviceArray<float> z_;
  DeviceArray<uint8_t> scratch_;
  DeviceArray<int32_t> first_draw_, tokens_;
  DeviceArray<DrawKey> keys_;
  DeviceArray<float> results_;
  DeviceArray<int32_t> bad_;
  Logits logits_;
};

void print_sampling(int64_t rows, double bandwidth) {
  BenchLogits logits(rows);
  const auto time = [&](auto part) {
    return time_graph(true, 3, 5, [&](const CudaContext& context, int) { part(context); });
  };
  const double bytes = static_cast<double>(rows) * BenchLogits::kVocab * sizeof(float);
  fmt::print(
      R"({{"rows":{},"vocab":{},"one_pass_us":{:.1f},"draw_us":{:.1f},"draw_top_p_us":{:.1f},)"
      R"("draw_top_k_us":{:.1f},"score_us":{:.1f}}})",
      rows, BenchLogits::kVocab, bytes / bandwidth * 1e6,
      time([&](const CudaContext& context) { logits.draw(context, 0, 1.0F); }),
      time([&](const CudaContext& context) { logits.draw(context, 0, 0.95F); }),
      time([&](const CudaContext& context) { logits.draw(context, 50, 1.0F); }),
      time([&](const CudaContext& context) { logits.score(context); }));
}

template <class Print>
void for_cells(ExpertLayer* layer, Print print) {
  for (const int tokens : kTokens) {
    for (const int percent : {0, 50, 100}) {
      if (percent > 0 && !is_nvfp4(layer->format())) continue;
      layer->prepare(tokens, percent);
      print(tokens, percent);
    }
  }
}

}  // namespace

void run_bench(const char* only) {
  const std::string_view name = only;
  const CudaContext context = make_context(nullptr);
  const double bandwidth = bench::copy_bandwidth();
  fmt::print(R"({{"benchmark":"cuda_experts","notes":"us; tiles: [apart, launches overlapped]",)"
             R"("multiprocessors":{},"capability":{},"copy_bytes_per_s":{:.4g},"experts":[)"
             "\n",
             context.multiprocessors, context.capability, bandwidth);
  Rows rows;
  for (const WeightFormat format :
       {WeightFormat::kNvfp4, WeightFormat::kNvfp4Fp16, WeightFormat::kFp8, WeightFormat::kBf16}) {
    if (!name.empty() && name != format_name(format)) continue;
    ExpertLayer layer(kShape, format, *std::ranges::max_element(kTokens));
    for_cells(&layer, [&](int tokens, int percent) {
      rows.next();
      print_parts(&layer, tokens, percent);
      for (const Projection projection : {Projection::kGateUp, Projection::kDown}) {
        rows.next();
        print_tiles(&layer, projection, tokens, percent);
      }
    });
  }
  fmt::print("],\n\"sampling\":[\n");
  Rows sampling_rows;
  for (const int64_t rows_of_logits : {1, 8, 64, 256, 1024}) {
    if (!name.empty()) break;
    sampling_rows.next();
    print_sampling(rows_of_logits, bandwidth);
  }
  fmt::print("]}}\n");
}

}  // namespace quads::kernels::cuda
