// The backward of causal attention over whole sequences, whose keys and values are in pages.
//
// The forward that it differentiates is the CPU's (attention_kernels.h): s = scale q . k,
// p = bf16(exp(s - max s)), probability = p / sum of p; ds = probability (dp - mean) scale with
// dp = dout . v and mean = sum of probability dp; dq = ds k, dk = ds^T q, dv = probability^T dout.
// Products run on tensor cores in TF32: q, k and v are exact in it, dout, ds and the probabilities
// are rounded to 11 bits. Sums are FP32; each is made by one warp in a fixed order.
#pragma once

#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

inline constexpr int kBackwardTile = 64;  // positions

/// A tile of a sequence's positions; its rows and its pages are consecutive.
struct SequenceTile {
  int32_t first_row;   // of the sequence
  int32_t first_page;  // of the sequence
  int32_t length;      // of the sequence
  int32_t position;    // the tile's first, a multiple of kBackwardTile
};

/// Device pointers, 16-byte aligned.
struct AttentionBackward {
  HeadShape shape;
  int64_t rows = 0;
  const SequenceTile* tiles = nullptr;  // [tile_count] of all sequences
  int64_t tile_count = 0;
  float scale = 0.0F;           // on q . k
  const Bf16* q = nullptr;      // [rows, q_width]
  const Bf16* kv = nullptr;     // [pages][page_elements]
  const float* dout = nullptr;  // [rows, q_width]
  float* stats = nullptr;       // scratch [rows][heads][3]
  float* dq = nullptr;          // [rows, q_width]
  float* dk = nullptr;          // [rows, kv_width]
  float* dv = nullptr;          // [rows, kv_width]
};

/// Launches two kernels. Error on sizes out of range.
void attention_backward(const CudaContext& context, const AttentionBackward& args);

}  // namespace quads::kernels::cuda
