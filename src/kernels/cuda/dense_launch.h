// What lies between choosing a dense product's tile and its kernel.
#pragma once

#include "kernels/cuda/dense_gemm.h"

namespace quads::kernels::cuda {

/// A DenseGemm as the kernels take it, beside the tensor maps of x and the weight.
struct DenseArgs {
  const uint16_t* bias;
  const float* residual;
  void* y;
  const int32_t* row_count;
  int rows;
  int n;
  int stages;       // of 64 k
  int part_stages;  // of a part of K
  bool y_is_bf16;
};

void launch_dense_cluster(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args,
                          int tile_rows);
void launch_dense_wgmma(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args,
                        int tile_rows, int tile_n);
void launch_dense_wgmma_split(const CudaContext& context, const DenseGemm& gemm,
                              const DenseArgs& args);

}  // namespace quads::kernels::cuda
