// Speed of the backward's products at the shapes of OLMoE-1B-7B and Qwen3-30B-A3B.
#include <fmt/format.h>

#include <cstdio>

#include "base/random.h"
#include "bench/graph_time.h"
#include "kernels/cuda/bench.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/fill_random.h"
#include "kernels/cuda/gradients/gradient_gemm.h"

namespace quads::kernels::cuda {
namespace {

using bench::time_graph;

struct Product {
  const char* name;
  int experts;
  int64_t rows;  // of all experts
  int64_t m, n;  // dy's and x's columns
};
constexpr Product kProducts[] = {
    {"OLMoE gate_up", 64, 131072, 2048, 2048}, {"OLMoE down", 64, 131072, 2048, 1024},
    {"OLMoE qkv", 1, 16384, 6144, 2048},       {"OLMoE head", 1, 2048, 50304, 2048},
    {"30B gate_up", 128, 131072, 1536, 2048},  {"30B down", 128, 131072, 2048, 768}};

// Rows that a router without preferences gives to the experts.
std::vector<int32_t> random_offsets(int experts, int64_t rows) {
  RandomSequence random(1, RandomStream::kTask, 0);
  std::vector<int32_t> offsets(static_cast<size_t>(experts + 1));
  for (int64_t r = 0; r < rows; ++r) {
    ++offsets[1 + random.below(static_cast<uint32_t>(experts))];
  }
  for (size_t e = 1; e < offsets.size(); ++e) offsets[e] += offsets[e - 1];
  return offsets;
}

void fill(DeviceArray<Bf16>& values) {
  const auto count = static_cast<int64_t>(values.size());
  fill_random(
      make_context(nullptr),
      {.values = values.data(), .count = count, .first = 0, .valid = count, .deviation = 1});
}

void print_product(const Product& p, const char* end) {
  DeviceArray<Bf16> dy(static_cast<size_t>(p.rows * p.m)), x(static_cast<size_t>(p.rows * p.n));
  DeviceArray<Bf16> weight(static_cast<size_t>(p.experts * p.m * p.n));
  DeviceArray<float> dx(static_cast<size_t>(p.rows * p.n));
  DeviceArray<float> dw(static_cast<size_t>(p.experts * p.m * p.n));
  for (DeviceArray<Bf16>* values : {&dy, &x, &weight}) fill(*values);
  dw.fill_bytes(0);
  DeviceArray<int32_t> offsets(random_offsets(p.experts, p.rows));
  const ExpertRows rows{
      .experts = p.experts, .offsets = p.experts > 1 ? offsets.data() : nullptr, .rows = p.rows};
  const double flops = 2.0 * static_cast<double>(p.rows * p.m) * static_cast<double>(p.n);
  fmt::print(R"({{"product":"{}","experts":{},"rows":{},"m":{},"n":{})", p.name, p.experts, p.rows,
             p.m, p.n);
  for (const GradientKernel kernel : {GradientKernel::kMma, GradientKernel::kWgmma}) {
    if (kernel == GradientKernel::kWgmma && make_context(nullptr).capability != 90) continue;
    const char* name = kernel == GradientKernel::kMma ? "mma" : "wgmma";
    const double input = time_graph(false, 3, 3, [&](const CudaContext& context, int) {
      input_gradient(context, {.experts = rows,
                               .dy = dy.data(),
                               .lddy = p.m,
                               .weight = weight.data(),
                               .stride = p.m * p.n,
                               .n = p.n,
                               .k = p.m,
                               .dx = dx.data(),
                               .kernel = kernel});
    });
    const double of_weight = time_graph(false, 3, 3, [&](const CudaContext& context, int) {
      weight_gradient(context, {.experts = rows,
                                .dy = dy.data(),
                                .lddy = p.m,
                                .x = x.data(),
                                .m = p.m,
                                .n = p.n,
                                .dw = dw.data(),
                                .stride = p.m * p.n,
                                .kernel = kernel});
    });
    fmt::print(
        R"(,"{0}":{{"dx_us":{1:.0f},"dx_tflops":{2:.0f},"dw_us":{3:.0f},"dw_tflops":{4:.0f}}})",
        name, input, flops / input / 1e6, of_weight, flops / of_weight / 1e6);
  }
  fmt::print("}}{}\n", end);
  std::fflush(stdout);
}

}  // namespace

void run_gradients_bench() {
  fmt::print(
      R"({{"benchmark":"cuda_gradients","notes":"dx FP32 written, dw FP32 added to","products":[)"
      "\n");
  for (const Product& product : kProducts) {
    print_product(product, &product == std::end(kProducts) - 1 ? "" : ",");
  }
  fmt::print("]}}\n");
}

}  // namespace quads::kernels::cuda
