// What the loop does when something goes wrong between rollout and update, or a stop comes there.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "io/jsonl.h"
#include "report/metrics_file.h"
#include "tests/loop/testing.h"
#include "tests/rl/expect_error.h"

namespace quads::testing {
namespace {

// Changes the last bit of a norm's first weight while the second step's rollout is rewarded, so
// that rollout and trainer see different weights.
void tamper_in_the_second_step(WatchedReward& reward, Parameters& parameters) {
  reward.on_reward = [&parameters, calls = 0](RewardResult&) mutable {
    constexpr int kRewardsOfAStep = 2 * 4;
    if (++calls != kRewardsOfAStep + 1) return;
    const ParameterLayout& layout = parameters.layout();
    parameters.values()[layout.at(layout.final_norm).offset].bits ^= 1;
  };
}

class Replaying : public LoopTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipe, Replaying,
                         ::testing::Values("bf16", "fp8", "w4a16", "qat-w4a4", "quads-aligned"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST_P(Replaying, AGapThatMustBeZeroAndIsNotEndsTheRunBeforeTheUpdate) {
  RlOptions o = options(GetParam(), 5);
  tamper_in_the_second_step(reward_, parameters_);
  expect_error([&] { run(o); }, "step 1: recipe " + o.recipe.name + " replays the rollout");
  EXPECT_FALSE(std::filesystem::exists(directory_ / "checkpoints"));
}

TEST_P(Replaying, RunsThroughWhenNothingInterferes) { EXPECT_EQ(run(options(GetParam(), 5)), 5); }

TEST_F(LoopTest, ARecipeWithAGapDoesNotDemandThatItIsZero) {
  tamper_in_the_second_step(reward_, parameters_);
  EXPECT_EQ(run(options("nvfp4", 3)), 3);
}

TEST_F(LoopTest, TheWholeRolloutIsVerifiedNotOnlyTheFirstMiniBatch) {
  // A change that shows only in tokens of the second mini-batch: the embedding of a prompt token
  // that the first prompt does not have.
  RlOptions o = options("quads-aligned", 1);
  o.global_batch_size = 4;
  o.verify_interval = 1;
  const Problem first = task_.train_problem(o.seed, 0), second = task_.train_problem(o.seed, 1);
  const size_t apart = second.prompt.find_first_not_of(first.prompt);
  ASSERT_NE(apart, std::string::npos) << first.prompt << ' ' << second.prompt;
  const int32_t token = tokenizer_.encode(second.prompt.substr(apart, 1)).front();
  reward_.on_reward = [&, done = false](RewardResult&) mutable {
    if (done) return;
    done = true;
    const Parameter& embedding = parameters_.layout().at(parameters_.layout().embedding);
    Bf16* row = parameters_.values() + embedding.offset + token * embedding.cols;
    for (int64_t i = 0; i < embedding.cols; ++i) row[i].bits ^= 0x10;
  };
  expect_error([&] { run(o); }, "the whole rollout differs");
}

TEST_F(LoopTest, AResponseWithoutARewardIsNotTrainedOnAndIsCounted) {
  // One of each group of four, and in the second step all but one of the first group.
  reward_.on_reward = [calls = 0](RewardResult& result) mutable {
    const int step = calls / 8, sample = calls % 8;
    ++calls;
    const bool training = step < 3;  // what comes after is the evaluation
    if (training && (sample % 4 == 0 || (step == 1 && sample < 3))) {
      result.failure = "the worker died";
    }
  };
  RlOptions o = options("quads-aligned", 3);
  o.verify_interval = 1;
  o.global_batch_size = 4;  // a group each: the second step's first update has no samples
  o.eval_problems = 1;
  EXPECT_EQ(run(o), 3);
  const std::vector<MetricsLine> rows = read_metrics_file(directory_ / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].values.at("reward/failed"), 2);
  EXPECT_EQ(rows[1].values.at("reward/failed"), 4);
  for (const MetricsLine& row : rows) {
    EXPECT_TRUE(std::isfinite(row.values.at("reward/mean")));
    EXPECT_TRUE(std::isfinite(row.values.at("train/loss")));
    EXPECT_EQ(row.values.at("gap/max"), 0);
  }
  int failures = 0;
  for_each_jsonl(directory_ / "samples.jsonl", [&](const Json& line, const std::string&) {
    failures += line["reward"].is_null() && line["reward_failure"] == "the worker died";
  });
  EXPECT_EQ(failures, 6);
}

TEST_F(LoopTest, RewardsThatFailChangeNothingForTheOthers) {
  // A failed response must be as if it had not been sampled: a group in which it fails and the
  // others are equal teaches nothing, so the weights stay as they are.
  reward_.on_reward = [calls = 0](RewardResult& result) mutable {
    result.value = 1;
    if (calls++ % 4 == 0) result = {.value = 0, .failure = "died"};
  };
  const std::vector<Bf16> before(parameters_.values(),
                                 parameters_.values() + parameters_.layout().total);
  RlOptions o = options("bf16", 1);
  o.trainer.adamw.weight_decay = 0;
  EXPECT_EQ(run(o), 1);
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(before[i].bits, parameters_.values()[i].bits) << i;
  }
}

TEST_F(LoopTest, ARolloutThatLeavesNoGroupEndsTheRunWithTheFirstCause) {
  reward_.on_reward = [calls = 0](RewardResult& result) mutable {
    if (calls++ % 4 != 3) result.failure = fmt::format("worker {} died", calls);
  };
  expect_error([&] { run(options("quads", 3)); },
               "step 0: 6 of 8 responses could not be scored, which leaves no group to learn from; "
               "first: worker 1 died");
}

TEST_F(LoopTest, AnInterruptedRewardEndsTheRunAsIfTheRolloutHadNotBeen) {
  reward_.on_reward = [&, calls = 0](RewardResult&) mutable {
    if (++calls > 8) {
      stop_ = true;
      throw Interrupted("stopped");
    }
  };
  EXPECT_EQ(run(options("quads", 10)), 1);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "checkpoints" / "step_000001"));
  EXPECT_EQ(read_metrics_file(directory_ / "metrics.jsonl").size(), 1U);
}

TEST_F(LoopTest, AStopBetweenRolloutAndUpdateFinishesTheStepAndSavesIt) {
  reward_.on_reward = [&, calls = 0](RewardResult&) mutable { stop_ = ++calls > 8; };
  EXPECT_EQ(run(options("quads", 10)), 2);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "checkpoints" / "step_000002"));
}

TEST_F(LoopTest, AnInterruptedEvaluationIsDoneWhenTheRunIsResumed) {
  const std::filesystem::path root = directory_;
  directory_ = root / "whole";
  const std::vector<Bf16> start(parameters_.values(),
                                parameters_.values() + parameters_.layout().total);
  EXPECT_EQ(run(options("quads", 2)), 2);

  directory_ = root / "stopped";
  std::ranges::copy(start, parameters_.values());
  const int rewards_of_training = 2 * 8;
  reward_.on_reward = [&, calls = 0](RewardResult&) mutable {
    if (++calls > rewards_of_training) {
      stop_ = true;
      throw Interrupted("stopped");
    }
  };
  EXPECT_EQ(run(options("quads", 2)), 2);
  EXPECT_EQ(read_metrics_file(directory_ / "metrics.jsonl").size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(directory_ / "checkpoints" / "step_000002"));

  resume_ = true;
  EXPECT_EQ(run(options("quads", 2)), 2);  // stopped still: nothing is lost
  stop_ = false;
  reward_.on_reward = nullptr;
  EXPECT_EQ(run(options("quads", 2)), 2);
  const std::vector<MetricsLine> rows = read_metrics_file(directory_ / "metrics.jsonl");
  const std::vector<MetricsLine> whole = read_metrics_file(root / "whole" / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 2U);
  for (const char* key : {"eval/pass@1", "train/loss", "reward/mean"}) {
    EXPECT_EQ(rows[1].values.at(key), whole[1].values.at(key)) << key;
  }
  EXPECT_EQ(run(options("quads", 2)), 2);  // and is done once
  EXPECT_EQ(read_metrics_file(directory_ / "metrics.jsonl").size(), 2U);
  directory_ = root;
}

class FailingEvaluation : public LoopTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(AfterStep, FailingEvaluation, ::testing::Values(1, 2));

TEST_P(FailingEvaluation, LosesNoStepAndIsDoneWhenTheRunIsResumed) {
  const std::filesystem::path root = directory_;
  directory_ = root / "whole";
  const std::vector<Bf16> start(parameters_.values(),
                                parameters_.values() + parameters_.layout().total);
  RlOptions o = options("quads", 2);
  o.eval_interval = 1;
  EXPECT_EQ(run(o), 2);

  directory_ = root / "failed";
  std::ranges::copy(start, parameters_.values());
  const int before = GetParam() * 8 + (GetParam() - 1) * 4;  // of training, and of evaluations
  reward_.on_reward = [before, calls = 0](RewardResult&) mutable {
    if (++calls > before) fail("the scorer broke down");
  };
  expect_error([&] { run(o); }, "the scorer broke down");
  EXPECT_TRUE(std::filesystem::exists(directory_ / "checkpoints" /
                                      ("step_00000" + std::to_string(GetParam()))));
  resume_ = true;
  expect_error([&] { run(o); }, "the scorer broke down");  // once more, and nothing is lost
  reward_.on_reward = nullptr;
  EXPECT_EQ(run(o), 2);
  const std::vector<MetricsLine> rows = read_metrics_file(directory_ / "metrics.jsonl");
  const std::vector<MetricsLine> whole = read_metrics_file(root / "whole" / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    for (const char* key : {"eval/pass@1", "train/loss", "reward/mean"}) {
      EXPECT_EQ(rows[i].values.at(key), whole[i].values.at(key)) << key;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ / "unevaluated.json"));
  directory_ = root;
}

TEST_F(LoopTest, TheLastStepIsSavedBeforeItsEvaluationBegins) {
  int evaluated = 0;
  reward_.on_reward = [&, calls = 0](RewardResult&) mutable {
    if (++calls <= 2 * 8) return;
    ++evaluated;
    EXPECT_TRUE(std::filesystem::exists(directory_ / "checkpoints" / "step_000002"));
  };
  EXPECT_EQ(run(options("quads", 2)), 2);
  EXPECT_EQ(evaluated, 4);
}

TEST_F(LoopTest, AnEvaluationThatDoesNotFitIsRefusedBeforeTheFirstStep) {
  task_.on_problem = [](int64_t) { ADD_FAILURE() << "a rollout has begun"; };
  RlOptions o = options("quads", 2);
  o.eval_max_response_len = 300;
  expect_error([&] { run(o); }, "the evaluation does not fit: prompt 0");
  expect_error([&] { run(o); }, "--eval-max-response-len 300");
  o.max_context_len = 12;  // room for the responses of training, not for those of evaluation
  o.eval_max_response_len = 11;
  expect_error([&] { run(o); }, "exceed the context of 12");
}

TEST_F(LoopTest, AStopBeforeTheFirstStepLeavesNoCheckpoint) {
  stop_ = true;
  EXPECT_EQ(run(options("quads", 10)), 0);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "checkpoints"));
}

TEST_F(LoopTest, AResumedRunDrawsNoProblemsForACalibration) {
  EXPECT_EQ(run(options("quads", 1)), 1);
  std::vector<int64_t> drawn;
  task_.on_problem = [&](int64_t index) { drawn.push_back(index); };
  resume_ = true;
  EXPECT_EQ(run(options("quads", 2)), 2);
  EXPECT_EQ(drawn, (std::vector<int64_t>{2, 3}));
}

TEST_F(LoopTest, AContextThatTheModelDoesNotHaveIsRefused) {
  RlOptions o = options("bf16", 1);
  o.max_context_len = 257;
  expect_error([&] { run(o); }, "max_position_embeddings = 256");
  o.max_context_len = 256;
  EXPECT_EQ(run(o), 1);
}

// Blocks whose gradients are not finite as long as a counter is above 0.
class Overflowing : public CpuBlocks {
 public:
  Overflowing(const kernels::CpuContext& context, const PackedModel& model, int* left)
      : CpuBlocks(context, model), left_(left) {}
  void embed_backward(const RowBatch& batch, const float* dx, float* grads) override {
    CpuBlocks::embed_backward(batch, dx, grads);
    if (*left_ > 0) {
      --*left_;
      grads[0] = std::numeric_limits<float>::quiet_NaN();
    }
  }

 private:
  int* left_;
};

class OverflowTest : public LoopTest {
 protected:
  OverflowTest() {
    kernels_.on_cpu = [this](const Parameters& parameters, const kernels::CpuContext& context) {
      model_ = std::make_unique<PackedModel>(
          parameters, PackedModel::Options{.precision = {}, .scope = {}, .with_transposes = true});
      return ForeignBlocks{[this, context] { model_->refresh(context, {}); },
                           std::make_unique<Overflowing>(context, *model_, &left_)};
    };
  }
  RlOptions overflow_options(int64_t steps) const {
    RlOptions o = options("bf16", steps);
    o.trainer_kernels = TrainerKernels::kAten;
    return o;
  }

  int left_ = 0;
  std::unique_ptr<PackedModel> model_;
};

TEST_F(OverflowTest, TwoUpdatesInARowAreLeftOutAndCounted) {
  left_ = 2;
  EXPECT_EQ(run(overflow_options(4)), 4);
  const std::vector<MetricsLine> lines = read_metrics_file(directory_ / "metrics.jsonl");
  ASSERT_EQ(lines.size(), 4U);
  for (size_t step = 0; step < 4; ++step) {
    EXPECT_EQ(lines[step].values.contains("train/skipped_updates"), step < 2) << step;
    EXPECT_TRUE(std::isfinite(lines[step].values.at("train/grad_norm"))) << step;
  }
  EXPECT_EQ(lines[1].values.at("train/skipped_updates"), 1);
}

TEST_F(OverflowTest, TheThirdInARowEndsTheRunAndNamesTheStep) {
  left_ = 3;
  expect_error([&] { run(overflow_options(5)); }, "step 2: the gradient's norm is nan");
}

TEST_F(OverflowTest, LeavesTheWeightsAsTheyWere) {
  left_ = 2;
  const std::vector<Bf16> before(parameters_.values(),
                                 parameters_.values() + parameters_.layout().total);
  EXPECT_EQ(run(overflow_options(2)), 2);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), parameters_.values(),
                         [](Bf16 a, Bf16 b) { return a.bits == b.bits; }));
}

}  // namespace
}  // namespace quads::testing
