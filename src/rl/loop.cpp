#include "rl/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/file.h"
#include "io/jsonl_writer.h"
#include "report/jsonl_sink.h"
#include "report/tensorboard_sink.h"
#include "rl/gap.h"
#include "rollout/rac_calibration.h"
#include "tasks/scoring.h"
#include "tokenizer/text_files.h"
#include "trainer/checkpoint.h"

namespace quads {
namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double mean_of(std::span<const float> values) {
  double sum = 0;
  for (float v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double std_of(std::span<const float> values) {
  if (values.size() < 2) return 0;
  const double mean = mean_of(values);
  double sum = 0;
  for (float v : values) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

TrainSequence sequence_of(const std::vector<int32_t>& tokens, const Sample& sample, bool replay) {
  return {
      .tokens = tokens,
      .prompt_length = std::ssize(sample.prompt),
      .routing = replay ? std::span<const int32_t>(sample.routing) : std::span<const int32_t>()};
}

// Positions of a sequence that are provided for where no number is asked for.
constexpr int64_t kLongestDefaultContext = 4096;

// Far beyond any run, and far from what overflows when multiplied.
constexpr int64_t kMostSteps = 1'000'000'000;
constexpr int64_t kMostSamples = int64_t{1} << 24;

int64_t max_context(const RlOptions& o, const ModelConfig& model) {
  if (o.max_context_len > 0) return o.max_context_len;
  return std::min(model.max_position_embeddings, kLongestDefaultContext);
}

int64_t samples_of(const RlOptions& o) { return o.rollout_batch_size * o.n_samples_per_prompt; }

int64_t total_updates(const RlOptions& o) {
  return o.num_rollout * (o.global_batch_size > 0 ? samples_of(o) / o.global_batch_size : 1);
}

LrSchedule schedule_of(const RlOptions& o) {
  LrSchedule schedule = o.lr;
  schedule.total_steps = total_updates(o);
  return schedule;
}

void check_context(const RlOptions& o, const ModelConfig& model) {
  require(o.max_context_len <= model.max_position_embeddings,
          "--rollout-max-context-len {} is more than the model's max_position_embeddings = {}",
          o.max_context_len, model.max_position_embeddings);
  const int64_t context = max_context(o, model);
  require(o.max_response_len < context,
          "--rollout-max-response-len {} leaves no room for a prompt in the context of {} tokens "
          "(--rollout-max-context-len {}; 0 is the model's max_position_embeddings, at most {})",
          o.max_response_len, context, o.max_context_len, kLongestDefaultContext);
}

// The place in the training file only means something in the file that it was counted in.
void require_same_training_file(const Json& state, const Task& task,
                                const std::filesystem::path& checkpoint, const std::string& where) {
  if (!state.contains("training_file")) return;  // saved before there was such a key
  std::optional<FileFingerprint> before;
  if (const Json& json = state["training_file"]; !json.is_null()) {
    before = fingerprint_from_json(json, where + ": 'training_file'");
  }
  const std::optional<FileFingerprint> now = task.training_file();
  const auto name = [](const std::optional<FileFingerprint>& file) {
    return file ? describe(*file) : "a built-in task";
  };
  require(before.has_value() == now.has_value() && (!now || now->same_contents(*before)),
          "{}: the run was trained on {}, not on {}: continue it with the data as they were, or "
          "start another with --load {}",
          where, name(before), name(now), checkpoint.string());
}

// The figures of a step whose evaluation is outstanding, as a line of metrics.jsonl. A file of its
// own, so that the step's checkpoint need not be written again once it is evaluated.
std::filesystem::path unevaluated_file(const std::filesystem::path& directory) {
  return directory / "unevaluated.json";
}

}  // namespace

void check(const RlOptions& o) {
  const bool shared = o.trainer_kernels == TrainerKernels::kShared;
  require(shared || o.recipe.trainer.rac.ratio == 0,
          "recipe {}: a trainer that replays residual compensation needs --trainer-kernels shared",
          o.recipe.name);
  const auto at_least = [](int64_t least, const char* option, int64_t value) {
    require(value >= least, "{} is {}, expected at least {}", option, value, least);
  };
  const auto at_most = [](int64_t most, const char* option, int64_t value) {
    require(value <= most, "{} is {}, expected at most {}", option, value, most);
  };
  at_least(1, "--num-rollout", o.num_rollout);
  at_most(kMostSteps, "--num-rollout", o.num_rollout);
  at_least(1, "--rollout-batch-size", o.rollout_batch_size);
  at_most(kMostSamples, "--rollout-batch-size", o.rollout_batch_size);
  at_least(1, "--n-samples-per-prompt", o.n_samples_per_prompt);
  at_most(kMostSamples, "--n-samples-per-prompt", o.n_samples_per_prompt);
  at_least(1, "--max-running", o.max_running);
  at_least(1, "--rollout-max-response-len", o.max_response_len);
  at_least(0, "--rollout-max-context-len", o.max_context_len);
  at_least(0, "--global-batch-size", o.global_batch_size);
  at_least(1, "--max-tokens-per-batch", o.trainer.max_tokens);
  at_least(1, "--dynamic-sampling-max-rounds", o.dynamic_sampling_max_rounds);
  at_least(0, "--overlong-buffer-len", o.overlong_cache);
  at_least(0, "--verify-interval", o.verify_interval);
  at_least(0, "--eval-interval", o.eval_interval);
  at_least(0, "--eval-problems", o.eval_problems);
  at_least(1, "--n-samples-per-eval-prompt", o.eval_samples);
  at_most(kMostSamples, "--n-samples-per-eval-prompt", o.eval_samples);
  at_least(0, "--eval-max-response-len", o.eval_max_response_len);
  at_least(0, "--save-interval", o.save_interval);
  at_least(0, "--keep-checkpoints", o.keep_checkpoints);
  at_least(0, "--log-samples", o.log_samples);
  const int64_t samples = samples_of(o);
  require(
      samples <= kMostSamples,
      "--rollout-batch-size {} times --n-samples-per-prompt {} are {} samples, expected at most "
      "{}",
      o.rollout_batch_size, o.n_samples_per_prompt, samples, kMostSamples);
  if (o.global_batch_size > 0) {
    require(samples % o.global_batch_size == 0,
            "--global-batch-size {} does not divide the rollout's {} samples "
            "(--rollout-batch-size {} times --n-samples-per-prompt {})",
            o.global_batch_size, samples, o.rollout_batch_size, o.n_samples_per_prompt);
    require(o.global_batch_size % o.n_samples_per_prompt == 0,
            "--global-batch-size {} cuts groups apart: it must be a multiple of "
            "--n-samples-per-prompt {}",
            o.global_batch_size, o.n_samples_per_prompt);
  }
  at_least(0, "--rollout-top-k", o.sampling.top_k);
  require(o.sampling.top_p > 0 && o.sampling.top_p <= 1,
          "--rollout-top-p is {}, expected one in (0, 1]", o.sampling.top_p);
  const bool truncated = o.sampling.top_k > 0 || o.sampling.top_p < 1.0F;
  require(!truncated || o.allow_truncated_sampling,
          "training on top-k or top-p samples biases the policy ratio, since log-probs are over "
          "the whole vocabulary: give --allow-truncated-sampling to do it all the same");
  require(o.sampling.temperature >= kLeastTemperature && std::isfinite(o.sampling.temperature),
          "--rollout-temperature must be finite and at least {} to train, got {}",
          kLeastTemperature, o.sampling.temperature);
  require((o.eval_temperature == 0 || o.eval_temperature >= kLeastTemperature) &&
              std::isfinite(o.eval_temperature),
          "--eval-temperature is {}, expected 0 or a finite value of at least {}",
          o.eval_temperature, kLeastTemperature);
  const int64_t updates = total_updates(o);
  require(o.lr.warmup_steps <= updates,
          "--lr-warmup-steps {} is more than the run's {} updates (--num-rollout {}): give fewer "
          "steps of warm-up, or more of the run",
          o.lr.warmup_steps, updates, o.num_rollout);
  require(o.eval_top_p > 0 && o.eval_top_p <= 1, "--eval-top-p is {}, expected one in (0, 1]",
          o.eval_top_p);
  // The formulas check their own options.
  check(o.trainer.adamw);
  learning_rate(schedule_of(o), 0);
  const std::vector<int32_t> no_sequences = {0};
  PolicyBatch no_tokens;
  no_tokens.sequence_offsets = no_sequences;
  policy_loss(no_tokens, {}, o.loss);
  at_most(o.max_response_len, "--overlong-buffer-len", o.overlong_cache);
  require(
      o.loss.correction.kind == CorrectionKind::kNone || o.old_logprobs == OldLogprobs::kRecomputed,
      "a correction weighs the trainer's old log-probs against the rollout's: it needs "
      "--old-logprobs recomputed");
}

struct RlRun::Scored {
  Rollout rollout;
  std::vector<Problem> problems;   // one a prompt
  std::vector<std::string> texts;  // decoded responses, one a sample
  std::vector<RewardResult> results;
  std::vector<float> rewards;    // NaN for none
  std::vector<float> shaped;     // with the length penalty
  std::vector<bool> trained_on;  // whether the sample takes part in the update
};

RlRun::RlRun(kernels::CpuRuntime& runtime, Parameters& policy, const Task& task, Reward& reward,
             const Tokenizer& tokenizer, std::vector<int32_t> stop_tokens, const RlOptions& options,
             const ForeignKernels& aten)
    : policy_(policy),
      task_(task),
      reward_(reward),
      tokenizer_(tokenizer),
      stop_tokens_(std::move(stop_tokens)),
      options_(options) {
  check(options_);
  check_context(options_, policy.config());
  options_.lr = schedule_of(options_);
  options_.max_context_len = max_context(options_, policy.config());
  if (options_.global_batch_size == 0) {
    options_.global_batch_size = samples_of(options_);
  }
  SidesOptions sides{.trainer = {.precision = options_.recipe.trainer,
                                 .scope = options_.scope,
                                 .training = options_.trainer,
                                 .max_context = options_.max_context_len},
                     .rollout = options_.recipe.rollout,
                     .with_reference = options_.loss.kl_coef > 0,
                     .max_running = options_.max_running,
                     .kv_memory = options_.kv_memory};
  sides.trainer.training.temperature = options_.sampling.temperature;
  const bool foreign = options_.trainer_kernels == TrainerKernels::kAten;
  if (options_.device == Device::kCuda) sides.prefill_chunk = kDevicePrefillChunk;
  sides_ = make_sides(options_.device, runtime, policy_, sides, foreign ? &aten : nullptr);
  RolloutBackend& backend = sides_->backend();
  residual_sums_ = std::make_unique<ResidualSums>(backend.sites(), backend.workers());
  engine_ =
      std::make_unique<Engine>(backend, Engine::Options{.max_running = options_.max_running,
                                                        .max_context = options_.max_context_len,
                                                        .kv_memory_bytes = options_.kv_memory,
                                                        .prefill_chunk = sides.prefill_chunk});
  if (task_.num_eval_problems() > 0) {
    evaluation_ = evaluation_set(task_, tokenizer_, options_.eval_problems,
                                 static_cast<int32_t>(options_.eval_samples));
    check_evaluation();
  }
}

RlRun::~RlRun() = default;

bool RlRun::trainer_has_masks() const {
  return options_.trainer_kernels == TrainerKernels::kShared &&
         options_.recipe.trainer.rac.ratio > 0;
}

// Weights and masks that no checkpoint has given.
void RlRun::start(const std::atomic<bool>& stop) {
  RacMasks any;  // until there are others; the rollout shares the trainer's BF16 weights
  if (trainer_has_masks()) any = full_masks(sides_->backend().sites());
  sides_->refresh_trainer(any);
  std::vector<Problem> problems;
  GenerateOptions generate = generate_options();
  generate.cancel = &stop;
  masks_ = calibrate_masks(*engine_, requests(0, options_.rollout_batch_size, problems), generate);
  if (trainer_has_masks() && options_.recipe.rollout.rac.ratio < 1) {
    sides_->refresh_trainer(masks_);
  }
  started_ = true;
}

std::vector<Request> RlRun::requests(int64_t first_prompt, int64_t count,
                                     std::vector<Problem>& problems) const {
  std::vector<Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    problems.push_back(task_.train_problem(options_.seed, first_prompt + i));
    requests.push_back({.prompt_index = first_prompt + i,
                        .prompt = tokenizer_.encode(problems.back().prompt),
                        .n_samples = static_cast<int32_t>(options_.n_samples_per_prompt)});
  }
  return requests;
}

GenerateOptions RlRun::generate_options() const {
  GenerateOptions generate;
  generate.sampling = options_.sampling;
  generate.seed = options_.rollout_seed;
  generate.max_new_tokens = options_.max_response_len;
  generate.stop_tokens = stop_tokens_;
  generate.record_routing = options_.routing_replay;
  return generate;
}

bool RlRun::make_rollout(Scored& scored, const std::atomic<bool>& stop, MetricsRow& row) {
  const double start = seconds();
  double reward_seconds = 0;
  int64_t tokens = 0, truncated = 0, sampled = 0, sampled_prompts = 0, failed = 0;
  std::string first_failure;
  residual_sums_->clear();
  const int64_t n = options_.n_samples_per_prompt;
  int64_t wanted = options_.rollout_batch_size;
  for (int64_t round = 0; wanted > 0; ++round) {
    std::vector<Problem> problems;
    GenerateOptions generate = generate_options();
    generate.residual_sums = residual_sums_.get();
    generate.cancel = &stop;
    std::vector<Sample> part =
        engine_->generate(requests(next_prompt_, wanted, problems), generate);
    if (stop) return false;
    next_prompt_ += wanted;
    sampled_prompts += wanted;
    const double scoring = seconds();
    std::vector<std::string> texts;
    for (const Sample& sample : part) {
      tokens += std::ssize(sample.response);
      truncated += sample.finish == FinishReason::kLength;
      ++sampled;
      texts.push_back(tokenizer_.decode(sample.response));
    }
    std::vector<RewardResult> results;
    try {
      results = score_responses(reward_, problems, texts);
    } catch (const Interrupted&) {
      return false;
    }
    std::vector<float> rewards;
    for (const RewardResult& result : results) {
      const bool scores = result.failure.empty();
      rewards.push_back(scores ? static_cast<float>(result.value)
                               : std::numeric_limits<float>::quiet_NaN());
      if (!scores && failed++ == 0) first_failure = result.failure;
    }
    reward_seconds += seconds() - scoring;
    const bool last_round =
        !options_.dynamic_sampling || round + 1 == options_.dynamic_sampling_max_rounds;
    for (int64_t p = 0; p < std::ssize(problems); ++p) {
      const auto begin = static_cast<size_t>(p * n), end = static_cast<size_t>((p + 1) * n);
      const std::span<const float> group(rewards.data() + begin, end - begin);
      // In the last round what is missing is filled with what there is.
      const int64_t left = std::ssize(problems) - p;
      if (!last_round && !group_is_informative(group)) continue;
      if (last_round && options_.dynamic_sampling && left > wanted &&
          !group_is_informative(group)) {
        continue;
      }
      scored.problems.push_back(problems[static_cast<size_t>(p)]);
      for (size_t i = begin; i < end; ++i) {
        scored.rollout.samples.push_back(std::move(part[i]));
        scored.texts.push_back(std::move(texts[i]));
        scored.results.push_back(std::move(results[i]));
        scored.rewards.push_back(rewards[i]);
      }
      --wanted;
    }
  }
  scored.trained_on = trainable_samples(scored.rewards, n);
  require(std::ranges::find(scored.trained_on, true) != scored.trained_on.end(),
          "step {}: {} of {} responses could not be scored, which leaves no group to learn from; "
          "first: {}",
          step_, failed, sampled, first_failure);
  scored.rollout.policy_version = updates_;
  scored.rollout.masks = masks_;
  scored.rollout.residual_sums = residual_sums_->totals();
  scored.shaped = scored.rewards;
  if (options_.overlong_cache > 0) {
    for (size_t i = 0; i < scored.shaped.size(); ++i) {
      scored.shaped[i] += overlong_penalty(std::ssize(scored.rollout.samples[i].response),
                                           options_.max_response_len, options_.overlong_cache);
    }
  }
  const double elapsed = seconds() - start - reward_seconds;
  std::vector<float> known;
  std::ranges::copy_if(scored.rewards, std::back_inserter(known),
                       [](float reward) { return !std::isnan(reward); });
  row.set("reward/mean", mean_of(known));
  row.set("reward/std", std_of(known));
  if (failed > 0) row.set("reward/failed", failed);
  if (task_.num_skipped() > 0) row.set("data/skipped", task_.num_skipped());
  row.set("rollout/response_length", static_cast<double>(tokens) / static_cast<double>(sampled));
  row.set("rollout/truncated", static_cast<double>(truncated) / static_cast<double>(sampled));
  if (options_.dynamic_sampling) {
    row.set("rollout/prompts_sampled", sampled_prompts);
  }
  row.set("time/rollout", elapsed);
  row.set("time/reward", reward_seconds);
  row.set("perf/rollout_tokens_per_s", static_cast<double>(tokens) / elapsed);
  const Rac& rac = options_.recipe.rollout.rac;
  if (rac.ratio > 0) {
    row.set("rac/ratio", rac.ratio);
    row.set("rac/energy", covered_energy(scored.rollout.residual_sums, scored.rollout.masks));
  }
  return true;
}

void RlRun::train_on(const Scored& scored, MetricsRow& row) {
  const double start = seconds();
  const std::vector<Sample>& samples = scored.rollout.samples;
  const std::vector<float> all_advantages =
      group_advantages(scored.shaped, options_.n_samples_per_prompt, options_.advantages);

  // The samples without a reward are left out from here on; mini-batches keep their places.
  const int64_t batch = options_.global_batch_size;
  const int64_t batches = std::ssize(samples) / batch;
  std::vector<int64_t> batch_begin;
  std::vector<std::vector<int32_t>> tokens;
  std::vector<TrainSequence> sequences;
  std::vector<int64_t> offsets = {0};  // of the samples in the concatenated targets
  std::vector<float> rollout_logprobs, advantages;
  int64_t rows = 0;
  tokens.reserve(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    if (static_cast<int64_t>(i) % batch == 0) batch_begin.push_back(std::ssize(sequences));
    if (!scored.trained_on[i]) continue;
    const Sample& sample = samples[i];
    advantages.push_back(all_advantages[i]);
    std::vector<int32_t>& all = tokens.emplace_back(sample.prompt);
    all.insert(all.end(), sample.response.begin(), sample.response.end());
    sequences.push_back(sequence_of(all, sample, options_.routing_replay));
    rollout_logprobs.insert(rollout_logprobs.end(), sample.logprobs.begin(), sample.logprobs.end());
    offsets.push_back(std::ssize(rollout_logprobs));
    rows += sequences.back().rows();
  }
  batch_begin.push_back(std::ssize(sequences));

  std::vector<float> recomputed, reference;
  if (options_.old_logprobs == OldLogprobs::kRecomputed) {
    recomputed = sides_->trainer().logprobs(sequences);
  }
  if (options_.loss.kl_coef > 0) reference = sides_->reference_logprobs(sequences);
  const std::vector<float>& old_logprobs = recomputed.empty() ? rollout_logprobs : recomputed;

  // Zero by construction, so a difference is a fault of this program and not to be trained on.
  const bool exact =
      options_.trainer_kernels == TrainerKernels::kShared && options_.recipe.replays();
  const auto demand_zero = [&](const GapMetrics& gap, std::string_view where) {
    require(!exact || gap.max == 0,
            "step {}: recipe {} replays the rollout, but {} differs by up to {} in log-prob; "
            "please report this",
            step_, options_.recipe.name, where, gap.max);
  };
  if (options_.verify_interval > 0 && step_ % options_.verify_interval == 0) {
    const GapMetrics gap = gap_metrics(
        rollout_logprobs, recomputed.empty() ? sides_->trainer().logprobs(sequences) : recomputed);
    demand_zero(gap, "the whole rollout");
    row.set("gap/verified_max", gap.max);
  }

  PolicyLossStats stats;
  double loss_sum = 0, entropy_sum = 0, grad_norm_max = 0, last_lr = 0;
  int64_t entropy_count = 0, done = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const int64_t first = batch_begin[static_cast<size_t>(b)];
    const int64_t count = batch_begin[static_cast<size_t>(b) + 1] - first;
    if (count == 0) continue;
    const bool is_first = done++ == 0;
    const int64_t target_begin = offsets[static_cast<size_t>(first)];
    const int64_t target_end = offsets[static_cast<size_t>(first + count)];
    const GlobalBatchSize global{target_end - target_begin, count};
    std::vector<float> first_logprobs;
    const auto loss = [&](const MicroBatch& micro, std::span<float> dlogp) {
      const auto targets = micro.logprobs.size();
      const auto at = static_cast<size_t>(offsets[static_cast<size_t>(first + micro.first)]);
      const auto slice = [&](const std::vector<float>& all) {
        return all.empty() ? std::span<const float>()
                           : std::span<const float>(all).subspan(at, targets);
      };
      std::vector<int32_t> sequence_offsets(micro.offsets.begin(), micro.offsets.end());
      PolicyBatch policy;
      policy.logprobs = micro.logprobs;
      policy.old_logprobs = slice(old_logprobs);
      if (!recomputed.empty()) policy.rollout_logprobs = slice(rollout_logprobs);
      policy.ref_logprobs = slice(reference);
      policy.sequence_advantages =
          std::span<const float>(advantages)
              .subspan(static_cast<size_t>(first + micro.first), micro.offsets.size() - 1);
      policy.sequence_offsets = sequence_offsets;
      const PolicyLoss result = policy_loss(policy, global, options_.loss);
      std::ranges::copy(result.grad, dlogp.begin());
      stats.merge(result.stats);
      loss_sum += result.loss;
      if (is_first) {
        first_logprobs.insert(first_logprobs.end(), micro.logprobs.begin(), micro.logprobs.end());
      }
      for (float e : micro.entropies) entropy_sum += e;
      entropy_count += std::ssize(micro.entropies);
    };
    sides_->trainer().accumulate(std::span<const TrainSequence>(sequences).subspan(
                                     static_cast<size_t>(first), static_cast<size_t>(count)),
                                 loss);
    if (is_first) {
      const GapMetrics gap = gap_metrics(
          std::span<const float>(rollout_logprobs).first(first_logprobs.size()), first_logprobs);
      demand_zero(gap, "the first mini-batch");
      row.set("gap/max", gap.max);
      row.set("gap/mean", gap.mean);
      row.set("gap/p99", gap.p99);
      row.set("gap/kl_k3", gap.kl_k3);
      row.set("gap/ess", gap.ess);
    }
    last_lr = learning_rate(options_.lr, updates_);
    const Optimizer::Result result = sides_->trainer().update(static_cast<float>(last_lr));
    ++updates_;
    if (skipped_.applied(step_, result)) grad_norm_max = std::max(grad_norm_max, result.grad_norm);
  }
  const double elapsed = seconds() - start;
  row.set("train/loss", loss_sum / static_cast<double>(done));
  row.set("train/grad_norm", grad_norm_max);
  row.set("train/clip_fraction", stats.clip_fraction());
  row.set("train/entropy", entropy_sum / static_cast<double>(std::max<int64_t>(1, entropy_count)));
  row.set("train/lr", last_lr);
  row.set("train/approx_kl", stats.approx_kl());
  if (options_.loss.kl_coef > 0) row.set("train/ref_kl", stats.ref_kl());
  if (options_.loss.correction.kind != CorrectionKind::kNone) {
    row.set("train/truncated_fraction", stats.truncated_fraction());
    row.set("train/masked_fraction", stats.masked_fraction());
  }
  if (const int64_t skipped = skipped_.take(); skipped > 0) {
    row.set("train/skipped_updates", skipped);
  }
  row.set("time/train", elapsed);
  row.set("perf/train_tokens_per_s", static_cast<double>(rows) / elapsed);
}

void RlRun::sync(const Scored& scored) {
  const Rac& rac = options_.recipe.rollout.rac;
  if (rac.ratio > 0 && rac.ratio < 1) {
    masks_ = select_masks(scored.rollout.residual_sums, rac);
    // A trainer that replays the rollout does so under the masks of the next one from here on.
    if (trainer_has_masks()) sides_->refresh_trainer(masks_);
  }
  sides_->sync(masks_);
}

GenerateOptions RlRun::evaluation_options() const {
  GenerateOptions generate = generate_options();
  generate.sampling = {.temperature = static_cast<float>(options_.eval_temperature),
                       .top_p = static_cast<float>(options_.eval_top_p)};
  if (options_.eval_max_response_len > 0) generate.max_new_tokens = options_.eval_max_response_len;
  generate.seed = options_.rollout_seed ^ 0x65766131U;  // draws of their own
  generate.record_routing = false;
  return generate;
}

void RlRun::check_evaluation() const {
  try {
    engine_->check(evaluation_.requests, evaluation_options());
  } catch (const Error& error) {
    fail(
        "the evaluation does not fit: {} (--eval-max-response-len {}; 0 is "
        "--rollout-max-response-len {}; --rollout-max-context-len and --kv-memory give room)",
        error.what(), options_.eval_max_response_len, options_.max_response_len);
  }
}

bool RlRun::evaluate(MetricsRow& row) {
  EngineView engine(*engine_);
  const int64_t n = options_.eval_samples;
  Evaluation result;
  try {
    result = evaluate_set(engine, evaluation_, reward_, tokenizer_, {n}, evaluation_options());
  } catch (const Interrupted&) {
    return false;
  }
  row.set("eval/pass@1", result.pass_at_1.mean);
  if (result.pass_at_1.standard_error) {
    row.set("eval/pass@1_stderr", *result.pass_at_1.standard_error);
  }
  if (n > 1) {
    row.set(fmt::format("eval/pass@{}", n), result.pass_at_k.front().second.mean);
    for (const auto& [k, estimate] : result.maj_at_k) {
      row.set(fmt::format("eval/maj@{}", k), estimate.mean);
    }
  }
  row.set("eval/problems", std::ssize(evaluation_.problems));
  if (result.failed > 0) row.set("eval/failed", result.failed);
  return true;
}

void RlRun::run(const std::filesystem::path& directory, const std::atomic<bool>& stop,
                Progress& progress) {
  std::filesystem::create_directories(directory);
  const int64_t first_row = unevaluated_ ? unevaluated_->step() : step_;
  JsonlSink jsonl(directory / "metrics.jsonl", first_row);
  TensorBoardSink tensorboard(directory, first_row);
  const auto write = [&](const MetricsRow& row) {
    jsonl.write(row);
    tensorboard.write(row);
  };
  truncate_jsonl(directory / "samples.jsonl", [this](const Json& line, const std::string& where) {
    return get<int64_t>(line, "step", where) < step_;
  });
  JsonlWriter sample_log(directory / "samples.jsonl");
  int64_t saved_at = step_;
  const auto save_step = [&] {
    if (unevaluated_) {
      write_file_atomically(unevaluated_file(directory), to_json_line(*unevaluated_));
    }
    save(directory);
    saved_at = step_;
  };
  if (unevaluated_ && !stop && evaluate(*unevaluated_)) {
    write(*unevaluated_);
    unevaluated_.reset();
  }
  if (unevaluated_) return;
  std::filesystem::remove(unevaluated_file(directory));
  if (!started_ && step_ < options_.num_rollout && !stop) start(stop);
  while (step_ < options_.num_rollout && !stop) {
    MetricsRow row(step_);
    Scored scored;
    const int64_t prompt_before = next_prompt_;
    if (!make_rollout(scored, stop, row)) {
      next_prompt_ = prompt_before;  // an interrupted rollout never happened
      break;
    }
    train_on(scored, row);
    const double sync_start = seconds();
    sync(scored);
    row.set("time/sync", seconds() - sync_start);

    const bool last = step_ + 1 == options_.num_rollout;
    const bool evaluates =
        !evaluation_.problems.empty() &&
        (last || (options_.eval_interval > 0 && (step_ + 1) % options_.eval_interval == 0));
    ProgressFigures figures;
    const auto figure = [&](const char* name, const char* key) {
      for (const auto& [k, v] : row.values()) {
        if (k == key) figures.emplace_back(name, format_figure(std::get<double>(v)));
      }
    };
    for (int64_t i = 0; i < std::min(options_.log_samples, options_.rollout_batch_size); ++i) {
      const auto index = static_cast<size_t>(i * options_.n_samples_per_prompt);
      const std::string& failure = scored.results[index].failure;
      Json line = {{"step", step_},
                   {"index", scored.rollout.samples[index].prompt_index},
                   {"prompt", scored.problems[static_cast<size_t>(i)].prompt},
                   {"response", scored.texts[index]},
                   {"label", scored.problems[static_cast<size_t>(i)].label},
                   {"reward", failure.empty() ? Json(scored.rewards[index]) : Json()}};
      if (!failure.empty()) line["reward_failure"] = failure;
      sample_log.write(line);
    }
    ++step_;
    if (evaluates) {  // the step is done, but not what is to be reported of it
      unevaluated_ = row;
      if (last) save_step();
      try {
        if (!evaluate(row)) break;
      } catch (...) {
        if (!last) save_step();
        throw;
      }
      unevaluated_.reset();
    }
    write(row);
    if (last) std::filesystem::remove(unevaluated_file(directory));
    const bool saves = last || (options_.save_interval > 0 && step_ % options_.save_interval == 0);
    if (saves && saved_at != step_) save_step();
    figure("reward", "reward/mean");
    figure("gap", "gap/max");
    figure("pass@1", "eval/pass@1");
    progress.update(step_, figures);
  }
  if (saved_at != step_) save_step();
}

void RlRun::save(const std::filesystem::path& directory) {
  const std::optional<FileFingerprint> file = task_.training_file();
  const Json state = {{"step", step_},
                      {"updates", updates_},
                      {"next_prompt", next_prompt_},
                      {"optimizer_updates", sides_->trainer().optimizer().updates()},
                      {"recipe", options_.recipe.name},
                      {"training_file", file ? to_json(*file) : Json()}};
  const auto add_files = [this](const std::filesystem::path& path) {
    save_text_files(tokenizer_, stop_tokens_, policy_.config(), path);
  };
  sides_->fetch_parameters();
  save_checkpoint(directory / "checkpoints", step_, policy_, sides_->trainer().optimizer(), masks_,
                  state, add_files, options_.keep_checkpoints);
}

bool RlRun::resume(const std::filesystem::path& directory) {
  const auto checkpoint = newest_checkpoint(directory / "checkpoints");
  if (!checkpoint) return false;
  RacMasks masks;
  const Json state = load_checkpoint(*checkpoint, policy_, sides_->trainer().optimizer(), masks);
  const std::string where = (*checkpoint / "trainer" / "state.json").string();
  const auto counter = [&](const char* key, int64_t most) {
    const auto value = get<int64_t>(state, key, where);
    require(value >= 0 && value <= most, "{}: {} is {}, expected one in [0, {}]", where, key, value,
            most);
    return value;
  };
  step_ = counter("step", kMostSteps);
  updates_ = counter("updates", kMostSteps * kMostSamples);
  next_prompt_ = counter("next_prompt", kMostSteps * kMostSamples);
  sides_->trainer().optimizer().set_updates(counter("optimizer_updates", updates_));
  if (const auto file = unevaluated_file(directory); std::filesystem::exists(file)) {
    constexpr size_t kMaxBytes = size_t{1} << 20;
    const MetricsRow row = from_json_line(read_text_file(file, kMaxBytes), file.string());
    // One of another step is of a checkpoint that was not written to the end, or removed.
    if (row.step() + 1 == step_) unevaluated_ = row;
  }
  const auto recipe = get<std::string>(state, "recipe", where);
  require(recipe == options_.recipe.name, "{}: the run's recipe is {}, not {}", where, recipe,
          options_.recipe.name);
  require_same_training_file(state, task_, *checkpoint, where);
  masks_ = masks;
  sides_->refresh_trainer(masks_);
  sides_->backend().refresh(masks_);
  started_ = true;
  return true;
}

}  // namespace quads
