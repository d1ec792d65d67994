// Speed of the CUDA kernels at the expert shapes of Qwen3-30B-A3B.
#pragma once

namespace quads::kernels::cuda {

/// Prints JSON: copy bandwidth, then a row per shape, tokens and compensation: the time of every
/// tile, apart and with launches overlapped, and of the quantiser.
void run_bench();

}  // namespace quads::kernels::cuda
