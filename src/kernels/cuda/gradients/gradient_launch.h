// What lies between checking the arguments of the backward's kernels and the kernels.
#pragma once

#include "kernels/cuda/gradients/attention_backward.h"
#include "kernels/cuda/gradients/gradient_gemm.h"
#include "kernels/cuda/gradients/head_gradients.h"
#include "kernels/cuda/gradients/moe_gradients.h"
#include "kernels/cuda/gradients/row_gradients.h"

namespace quads::kernels::cuda {

/// c = a b, rows of b and c n elements apart. The input's gradient: a is [m, k], and the m rows are
/// the experts'. The weight's: a is [k, m], c += a^T b, and the k rows are the experts'.
struct GradientArgs {
  const uint16_t* a;
  int64_t lda;
  const uint16_t* b;
  int64_t b_stride;  // of experts
  float* c;
  int64_t c_stride;
  int m, n, k;
  int experts;
  const int32_t* offsets;
};
void launch_input_gradient(const CudaContext& context, const GradientArgs& args);
void launch_weight_gradient(const CudaContext& context, const GradientArgs& args);
// The same by wgmma; of an input's gradient b_stride is n k.
void launch_input_gradient_wgmma(const CudaContext& context, const GradientArgs& args);
void launch_weight_gradient_wgmma(const CudaContext& context, const GradientArgs& args);

void launch_attention_backward(const CudaContext& context, const AttentionBackward& args);

void launch_round_values(const CudaContext& context, const float* x, int64_t count, Bf16* out);
void launch_norm_backward(const CudaContext& context, const NormBackward& args);
void launch_qkv_backward(const CudaContext& context, const QkvBackward& args);
void launch_add_partials(const CudaContext& context, const float* partials, int64_t count,
                         int64_t width, float* sums);

void launch_image_values(const CudaContext& context, const ImageValues& args);
void launch_expert_outputs_backward(const CudaContext& context, const ExpertOutputsBackward& args);
void launch_silu_backward(const CudaContext& context, const SiluBackward& args);
void launch_sum_choices(const CudaContext& context, const SumChoices& args);
void launch_route_backward(const CudaContext& context, const RouteBackward& args);

void launch_logp_backward(const CudaContext& context, const LogpBackward& args);
void launch_embed_backward(const CudaContext& context, const EmbedBackward& args);

}  // namespace quads::kernels::cuda
