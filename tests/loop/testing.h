// A small run of the training loop: one-digit multiplication with a model from scratch, and a task
// whose calls a test can watch and use to interfere.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "rl/loop.h"
#include "tasks/multiply.h"

namespace quads::testing {

inline ModelConfig run_config(int64_t vocab) {
  ModelConfig c;
  c.vocab_size = vocab;
  c.hidden_size = 32;
  c.intermediate_size = 32;
  c.num_hidden_layers = 2;
  c.num_attention_heads = 2;
  c.num_key_value_heads = 1;
  c.head_dim = 16;
  c.max_position_embeddings = 256;
  c.moe_intermediate_size = 32;
  c.num_experts = 4;
  c.num_experts_per_tok = 2;
  c.norm_topk_prob = true;
  c.initializer_range = 0.2;
  return c;
}

/// One-digit multiplication that calls back when a problem is drawn.
class WatchedTask : public MultiplyTask {
 public:
  WatchedTask() : MultiplyTask({.first_digits = 1, .second_digits = 1}) {}

  Problem train_problem(uint64_t seed, int64_t index) const override {
    if (on_problem) on_problem(index);
    return MultiplyTask::train_problem(seed, index);
  }

  std::function<void(int64_t index)> on_problem;
};

/// Rewards a response by the parity of its length, so that a model from scratch has something to
/// learn, and calls back before each.
class WatchedReward : public Reward {
 public:
  std::vector<RewardResult> score(std::span<const RewardRequest> requests) override {
    std::vector<RewardResult> results;
    for (const RewardRequest& request : requests) {
      RewardResult& result = results.emplace_back();
      result.value = static_cast<double>(request.response.size() % 2);
      if (on_reward) on_reward(result);
    }
    return results;
  }

  /// May change the result.
  std::function<void(RewardResult&)> on_reward;
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest()
      : tokenizer_(task_.vocabulary().value()), parameters_(run_config(tokenizer_.vocab_size())) {
    parameters_.initialise(3);
    std::string name = (std::filesystem::temp_directory_path() / "quads-loop-XXXXXX").string();
    directory_ = mkdtemp(name.data());
    silence_ = open("/dev/null", O_WRONLY);
  }
  ~LoopTest() override {
    close(silence_);
    std::filesystem::remove_all(directory_);
  }

  static RlOptions options(const char* recipe, int64_t steps) {
    RlOptions o;
    o.recipe = make_recipe(recipe, {});
    o.num_rollout = steps;
    o.rollout_batch_size = 2;
    o.n_samples_per_prompt = 4;
    o.max_response_len = 8;
    o.kv_memory = int64_t{1} << 20;
    o.lr.lr = 1e-3;
    o.loss.max_response_length = o.max_response_len;
    o.eval_problems = 4;
    return o;
  }

  /// Runs until `options.num_rollout` or `stop`; returns the steps done.
  int64_t run(const RlOptions& options) {
    kernels::CpuRuntime runtime(kernels::best_isa(), 2);
    RlRun loop(runtime, parameters_, task_, reward_, tokenizer_, {*tokenizer_.eos_id()}, options,
               kernels_);
    if (resume_) loop.resume(directory_);
    Progress progress({.total = options.num_rollout, .log_every_s = 1e9, .fd = silence_});
    loop.run(directory_, stop_, progress);
    return loop.step();
  }

  WatchedTask task_;
  WatchedReward reward_;
  CharacterTokenizer tokenizer_;
  Parameters parameters_;
  std::filesystem::path directory_;
  std::atomic<bool> stop_{false};
  bool resume_ = false;
  ForeignKernels kernels_;  // for trainer_kernels == kAten

 private:
  int silence_ = -1;
};

}  // namespace quads::testing
