// Speed of the CUDA kernels at the shapes of Qwen3-30B-A3B, for who works on them.
#pragma once

namespace quads::kernels::cuda {

/// Prints JSON: `experts`, a row per format, tokens and compensation with the times of a layer's
/// small kernels, and one per product with the time of every tile, apart and with launches
/// overlapped; `sampling`, a row per number of rows of logits. `only`: one format's experts, by its
/// name; empty: all. `quads bench gemm --device cuda` times chosen tiles, quantisers and layers
/// beside peers.
void run_bench(const char* only);

/// The same for dense products, attention and what lies between, at the shapes of the model.
/// `only`: one product, or "attention".
void run_dense_bench(const char* only);

/// Every tile at products of one matrix, of several shapes.
void run_linears_bench();

/// The backward's products, by mma.sync and by wgmma.
void run_gradients_bench();

}  // namespace quads::kernels::cuda
