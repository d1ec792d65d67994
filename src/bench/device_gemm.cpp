#include "bench/device_gemm.h"

#include "eval/device.h"
#ifdef QUADS_HAVE_CUDA
#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <string_view>

#include "aten/aten_engine.h"
#include "bench/device_copy.h"
#include "bench/expert_layer.h"
#include "bench/graph_time.h"
#include "bench/shapes.h"
#include "cuda/device.h"
#include "kernels/cuda/fill_random.h"
#include "report/progress.h"
#endif

namespace quads::bench {

#ifdef QUADS_HAVE_CUDA
namespace {

namespace k = kernels::cuda;
using k::CudaContext;
using k::WeightFormat;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr const char* kTorchFp8 = "torch fp8";
constexpr const char* kTorchBf16 = "torch bf16";

struct Kind {
  const char* name;
  WeightFormat format;
  int percent;  // of the blocks, compensated
};
// By format: a layer of each is made once.
constexpr Kind kKinds[] = {{"nvfp4", WeightFormat::kNvfp4, 0},
                           {"nvfp4-rac50", WeightFormat::kNvfp4, 50},
                           {"nvfp4-rac100", WeightFormat::kNvfp4, 100},
                           {"nvfp4-rac100:floor", WeightFormat::kNvfp4Fp16, 100},
                           {"fp8", WeightFormat::kFp8, 0},
                           {"bf16", WeightFormat::kBf16, 0}};

// What the device can do at best.
struct Limits {
  double bytes_per_s, flops_per_s;
  double floor_us(double bytes, double flops) const {
    return std::max(bytes / bytes_per_s, flops / flops_per_s) * 1e6;
  }
};

struct Cell {
  const char* product;
  int64_t tokens;
  const char* kind;
  const char* tile = "–";
  double us = kNone, overlapped_us = kNone;  // of the product, or the layer
  double quantise_us = kNone, quantise_with_sums_us = kNone, both_us = kNone;
  double floor_us = kNone;
};

const char* name_of(Projection projection) {
  return projection == Projection::kGateUp ? "gate_up" : "down";
}

// In a graph: enough that the device and not its launch is timed, few enough that the clock stays.
int calls_of(int64_t tokens) { return tokens >= 8192 ? 2 : tokens >= 1024 ? 6 : 12; }
constexpr int kReplays = 5;

double floor_of(const ExpertLayer& layer, Projection projection, const Limits& limits) {
  const k::GroupedGemm gemm = layer.gemm(projection, 0);
  const auto bytes =
      static_cast<double>(layer.used_experts() * k::fragment_bytes(gemm.n, gemm.k, gemm.format));
  const int64_t depth = gemm.k + int64_t{gemm.residual_stages} * k::kStageK;
  return limits.floor_us(bytes, 2.0 * static_cast<double>(gemm.rows_bound * gemm.n * depth));
}

Cell product_cell(ExpertLayer& layer, Projection projection, const Kind& kind, int64_t tokens,
                  const Limits& limits) {
  constexpr int kQuantiserCalls = 20;
  Cell cell{name_of(projection), tokens, kind.name};
  const auto quantize = [&](const CudaContext& context, int) {
    layer.quantize(context, projection);
  };
  const auto multiply = [&](const CudaContext& context, int i) {
    layer.multiply(context, projection, i);
  };
  const auto both = [&](const CudaContext& context, int i) {
    quantize(context, i);
    multiply(context, i);
  };
  const int calls = calls_of(tokens);
  cell.quantise_us = time_graph(false, kQuantiserCalls, kReplays, quantize);
  if (k::is_nvfp4(kind.format)) {
    layer.count_residuals(true);
    cell.quantise_with_sums_us = time_graph(false, kQuantiserCalls, kReplays, quantize);
    layer.count_residuals(false);
  }
  cell.us = time_graph(false, calls, kReplays, multiply);
  cell.overlapped_us = time_graph(true, calls, kReplays, multiply);
  cell.both_us = time_graph(true, calls, kReplays, both);
  cell.tile = k::tile_name(k::choose_tile(k::make_context(nullptr), layer.gemm(projection, 0)));
  cell.floor_us = floor_of(layer, projection, limits);
  return cell;
}

Cell layer_cell(ExpertLayer& layer, const Kind& kind, int64_t tokens, const Limits& limits) {
  Cell cell{"layer", tokens, kind.name};
  const auto all = [&](const CudaContext& context, int i) { layer.all(context, i); };
  cell.us = time_graph(false, calls_of(tokens), kReplays, all);
  cell.overlapped_us = time_graph(true, calls_of(tokens), kReplays, all);
  cell.floor_us =
      floor_of(layer, Projection::kGateUp, limits) + floor_of(layer, Projection::kDown, limits);
  return cell;
}

cuda::DeviceArray<Bf16> random_rows(int64_t rows, int64_t width) {
  cuda::DeviceArray<Bf16> values(rows * width);
  k::fill_random(
      k::make_context(nullptr),
      {.values = values.data(), .count = values.size(), .valid = values.size(), .deviation = 1.0F});
  cuda::check_cuda(cudaStreamSynchronize(nullptr), "making activations");
  return values;
}

double aten_us(const DeviceProduct& product, int64_t rows, int calls) {
  return time_graph(false, calls, kReplays, [&](const CudaContext& context, int i) {
    product.run(context.stream, rows, i);
  });
}

// A second that cuBLAS reaches in BF16, at a shape that it is good at.
double tensor_flops() {
  constexpr int64_t kRows = 16384, kN = 4096, kK = 4096;
  const auto x = random_rows(kRows, kK), weight = random_rows(kN, kK);
  const auto product = make_aten_cuda_product({.kind = DeviceProductKind::kLinear,
                                               .x = x.data(),
                                               .weights = weight.data(),
                                               .max_rows = kRows,
                                               .n = kN,
                                               .k = kK});
  return 2.0 * static_cast<double>(kRows * kN * kK) / (aten_us(*product, kRows, 2) * 1e-6);
}

// PyTorch's grouped products of the rows as `layer` routes them.
void add_peers(ExpertLayer& layer, Projection projection, const DeviceGemmBench& options,
               int64_t max_tokens, const Limits& limits, std::vector<Cell>& cells) {
  const MatrixShape matrix = matrix_of(layer.shape(), projection);
  const int64_t max_rows = max_tokens * layer.shape().top_k;
  const auto x = random_rows(max_rows, matrix.k);
  const auto weights = random_experts(layer.shape(), projection);
  for (const bool fp8 : {true, false}) {
    const int value_bytes = fp8 ? 1 : 2;
    const auto product = make_aten_cuda_product(
        {.kind = fp8 ? DeviceProductKind::kGroupedFp8 : DeviceProductKind::kGrouped,
         .x = x.data(),
         .weights = weights.data(),
         .ends = layer.expert_offsets() + 1,
         .max_rows = max_rows,
         .experts = layer.shape().experts,
         .n = matrix.n,
         .k = matrix.k,
         .copies = weight_copies(value_bytes * weights.size())});
    // Tensor cores multiply FP8 twice as fast as BF16.
    const Limits here{limits.bytes_per_s, limits.flops_per_s * (fp8 ? 2 : 1)};
    for (const int64_t tokens : options.tokens) {
      layer.prepare(tokens, 0);
      const int64_t rows = tokens * layer.shape().top_k;
      Cell cell{name_of(projection), tokens, fp8 ? kTorchFp8 : kTorchBf16};
      cell.us = aten_us(*product, rows, calls_of(tokens));
      cell.floor_us =
          here.floor_us(static_cast<double>(layer.used_experts() * matrix.size() * value_bytes),
                        2.0 * static_cast<double>(rows * matrix.size()));
      cells.push_back(cell);
    }
  }
}

// Kinds of the same product and tokens beside each other, in the order in which they were measured.
void add_rows(const std::vector<Cell>& cells, const DeviceGemmBench& options, Result& result) {
  for (const char* product : {"gate_up", "down", "layer"}) {
    for (const int64_t tokens : options.tokens) {
      std::vector<Cell> found;
      std::ranges::copy_if(cells, std::back_inserter(found), [&](const Cell& cell) {
        return std::string_view(cell.product) == product && cell.tokens == tokens;
      });
      const auto time_of = [&](std::string_view kind) {
        const auto at = std::ranges::find(found, kind, &Cell::kind);
        return at == found.end() ? kNone : at->us;
      };
      for (const Cell& cell : found) {
        result.rows.push_back({.labels = {{"product", product},
                                          {"tokens", tokens},
                                          {"kind", cell.kind},
                                          {"tile", cell.tile}},
                               .figures = {{"us", cell.us},
                                           {"overlapped_us", cell.overlapped_us},
                                           {"quantise_us", cell.quantise_us},
                                           {"quantise_with_sums_us", cell.quantise_with_sums_us},
                                           {"both_us", cell.both_us},
                                           {"floor_us", cell.floor_us},
                                           {"of_floor", cell.floor_us / cell.us},
                                           {"x_torch_fp8", time_of(kTorchFp8) / cell.us},
                                           {"x_torch_bf16", time_of(kTorchBf16) / cell.us}}});
      }
    }
  }
}

}  // namespace

Result bench_device_gemm(const DeviceGemmBench& options) {
  cuda::require_device();
  const ModelConfig config = bench_shape(options.shape);
  const ExpertShape shape{static_cast<int>(config.num_experts),
                          static_cast<int>(config.num_experts_per_tok), config.hidden_size,
                          config.moe_intermediate_size};
  const int64_t max_tokens = *std::ranges::max_element(options.tokens);
  const Limits limits{copy_bandwidth(), tensor_flops()};
  Result result;
  result.name = "gemm";
  result.notes = fmt::format(
      "Experts of shape {} on a GPU: {}, top {}; gate_up N {} K {}, down N {} K {}; random "
      "weights, rotated, and routing. Medians of graph replays, launches apart and overlapped. "
      "Ours give silu(gate) * up in BF16, and down in FP32. quantise_us: of the product's input, "
      "with_sums: residual sums of all channels too; both_us: quantiser and product, overlapped; "
      "layer: routing, quantisers, products, combination; :floor: --rac-scale-floor, one pass. "
      "floor_us: the larger of the used weights' bytes at copy_gb_s and the FLOPs, compensation's "
      "too, at tensor_tflops (cuBLAS in BF16, measured here; twice that for torch fp8). torch: "
      "_scaled_grouped_mm (FP8 by rows, fast accumulation) and _grouped_mm, BF16 results, inputs "
      "quantised before; x_torch: times as fast as they.",
      options.shape, shape.experts, shape.top_k, 2 * shape.width, shape.hidden, shape.hidden,
      shape.width);
  result.machine = {{"copy_gb_s", limits.bytes_per_s / 1e9},
                    {"tensor_tflops", limits.flops_per_s / 1e12}};
  std::vector<Cell> cells;
  Progress progress({.label = "gemm", .unit = "kind", .total = std::ssize(kKinds)});
  std::unique_ptr<ExpertLayer> layer;
  int64_t measured = 0;
  for (const Kind& kind : kKinds) {
    if (layer == nullptr || layer->format() != kind.format) {
      layer.reset();
      layer = std::make_unique<ExpertLayer>(shape, kind.format, max_tokens);
    }
    for (const int64_t tokens : options.tokens) {
      layer->prepare(tokens, kind.percent);
      for (const Projection projection : {Projection::kGateUp, Projection::kDown}) {
        cells.push_back(product_cell(*layer, projection, kind, tokens, limits));
      }
      cells.push_back(layer_cell(*layer, kind, tokens, limits));
    }
    progress.update(++measured, {{"kind", kind.name}});
  }
  for (const Projection projection : {Projection::kGateUp, Projection::kDown}) {
    add_peers(*layer, projection, options, max_tokens, limits, cells);
  }
  add_rows(cells, options, result);
  return result;
}
#else
Result bench_device_gemm(const DeviceGemmBench&) { fail_without_cuda(); }
#endif

}  // namespace quads::bench
