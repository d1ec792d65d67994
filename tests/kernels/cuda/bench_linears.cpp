// Speed of grouped products of one matrix, which every row takes: attention's projections, dense
// feed-forward layers, shared experts.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "bench/device_copy.h"
#include "bench/graph_time.h"
#include "kernels/cuda/bench.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/grouped_gemm.h"

namespace quads::kernels::cuda {
namespace {

using bench::time_graph;

struct Linear {
  const char* name;
  int64_t n, k;
};
constexpr Linear kLinears[] = {{"qkv", 5120, 2048},
                               {"o", 2048, 4096},
                               {"shared gate_up", 11264, 2048},
                               {"shared down", 2048, 5632},
                               {"dense gate_up", 24576, 4096},
                               {"dense down", 4096, 12288}};
constexpr int kRows[] = {1, 8, 16, 32, 64, 128, 256, 1024};
constexpr int64_t kRotated = int64_t{160} << 20;  // bytes of weights: more than the L2 cache

struct Form {
  const char* name;
  WeightFormat format;
  bool compensated;  // in all blocks
};
constexpr Form kForms[] = {{"nvfp4", WeightFormat::kNvfp4, false},
                           {"nvfp4-rac100", WeightFormat::kNvfp4, true},
                           {"fp8", WeightFormat::kFp8, false},
                           {"bf16", WeightFormat::kBf16, false}};

void print_linear(const Linear& linear, const Form& form, double bandwidth, const char* end) {
  const int64_t bytes = fragment_bytes(linear.n, linear.k, form.format);
  const int64_t copies = std::max<int64_t>(kRotated / bytes, 1);
  DeviceArray<uint8_t> weights(static_cast<size_t>(copies * bytes));
  weights.fill_bytes(0);
  const int stages = stages_of(linear.k);
  const int64_t image = image_elements(kRows[std::size(kRows) - 1], 1, stages);
  DeviceArray<Bf16> q1(static_cast<size_t>(image)), q2(static_cast<size_t>(image));
  DeviceArray<float> y(static_cast<size_t>(kRows[std::size(kRows) - 1] * linear.n));
  q1.fill_bytes(0);
  q2.fill_bytes(0);
  const CudaContext here = make_context(nullptr);
  fmt::print(R"({{"linear":"{}","n":{},"k":{},"format":"{}","floor_bytes_us":{:.1f},"rows":{{)",
             linear.name, linear.n, linear.k, form.name,
             static_cast<double>(bytes) / bandwidth * 1e6);
  const char* comma = "";
  for (const int rows : kRows) {
    DeviceArray<int32_t> offsets(std::vector<int32_t>{0, rows});
    GroupedGemm gemm;
    gemm.experts = 1;
    gemm.n = linear.n;
    gemm.k = linear.k;
    gemm.format = form.format;
    gemm.expert_offsets = offsets.data();
    gemm.q1 = q1.data();
    gemm.q2 = q2.data();
    gemm.residual_stages = form.compensated ? stages : 0;
    gemm.y = y.data();
    gemm.rows_bound = rows;
    fmt::print(R"({}"{}":{{)", comma, rows);
    comma = "";
    for (const GemmTile tile : kGemmTiles) {
      if (!tile_fits(here, gemm, tile)) continue;
      const auto multiply = [&](const CudaContext& context, int i) {
        GroupedGemm one = gemm;
        one.weights = weights.data() + i % copies * bytes;
        grouped_gemm(context, one, tile);
      };
      fmt::print(R"({}"{}":{:.1f})", comma, tile_name(tile), time_graph(true, 12, 5, multiply));
      comma = ",";
    }
    fmt::print(R"({}"chosen":"{}"}})", comma, tile_name(choose_tile(here, gemm)));
    comma = ",";
  }
  fmt::print("}}}}{}\n", end);
  std::fflush(stdout);
}

}  // namespace

void run_linears_bench() {
  const double bandwidth = bench::copy_bandwidth();
  fmt::print(R"({{"benchmark":"cuda_linears","notes":"us, launches overlapped","linears":[)"
             "\n");
  for (const Linear& linear : kLinears) {
    for (const Form& form : kForms) {
      const bool last = &linear == std::end(kLinears) - 1 && &form == std::end(kForms) - 1;
      print_linear(linear, form, bandwidth, last ? "" : ",");
    }
  }
  fmt::print("]}}\n");
}

}  // namespace quads::kernels::cuda
