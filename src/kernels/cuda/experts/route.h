// From router logits to places: every row's experts and weights, and all choices sorted by expert.
#pragma once

#include <cstdint>

#include "kernels/cuda/context.h"
#include "kernels/cuda/experts/activation_image.h"

namespace quads::kernels::cuda {

inline constexpr int kMaxTopK = 32;

/// Device pointers. The choice, its order and its weights are those of the CPU's RowKernels::route
/// bit for bit: softmax over all experts, the top_k largest in falling order, ties to the lower
/// index, -0 = +0. A NaN among a row's logits makes all its weights NaN; its experts are distinct
/// and in range, NaNs chosen last.
struct RouteRows {
  const float* logits = nullptr;  // [rows, experts], rows ldl apart
  int64_t ldl = 0;
  int64_t rows = 0;
  int experts = 0;                  // 1..kMaxExperts
  int top_k = 0;                    // 1..kMaxTopK, at most experts
  bool normalise = false;           // divide the weights by their sum
  const int32_t* forced = nullptr;  // [rows, top_k] experts to take (0..experts - 1); null: choose
  int32_t* ids = nullptr;           // [rows, top_k]
  float* weights = nullptr;         // [rows, top_k]
  /// [rows] the weight of a shared expert: the sigmoid of the logit behind the experts'. Null:
  /// none.
  float* shared_weights = nullptr;
};

/// Launches one kernel. Error on sizes out of range.
void route_rows(const CudaContext& context, const RouteRows& args);

/// Choices sorted by expert; within an expert in order of the slots (row * top_k + choice), as on
/// the CPU. Device pointers. A slot whose id is not an expert's goes nowhere.
struct SortSlots {
  const int32_t* ids = nullptr;  // [slots]
  int64_t slots = 0;             // 1..kMaxSlots
  int experts = 0;               // 1..kMaxExperts
  int top_k = 1;
  int32_t* expert_offsets = nullptr;  // [experts + 1]
  int32_t* sorted_rows = nullptr;     // [slots] where each slot went; -1 for nowhere
  ImageRow* image_rows = nullptr;     // [slots] the same in images of the sorted rows
  ImageRow* sorted_image_rows =
      nullptr;                       // [slots] by sorted row: the inputs of `down`; may be null
  int32_t* sorted_tokens = nullptr;  // [slots] by sorted row: slot / top_k; may be null
};
inline constexpr int64_t kMaxSlots = int64_t{1} << 20;

/// Launches one kernel. Sorted rows that no slot took become
/// places that are nowhere. Error on sizes out of range.
void sort_slots(const CudaContext& context, const SortSlots& args);

}  // namespace quads::kernels::cuda
