// What lies between choosing a tile and its kernel.
#pragma once

#include "kernels/cuda/experts/grouped_gemm.h"

namespace quads::kernels::cuda {

/// A GroupedGemm as the kernels take it.
struct GemmArgs {
  const uint8_t* weights;
  const float* global_scales;
  const int32_t* expert_offsets;
  const uint16_t* q1;
  const uint16_t* q2;
  const float* row_scales;  // of FP16 images; null: images are BF16
  void* y;
  int experts;
  int n;
  int stages;
  int residual_stages;
  float weight_factor;  // of the decoder
  GemmOutput output;
};

/// Experts' segments of 8 rows that a block of the 64x8 kernel keeps a list of.
inline constexpr int kMaxSegments = 32;

/// Shared memory of a block, its static part included.
int shared_bytes_mma_64x8(const GemmArgs& args);
int shared_bytes_mma_256x32();
int shared_bytes_mma_256x32_fp8();
int shared_bytes_mma_128x32_bf16();

void launch_mma_64x8(const CudaContext& context, const GemmArgs& args);
void launch_mma_256x32(const CudaContext& context, const GemmArgs& args);
void launch_mma_256x32_fp16(const CudaContext& context, const GemmArgs& args);
void launch_mma_256x32_fp8(const CudaContext& context, const GemmArgs& args);
void launch_mma_128x32_bf16(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_512x48(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_512x48_fp16(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_256x96(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_256x96_fp16(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_128x192(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_256x96_fp8(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_128x96_fp8(const CudaContext& context, const GemmArgs& args);
void launch_wgmma_128x96_bf16(const CudaContext& context, const GemmArgs& args);

}  // namespace quads::kernels::cuda
