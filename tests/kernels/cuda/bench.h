// Speed of the CUDA kernels at the expert shapes of Qwen3-30B-A3B.
#pragma once

namespace quads::kernels::cuda {

/// Prints JSON: copy bandwidth; `products`, a row per format, shape, tokens and compensation with
/// the time of every tile, apart and with launches overlapped, and of the quantiser; `layers`, a
/// row per format, tokens and compensation with the time of all of a layer's experts; `sampling`, a
/// row per number of rows of logits.
void run_bench();

/// The same for dense products, attention and what lies between, at the shapes of the model.
void run_dense_bench();

}  // namespace quads::kernels::cuda
