// Matrix products: this project's core in every weight format, ATen's BF16 linear, and the memory.
#pragma once

#include <vector>

#include "bench/result.h"
#include "kernels/cpu/context.h"

namespace quads::bench {

struct GemmShape {
  int64_t n, k;
  bool beyond_cache;  // at M = 1: rotate over weights that the caches cannot hold, as experts do
};

/// Figures: us, gflops (2 M N K, whatever compensation adds), x_aten (ATen's time over this one),
/// and at M = 1 beyond the caches weight_gb_s and of_bandwidth. Activations are quantised before.
Result bench_gemm(kernels::CpuRuntime& runtime, const std::vector<GemmShape>& shapes,
                  const std::vector<int64_t>& rows);

}  // namespace quads::bench
