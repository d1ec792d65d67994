// What lies between checking a quantisation's arguments and its kernels.
#pragma once

#include "kernels/cuda/quantize/quantize_rows.h"

namespace quads::kernels::cuda {

struct QuantizeShape {
  int row_threads;  // of a row: one a block of the padded K
  int block_rows;
  int stages;
  int residual_stages;
  int groups;        // of block_rows rows
  int blocks;        // of threads, which take groups in turn
  int shared_bytes;  // rows of q1 and q2, their places, residual sums
};

void launch_quantize_nvfp4(const CudaContext& context, const QuantizeRows& args,
                           const QuantizeShape& shape);
void launch_quantize_plain(const CudaContext& context, const QuantizeRows& args,
                           const QuantizeShape& shape);

}  // namespace quads::kernels::cuda
