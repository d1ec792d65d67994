// What lies between choosing a dense product's tile and its kernel.
#pragma once

#include "kernels/cuda/dense/dense_gemm.h"

namespace quads::kernels::cuda {

/// A DenseGemm as the kernels take it, beside the tensor maps of x and the weight.
struct DenseArgs {
  const uint16_t* bias;
  const float* residual;
  void* y;
  const int32_t* row_count;
  int rows;
  int row_tiles;  // equally high, but for the last
  int tile_rows;  // of x in a tile, a multiple of 8; what a box of the copy engine brings
  int n;
  int stages;       // of 64 k
  int part_stages;  // of a part of K
  bool y_is_bf16;
};

/// Cuts the rows into tiles of at most `most`, in whole groups of `together` tiles. Rows outside a
/// matrix cost the copy engine more than others: boxes are no higher than they need be, and what
/// lies behind them in shared memory has no influence.
inline void cut_rows(DenseArgs& args, int most, int together = 1) {
  args.row_tiles = (args.rows + most * together - 1) / (most * together) * together;
  args.tile_rows = ((args.rows + args.row_tiles - 1) / args.row_tiles + 7) / 8 * 8;
}

void launch_dense_cluster(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args,
                          int tile_rows);
void launch_dense_wgmma(const CudaContext& context, const DenseGemm& gemm, const DenseArgs& args,
                        int tile_rows, int tile_n);
void launch_dense_wgmma_split(const CudaContext& context, const DenseGemm& gemm,
                              const DenseArgs& args, int tile_rows, int tile_n);

}  // namespace quads::kernels::cuda
