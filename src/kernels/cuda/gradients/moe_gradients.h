// What the backward of a layer's experts does besides its products. Formulas and the order of a
// row's sums are those of the CPU (kernels/cpu/moe_block.cpp and its row kernels). Slots are pairs
// of a row and one of its choices, row * top_k + choice; sorted rows are slots sorted by expert
// (route.h). Device pointers, 16-byte aligned.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/activation_image.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// What a product's quantised rows stand for, in the natural order of K: bf16(q1 + q2) in the
/// blocks that are compensated, q1 in the others; of an FP16 image bf16(q) of all.
struct ImageValues {
  const Bf16* q1 = nullptr;  // images (quantize_rows.h)
  const Bf16* q2 = nullptr;
  const float* row_scales = nullptr;     // of an FP16 image, q1; null: images are BF16
  const ImageRow* image_rows = nullptr;  // [rows]; rows that are nowhere are left alone
  int64_t rows = 0;
  int64_t k = 0;                            // a multiple of 16
  const int32_t* block_position = nullptr;  // [k / 16]; null: the natural order
  int residual_blocks = 0;
  Bf16* values = nullptr;  // [rows, k]
};
/// Launches one kernel. Error on sizes out of range.
void image_values(const CudaContext& context, const ImageValues& args);

/// The gradients of what experts give, as operands: bf16(dy) and bf16(weight * dy) of every slot's
/// row, by sorted row.
struct ExpertOutputsBackward {
  const float* dy = nullptr;             // [rows, d]
  const int32_t* sorted_rows = nullptr;  // [rows, top_k]
  const float* weights = nullptr;        // [rows, top_k]
  int64_t rows = 0;
  int64_t d = 0;  // a multiple of 4
  int top_k = 1;
  Bf16* dy_sorted = nullptr;  // [slots, d]
  Bf16* weighted = nullptr;   // [slots, d]
};
/// Launches one kernel. Error on sizes out of range.
void expert_outputs_backward(const CudaContext& context, const ExpertOutputsBackward& args);

/// From the gradients of the experts' intermediate rows, not yet weighted, to those of their gates
/// and ups, and of the weights: dweights = dh . h.
struct SiluBackward {
  const float* gate_up = nullptr;        // [slots, 2 width], sorted
  const float* dh = nullptr;             // [slots, width], sorted
  const Bf16* h = nullptr;               // [slots, width], sorted: what `down` multiplied
  const int32_t* sorted_rows = nullptr;  // [slots]
  const float* weights = nullptr;        // [slots]
  int64_t slots = 0;
  int64_t width = 0;          // a multiple of 16
  Bf16* dgate_up = nullptr;   // [slots, 2 width], sorted
  float* dweights = nullptr;  // [slots]
};
/// Launches one kernel. Error on sizes out of range.
void silu_backward(const CudaContext& context, const SiluBackward& args);

/// sums[r] = base[r] + the parts of its choices, in order.
struct SumChoices {
  const float* base = nullptr;           // [rows, d]; null: 0. May be sums
  const float* parts = nullptr;          // [slots, d], sorted
  const int32_t* sorted_rows = nullptr;  // [rows, top_k]
  int64_t rows = 0;
  int64_t d = 0;  // a multiple of 4
  int top_k = 1;
  float* sums = nullptr;  // [rows, d]
};
/// Launches one kernel. Error on sizes out of range.
void sum_choices(const CudaContext& context, const SumChoices& args);

/// The gradient of router logits against that of the weights, rounded; zeros beyond the experts,
/// and beyond the shared expert's gate, which follows them.
struct RouteBackward {
  const float* logits = nullptr;  // [rows, experts], rows ldl apart
  int64_t ldl = 0;
  int64_t rows = 0;
  int experts = 0;  // 1..kMaxExperts
  int top_k = 1;
  bool normalise = false;
  const int32_t* ids = nullptr;     // [rows, top_k]
  const float* dweights = nullptr;  // [rows, top_k]
  // [rows] the shared expert's (route.h), and their gradient; null: none.
  const float* shared_weights = nullptr;
  const float* shared_dweights = nullptr;
  int64_t ldd = 0;
  Bf16* dlogits = nullptr;  // [rows, ldd]
};
/// Launches one kernel. Error on sizes out of range.
void route_backward(const CudaContext& context, const RouteBackward& args);

}  // namespace quads::kernels::cuda
