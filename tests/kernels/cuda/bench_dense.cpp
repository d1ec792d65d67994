// Speed of dense products and attention at the shapes of Qwen3-30B-A3B, beside the bytes and FLOPs
// that they cannot do without.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <string_view>

#include "bench/device_copy.h"
#include "bench/graph_time.h"
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/attention/qkv_rows.h"
#include "kernels/cuda/bench.h"
#include "kernels/cuda/dense/dense_gemm.h"
#include "kernels/cuda/kv_problem.h"
#include "kernels/cuda/test_values.h"

namespace quads::kernels::cuda {
namespace {

using bench::time_graph;

constexpr double kTensorFlops = 790e12;  // BF16, measured

// Random BF16, repeated.
void fill_random(DeviceArray<Bf16>* array, uint64_t seed) {
  const std::vector<Bf16> values = bell_bf16(int64_t{1} << 20, seed);
  for (size_t at = 0; at < array->size(); at += values.size()) {
    const size_t count = std::min(values.size(), array->size() - at);
    check_cuda(
        cudaMemcpy(array->data() + at, values.data(), count * sizeof(Bf16), cudaMemcpyHostToDevice),
        "random values");
  }
}

// Between the rows of the list.
void separate() {
  static bool first = true;
  fmt::print("{}", first ? "\n" : ",\n");
  first = false;
}

struct DenseShape {
  const char* name;
  int64_t n, k;
  bool residual;
  bool rounded;
  int64_t max_rows;
};
constexpr DenseShape kDenseShapes[] = {{"qkv", 5120, 2048, false, false, 16384},
                                       {"o", 2048, 4096, true, false, 16384},
                                       {"router", 128, 2048, false, false, 16384},
                                       {"head", 151936, 2048, false, false, 1024},
                                       {"square", 8192, 8192, false, true, 8192}};
constexpr int64_t kDenseRows[] = {1,   8,   16,  32,   64,   96,   128,  192,
                                  256, 384, 512, 1024, 2048, 4096, 16384};

void bench_dense(const DenseShape& shape, double bandwidth) {
  constexpr int64_t kPool = int64_t{160} << 20;  // numbers: several times the L2 cache
  const int64_t elements = shape.n * shape.k;
  const int64_t sets = std::max<int64_t>(1, kPool / elements);
  DeviceArray<Bf16> weights(elements * sets), x(shape.max_rows * shape.k);
  fill_random(&weights, 1);
  fill_random(&x, 2);
  DeviceArray<float> y(shape.max_rows * shape.n);
  y.fill_bytes(0);
  for (const int64_t rows : kDenseRows) {
    if (rows > shape.max_rows) continue;
    const auto gemm = [&](int i) {
      DenseGemm args;
      args.x = x.data();
      args.weight = weights.data() + i % sets * elements;
      args.residual = shape.residual ? y.data() : nullptr;
      args.y = y.data();
      args.y_is_bf16 = shape.rounded;
      args.rows = rows;
      args.n = shape.n;
      args.k = shape.k;
      return args;
    };
    const double bytes = 2.0 * elements + 2.0 * rows * shape.k +
                         (shape.residual  ? 8.0
                          : shape.rounded ? 2.0
                                          : 4.0) *
                             rows * shape.n;
    const double flops = 2.0 * rows * elements;
    separate();
    fmt::print(
        R"({{"product":"{}","n":{},"k":{},"rows":{},"floor_bytes_us":{:.2f},"floor_flops_us":{:.2f},"tiles":{{)",
        shape.name, shape.n, shape.k, rows, bytes / bandwidth * 1e6, flops / kTensorFlops * 1e6);
    const CudaContext here = make_context(nullptr);
    const double floor = std::max(bytes / bandwidth, flops / kTensorFlops) * 1e6;
    const int launches = floor > 1000.0 ? 1 : floor > 100.0 ? 4 : 16;
    const char* comma = "";
    for (const DenseTile tile : kDenseTiles) {
      if (!tile_fits(here, tile)) continue;
      // What is far from its range is left out.
      const int64_t most = tile == DenseTile::kCluster16    ? 32
                           : tile == DenseTile::kCluster32  ? 64
                           : tile == DenseTile::kCluster64  ? 256
                           : tile < DenseTile::kWgmma128x64 ? 2048
                                                            : shape.max_rows;
      if (rows > most || (tile > DenseTile::kCluster64 && rows < 16)) continue;
      const auto product = [&](const CudaContext& context, int i) {
        dense_gemm(context, gemm(i), tile);
      };
      fmt::print(R"({}"{}":[{:.2f},{:.2f}])", comma, tile_name(tile),
                 time_graph(false, launches, 5, product), time_graph(true, launches, 5, product));
      comma = ",";
    }
    fmt::print("}},\"chosen\":\"{}\"}}", tile_name(choose_tile(here, gemm(0))));
    std::fflush(stdout);
  }
}

struct AttentionCase {
  const char* name;
  AttentionTile tile;
  int64_t sequences, context, rows;  // rows: of a sequence, its last ones
};
constexpr AttentionCase kAttentionCases[] = {
    {"decode", AttentionTile::kRow, 1, 512, 1},
    {"decode", AttentionTile::kRow, 1, 4096, 1},
    {"decode", AttentionTile::kRow, 8, 4096, 1},
    {"decode", AttentionTile::kRow, 64, 512, 1},
    {"decode", AttentionTile::kRow, 64, 4096, 1},
    {"decode", AttentionTile::kRow, 256, 512, 1},
    {"decode", AttentionTile::kRow, 256, 4096, 1},
    {"prefill", AttentionTile::kRuns, 1, 4096, 4096},
    {"prefill", AttentionTile::kRuns, 16, 1024, 1024},
    {"chunk", AttentionTile::kRuns, 1, 4096, 512},
    {"packed", AttentionTile::kRuns, 256, 64, 64},
    {"prefill, mma.sync", AttentionTile::kRunsMma, 1, 4096, 4096},
    {"prefill, mma.sync", AttentionTile::kRunsMma, 16, 1024, 1024},
    {"packed, mma.sync", AttentionTile::kRunsMma, 256, 64, 64}};

void bench_attention(const AttentionCase& c, double bandwidth) {
  const HeadShape shape = {32, 4, 128};
  const int64_t rows = c.sequences * c.rows;
  const int64_t max_pages = (c.context + 15) / 16;
  const int64_t pages = c.sequences * max_pages;
  Rows list;
  for (int32_t s = 0; s < c.sequences; ++s) {
    list.add(s, static_cast<int32_t>(c.context - c.rows), static_cast<int32_t>(c.context));
  }
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  RandomSequence random(1, RandomStream::kShuffle, 0);
  for (int64_t i = pages - 1; i > 0; --i) {
    std::swap(table[i], table[random.below(static_cast<uint32_t>(i + 1))]);
  }
  const double kv_bytes = 2.0 * pages * shape.page_elements();
  const int64_t sets = std::max<int64_t>(1, static_cast<int64_t>(3e8 / kv_bytes));
  DevicePlaces places(list, table, max_pages);
  DeviceArray<Bf16> kv(pages * shape.page_elements() * sets), q(rows * shape.q_width()),
      out(rows * shape.q_width());
  fill_random(&kv, 1);
  fill_random(&q, 2);
  DeviceArray<uint8_t> scratch(attention_scratch_bytes(shape, rows, c.context, c.tile));
  const auto launch = [&](const CudaContext& context, int i) {
    AttentionRows args;
    args.shape = shape;
    args.places = places.places;
    args.scale = 1.0F / std::sqrt(128.0F);
    args.max_context = c.context;
    args.q = q.data();
    args.kv = kv.data() + i % sets * pages * shape.page_elements();
    args.pages = pages;
    args.scratch = scratch.size() == 0 ? nullptr : scratch.data();
    args.out = out.data();
    attention_rows(context, args, c.tile);
  };
  // A causal row at position p sees p + 1 keys and values, in two products.
  double seen = 0.0;
  for (const int32_t position : list.positions) seen += position + 1;
  const double flops = seen * 4.0 * shape.q_width();
  const double bytes = kv_bytes + 4.0 * rows * shape.q_width();
  const int launches = kv_bytes > 1e9 ? 4 : 8;
  separate();
  fmt::print(
      R"({{"attention":"{}","sequences":{},"context":{},"rows":{},"floor_bytes_us":{:.2f},"floor_flops_us":{:.2f},"us":[{:.2f},{:.2f}]}})",
      c.name, c.sequences, c.context, rows, bytes / bandwidth * 1e6, flops / kTensorFlops * 1e6,
      time_graph(false, launches, 5, launch), time_graph(true, launches, 5, launch));
  std::fflush(stdout);
}

// Memory-bound: FP32 in, BF16 out.
void bench_qkv(int64_t rows, double bandwidth) {
  const HeadShape shape = {32, 4, 128};
  Rows list;
  for (int32_t s = 0; s < rows; ++s) list.add(s, 100, 101);
  std::vector<int32_t> table(rows * 7);
  std::iota(table.begin(), table.end(), 0);
  DevicePlaces places(list, table, 7);
  DeviceArray<float> qkv(bell(rows * shape.qkv_width(), 1)), cos(bell(101 * 64, 2)),
      sin(bell(101 * 64, 3));
  DeviceArray<Bf16> norm(bell_bf16(128, 4)), q(rows * shape.q_width()),
      kv(table.size() * shape.page_elements());
  const auto launch = [&](const CudaContext& context, int) {
    QkvRows args;
    args.shape = shape;
    args.places = places.places;
    args.qkv = qkv.data();
    args.q_norm = norm.data();
    args.k_norm = norm.data();
    args.eps = 1e-6F;
    args.cos = cos.data();
    args.sin = sin.data();
    args.q = q.data();
    args.kv = kv.data();
    qkv_rows(context, args);
  };
  separate();
  fmt::print(R"({{"qkv_rows":{},"floor_bytes_us":{:.2f},"us":[{:.2f},{:.2f}]}})", rows,
             6.0 * rows * shape.qkv_width() / bandwidth * 1e6, time_graph(false, 16, 5, launch),
             time_graph(true, 16, 5, launch));
}

}  // namespace

void run_dense_bench(const char* only) {
  const std::string_view name = only;
  const CudaContext context = make_context(nullptr);
  const double bandwidth = bench::copy_bandwidth();
  fmt::print(
      R"({{"benchmark":"cuda_dense","notes":"us: [apart, launches overlapped]","multiprocessors":{},)"
      R"("capability":{},"copy_bytes_per_s":{:.4g},"rows":[)",
      context.multiprocessors, context.capability, bandwidth);
  if (name.empty()) {
    for (const int64_t rows : {8, 256, 4096}) bench_qkv(rows, bandwidth);
  }
  for (const DenseShape& shape : kDenseShapes) {
    if (name.empty() || name == shape.name) bench_dense(shape, bandwidth);
  }
  for (const AttentionCase& c : kAttentionCases) {
    if (!name.empty() && name != "attention") continue;
    bench_attention(c, bandwidth);
  }
  fmt::print("\n]}}\n");
}

}  // namespace quads::kernels::cuda
