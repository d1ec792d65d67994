// The router: softmax over all experts, then the top k.
#pragma once

#include "kernels/cpu/rows_softmax.inl.h"

namespace quads::kernels::QUADS_ISA {

/// The indices of the top_k largest of n, falling, ties to the lower index; `values` [top_k] gets
/// them too. Keeps the best so far sorted: most elements fail the first comparison.
static inline void select_top_k(const float* z, int64_t n, int64_t top_k, int32_t* ids,
                                float* values) {
  for (int64_t i = 0; i < n; ++i) {
    int64_t at = i < top_k ? i : top_k;
    if (at == top_k) {
      if (!(z[i] > values[top_k - 1])) continue;
      --at;
    }
    for (; at > 0 && z[i] > values[at - 1]; --at) {
      values[at] = values[at - 1];
      ids[at] = ids[at - 1];
    }
    values[at] = z[i];
    ids[at] = static_cast<int32_t>(i);
  }
}

/// weights [top_k]: the probabilities exp(z - m) / sum of the experts `ids`, and their sum, added
/// in the order of ids.
static inline float chosen_probabilities(const float* z, int64_t experts, const int32_t* ids,
                                         int64_t top_k, float* weights) {
  const float largest = row_max(z, experts);
  const float sum = sum_exp(z, experts, 1.0F, largest);
  for (int64_t s = 0; s < top_k; ++s) weights[s] = z[ids[s]];
  for (int64_t s = 0; s < top_k; s += 16) {
    const int lanes = lanes_from(top_k, s);
    const F16 e = exp(load_first(weights + s, lanes) - splat(largest));
    store_first(weights + s, e / splat(sum), lanes);
  }
  float chosen = 0.0F;
  for (int64_t s = 0; s < top_k; ++s) chosen += weights[s];
  return chosen;
}

static void route(const float* logits, int64_t ldl, int64_t rows, int64_t experts, int64_t top_k,
                  bool normalise, const int32_t* forced, int32_t* ids, float* weights) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* z = logits + r * ldl;
    int32_t* row_ids = ids + r * top_k;
    float* row_weights = weights + r * top_k;
    if (forced == nullptr) {
      select_top_k(z, experts, top_k, row_ids, row_weights);
    } else {
      for (int64_t s = 0; s < top_k; ++s) row_ids[s] = forced[r * top_k + s];
    }
    const float chosen = chosen_probabilities(z, experts, row_ids, top_k, row_weights);
    if (normalise) {
      for (int64_t s = 0; s < top_k; ++s) row_weights[s] = row_weights[s] / chosen;
    }
  }
}

// With p the softmax and, over the chosen, w = p / P, P their sum, D = sum of dw w:
// normalised: dz = w (dw - D) on the chosen, 0 elsewhere (the other experts cancel in w);
// otherwise:  dz = p (dp - sum of dp p) on all, dp = dw on the chosen, 0 elsewhere.
static void route_backward(const float* logits, int64_t ldl, int64_t rows, int64_t experts,
                           int64_t top_k, bool normalise, const int32_t* ids, const float* dweights,
                           float* dlogits) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* z = logits + r * ldl;
    const int32_t* row_ids = ids + r * top_k;
    const float* dw = dweights + r * top_k;
    float* dz = dlogits + r * ldl;
    const float largest = row_max(z, experts);
    const float sum = sum_exp(z, experts, 1.0F, largest);
    for (int64_t i = 0; i < experts; i += 16) {
      const int lanes = lanes_from(experts, i);
      store_first(dz + i, exp(load_first(z + i, lanes) - splat(largest)) / splat(sum), lanes);
    }
    // dz holds p until the last loops.
    float chosen = 0.0F;
    float mean = 0.0F;
    for (int64_t s = 0; s < top_k; ++s) chosen += dz[row_ids[s]];
    for (int64_t s = 0; s < top_k; ++s) mean += dw[s] * dz[row_ids[s]];
    if (normalise) mean = mean / chosen;
    const float others = normalise ? 0.0F : -mean;
    const float divisor = normalise ? chosen : 1.0F;
    for (int64_t i = 0; i < experts; ++i) dz[i] = dz[i] * others;
    for (int64_t s = 0; s < top_k; ++s) {
      const float p = exp_scalar(z[row_ids[s]] - largest) / sum;
      dz[row_ids[s]] = p / divisor * (dw[s] - mean);
    }
  }
}

}  // namespace quads::kernels::QUADS_ISA
