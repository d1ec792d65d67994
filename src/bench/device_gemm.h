// Products of experts on a GPU: this project's kernels, PyTorch's, and what the chip could do.
#pragma once

#include <string>
#include <vector>

#include "bench/result.h"

namespace quads::bench {

struct DeviceGemmBench {
  std::string shape = "30b";
  std::vector<int64_t> tokens = {8, 64, 256, 1024, 4096, 16384};
};

/// The experts of one layer: products of gate and up and of down by weight format and share of
/// compensated blocks, each with its input's quantiser, then PyTorch's; and the whole layer,
/// routing and combination included. Figures are microseconds and ratios, as the notes say. Error
/// without a device, or where the memory does not suffice.
Result bench_device_gemm(const DeviceGemmBench& options);

}  // namespace quads::bench
