// How large a micro-batch is on a GPU.
#include "trainer/micro_batch.h"

#include <gtest/gtest.h>

#include "model/side.h"

namespace quads::testing {
namespace {

ModelConfig thirty_billion() {
  ModelConfig c = moe_config();
  c.vocab_size = 151936;
  c.hidden_size = 2048;
  c.num_hidden_layers = 48;
  c.num_attention_heads = 32;
  c.num_key_value_heads = 4;
  c.head_dim = 128;
  c.moe_intermediate_size = 768;
  c.num_experts = 128;
  c.num_experts_per_tok = 8;
  c.mlp_only_layers.clear();
  return c;
}

TEST(MicroBatch, SmallModelsTakeTheLargestAndLargeOnesWhatFits) {
  EXPECT_EQ(default_micro_batch(moe_config(), false), kLargestMicroBatch);
  const ModelConfig large = thirty_billion();
  const int64_t rows = default_micro_batch(large, false);
  EXPECT_GT(rows, kMicroBatchRows);
  EXPECT_LT(rows, kLargestMicroBatch);
  EXPECT_LE(rows * micro_batch_row_bytes(large, false), kMicroBatchBytes);
  EXPECT_GT(default_micro_batch(large, true), rows);  // fewer activations are kept
  ModelConfig huge = large;
  huge.hidden_size *= 16;
  EXPECT_EQ(default_micro_batch(huge, false), kMicroBatchRows);
}

TEST(MicroBatch, WiderPartsTakeMore) {
  const ModelConfig base = moe_config();
  const auto grows = [&](auto change) {
    ModelConfig c = base;
    change(c);
    EXPECT_GT(micro_batch_row_bytes(c, false), micro_batch_row_bytes(base, false));
  };
  grows([](ModelConfig& c) { c.hidden_size *= 2; });
  grows([](ModelConfig& c) { ++c.num_hidden_layers; });
  grows([](ModelConfig& c) { c.moe_intermediate_size *= 2; });
  grows([](ModelConfig& c) { ++c.num_experts_per_tok; });
  grows([](ModelConfig& c) { c.shared_expert_intermediate_size = 1024; });
  grows([](ModelConfig& c) { c.intermediate_size = 1024; });
  grows([](ModelConfig& c) { c.num_attention_heads *= 2; });
}

}  // namespace
}  // namespace quads::testing
