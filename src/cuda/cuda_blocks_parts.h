// What CudaBlocks holds of a batch, and for a backward.
#pragma once

#include "cuda/cuda_blocks.h"

namespace quads::cuda {

struct CudaBlocks::Batch {
  const int32_t* taken = nullptr;  // the host's tokens: which batch this is
  int64_t rows = 0;
  int64_t pages = 0;
  DeviceRows device;
  MirroredArray<int32_t> tokens, positions, sequences, page_table, routing;
  MirroredArray<kernels::cuda::SequenceTile> tiles;
  // Rows by token, for the embedding's gradient.
  MirroredArray<int32_t> distinct, first_row, rows_by_token;
};

struct CudaBlocks::HeadRows {
  MirroredArray<int32_t> rows, targets;
  MirroredArray<float> logp, entropy, dlogp;
};

struct CudaBlocks::Scratch {
  Scratch(const CudaModel& model, const HeadShape& shape, int64_t rows, int64_t logits_rows);

  DeviceArray<Bf16> dy, dqkv, dlogits, dz;
  DeviceArray<float> dout, stats, dq, dk, dv, dh;
  DeviceArray<float> partials, q_partials, k_partials;
  // By sorted rows, but dweights; the shared expert's slots lie behind the others in the last two.
  DeviceArray<Bf16> inputs, middle, dy_sorted, weighted, dgate_up;
  DeviceArray<float> dmiddle, dinput, dweights;
  DeviceArray<Bf16> weights;  // of one projection
};

}  // namespace quads::cuda
