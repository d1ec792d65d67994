// Models that several tests of blocks on a GPU run, and how their results are compared.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "model/side.h"

namespace quads::testing {

/// Many experts, few rows each; heads of 128 values, four to a key; sums long enough that their
/// order matters.
inline ModelConfig wide_config() {
  ModelConfig c = moe_config();
  c.hidden_size = 256;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 1;
  c.head_dim = 128;
  c.moe_intermediate_size = 160;
  c.num_experts = 20;
  c.num_experts_per_tok = 5;
  c.norm_topk_prob = false;
  c.initializer_range = 0.08;
  return c;
}

/// A QK norm over all heads, of heads that no tile divides.
inline ModelConfig whole_norm_config() {
  ModelConfig c = olmoe_config();
  c.head_dim = 48;
  return c;
}

/// The norm of the difference, relative to b's.
inline double relative_error(const float* a, const float* b, int64_t count) {
  double difference = 0.0, norm = 0.0;
  for (int64_t i = 0; i < count; ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  if (norm == 0.0) return difference == 0.0 ? 0.0 : 1.0;
  return std::sqrt(difference / norm);
}
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  return relative_error(a.data(), b.data(), std::ssize(b));
}

}  // namespace quads::testing
