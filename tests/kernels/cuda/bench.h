// Speed of the CUDA kernels at the expert shapes of Qwen3-30B-A3B.
#pragma once

namespace quads::kernels::cuda {

/// Prints JSON: copy bandwidth; `products`, a row per format, shape, tokens and compensation with
/// the time of every tile, apart and with launches overlapped, and of the quantiser; `layers`, a
/// row per format, tokens and compensation with the time of all of a layer's experts; `sampling`, a
/// row per number of rows of logits. `only`: one format, by its name; empty: all and sampling.
void run_bench(const char* only);

/// The same for dense products, attention and what lies between, at the shapes of the model.
/// `only`: one product, or "attention".
void run_dense_bench(const char* only);

/// Every tile at products of one matrix, of several shapes.
void run_linears_bench();

/// The backward's products, by mma.sync and by wgmma.
void run_gradients_bench();

}  // namespace quads::kernels::cuda
