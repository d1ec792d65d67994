// The loop that ties everything: prompts -> rollout -> rewards -> advantages -> updates -> sync.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "eval/device.h"
#include "eval/evaluation.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "rewards/reward.h"
#include "rl/advantages.h"
#include "rl/policy_loss.h"
#include "rl/recipe.h"
#include "rl/schedule.h"
#include "rl/sides.h"
#include "rl/skipped_updates.h"
#include "rollout/engine.h"
#include "tasks/task.h"
#include "tokenizer/tokenizer.h"
#include "trainer/trainer.h"

namespace quads {

enum class TrainerKernels { kShared, kAten };
template <>
inline constexpr std::array<std::pair<std::string_view, TrainerKernels>, 2> kNames<TrainerKernels>{
    {{"shared", TrainerKernels::kShared}, {"aten", TrainerKernels::kAten}}};

/// Where the old log-probs of the policy ratio come from: the rollout, or the trainer's forward
/// before the first update on it.
enum class OldLogprobs { kRollout, kRecomputed };
template <>
inline constexpr std::array<std::pair<std::string_view, OldLogprobs>, 2> kNames<OldLogprobs>{
    {{"rollout", OldLogprobs::kRollout}, {"recomputed", OldLogprobs::kRecomputed}}};

struct RlOptions {
  Recipe recipe;
  QuantizeScope scope;
  TrainerKernels trainer_kernels = TrainerKernels::kShared;
  Device device = Device::kCpu;

  // One rollout.
  int64_t num_rollout = 250;        // steps
  int64_t rollout_batch_size = 32;  // prompts
  int64_t n_samples_per_prompt = 16;
  int64_t max_response_len = 64;  // tokens
  kernels::SamplingParams sampling;
  uint64_t rollout_seed = 1;  // of sampling
  uint64_t seed = 1;          // of the problems drawn
  bool allow_truncated_sampling = false;
  int64_t max_running = 512;    // sequences decoded at once
  int64_t max_context_len = 0;  // positions of prompt and response; 0: the model's, at most 4096
  int64_t kv_memory = int64_t{256} << 20;  // bytes

  // Updates.
  int64_t global_batch_size = 0;  // samples an update; 0: the whole rollout
  LrSchedule lr;                  // its total_steps is not used: the run knows its updates
  Trainer::Options trainer;
  AdvantageOptions advantages;
  PolicyLossOptions loss;
  OldLogprobs old_logprobs = OldLogprobs::kRollout;
  bool dynamic_sampling = false;  // DAPO: only prompts whose samples differ in reward
  int64_t dynamic_sampling_max_rounds = 8;
  int64_t overlong_cache = 0;   // DAPO: tokens before the limit from which length costs
  bool routing_replay = false;  // R3: the trainer takes the rollout's experts

  // Checks, evaluation, checkpoints.
  int64_t verify_interval = 50;  // steps between comparisons over the whole rollout; 0: never
  int64_t eval_interval = 0;     // 0: at the end only
  int64_t eval_problems = 0;     // 0: all
  int64_t eval_samples = 1;      // a problem
  double eval_temperature = 1.0;
  double eval_top_p = 1.0;
  int64_t eval_max_response_len = 0;  // 0: as in training
  int64_t save_interval = 0;          // 0: at the end only
  int64_t keep_checkpoints = 2;
  int64_t log_samples = 4;  // written to samples.jsonl every step
};

/// Error for values that are wrong whatever the model and the data are.
void check(const RlOptions& options);

/// A run in a directory. Its state between steps is (parameters, optimizer, masks, counters); all
/// randomness is keyed by global indices, so a run that is stopped and resumed gives the same bits.
class RlRun {
 public:
  /// `policy` is trained in place, `reward` scores its responses to `task`'s problems. Error on
  /// options that do not go together, and on evaluation problems that do not fit. `aten` makes the
  /// trainer's blocks for trainer_kernels == kAten (the layer above links ATen, this one does not).
  RlRun(kernels::CpuRuntime& runtime, Parameters& policy, const Task& task, Reward& reward,
        const Tokenizer& tokenizer, std::vector<int32_t> stop_tokens, const RlOptions& options,
        const ForeignKernels& aten);
  ~RlRun();

  /// Steps from the present one to num_rollout, into `directory`: metrics.jsonl, TensorBoard
  /// events, samples.jsonl, checkpoints/. Returns early, after saving, once `stop` is set. A step
  /// is saved before an evaluation ends the run: the last one before its evaluation begins, others
  /// when theirs is interrupted or fails; unevaluated.json then has what is known of it, and it is
  /// reported when the run is resumed and has evaluated it. A response that has no reward is not
  /// trained on; Error when no group of a rollout has two that have (one, with one sample a
  /// prompt).
  void run(const std::filesystem::path& directory, const std::atomic<bool>& stop,
           Progress& progress);

  /// Continues from the newest checkpoint in `directory`; false if there is none.
  bool resume(const std::filesystem::path& directory);

  int64_t step() const { return step_; }
  /// As Sides::memory_plan.
  std::string memory_plan() const { return sides_->memory_plan(); }
  /// Whether the last step has been done and evaluated.
  bool done() const { return step_ >= options_.num_rollout && !unevaluated_; }

 private:
  struct Scored;  // a rollout with its problems and rewards

  bool make_rollout(Scored& scored, const std::atomic<bool>& stop, MetricsRow& row);
  void train_on(const Scored& scored, MetricsRow& row);
  void start(const std::atomic<bool>& stop);
  void sync(const Scored& scored);
  /// Whether the trainer replays residual compensation.
  bool trainer_has_masks() const;
  void save(const std::filesystem::path& directory);
  /// Error unless the evaluation problems fit.
  void check_evaluation() const;
  /// False if it was interrupted; `row` is as before then.
  bool evaluate(MetricsRow& row);
  /// Requests for training problems first_prompt.., which are appended to `problems`.
  std::vector<Request> requests(int64_t first_prompt, int64_t count,
                                std::vector<Problem>& problems) const;
  GenerateOptions generate_options() const;
  GenerateOptions evaluation_options() const;

  Parameters& policy_;
  const Task& task_;
  Reward& reward_;
  const Tokenizer& tokenizer_;
  std::vector<int32_t> stop_tokens_;
  RlOptions options_;

  EvaluationSet evaluation_;  // without problems where the task has none

  std::unique_ptr<Sides> sides_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<ResidualSums> residual_sums_;

  RacMasks masks_;        // of the next rollout
  bool started_ = false;  // weights are packed, masks are there
  SkippedUpdates skipped_;
  int64_t step_ = 0;                       // steps done
  std::optional<MetricsRow> unevaluated_;  // of the last one, if its evaluation is outstanding
  int64_t updates_ = 0;
  int64_t next_prompt_ = 0;  // index of the next training problem
};

}  // namespace quads
