// quads train: reinforcement learning under a recipe.
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "aten/aten_engine.h"
#include "base/error.h"
#include "cli/task_options.h"
#include "io/atomic_dir.h"
#include "io/atomic_file.h"
#include "io/output_lock.h"
#include "report/runs.h"
#include "rl/loop.h"

namespace quads::cli {
namespace {

struct Options {
  std::string out, load;
  bool resume = false;
  RuntimeOptions runtime;
  TaskOptions task;
  ScopeOptions scope;
  RacOptions rac;
  std::string recipe = "quads";
  std::string rollout_precision, trainer_precision;
  std::string trainer_kernels = "shared";
  std::string device = "cpu";
  std::string old_logprobs;  // empty: rollout, recomputed where a correction weighs them
  std::string lr_decay = "constant";
  std::string ratio_level = "token", loss_aggregation = "token-mean";
  std::string kl_type = "k3", correction = "none", correction_level = "token";
  std::optional<double> tis_clip, tis_clip_low;
  MicroBatchOptions micro_batch;
  bool use_tis = false;
  std::string advantage = "grpo";
  std::string master_dtype = "fp32";
  RlOptions rl;
};

// What the options say, checked as far as it does not depend on the model.
RlOptions make_rl_options(const Options& o) {
  RlOptions rl = o.rl;
  RecipeOverrides overrides;
  overrides.rac_ratio = parse_share(o.rac.ratio);
  overrides.rac_granularity = parse_granularity(o.rac.granularity);
  overrides.rac_scale_floor = o.rac.scale_floor;
  if (!o.rollout_precision.empty()) overrides.rollout_precision = o.rollout_precision;
  if (!o.trainer_precision.empty()) overrides.trainer_precision = o.trainer_precision;
  rl.recipe = make_recipe(o.recipe, overrides);
  rl.trainer_kernels = parse_name<TrainerKernels>("--trainer-kernels", o.trainer_kernels);
  rl.device = parse_device(o.device);
  rl.lr.decay = parse_name<LrDecay>("--lr-decay", o.lr_decay);
  rl.loss.ratio_level = parse_name<RatioLevel>("--ratio-level", o.ratio_level);
  rl.loss.aggregation = parse_name<LossAggregation>("--loss-aggregation", o.loss_aggregation);
  rl.loss.max_response_length = rl.max_response_len;
  rl.loss.kl_estimator = parse_name<KlEstimator>("--kl-loss-type", o.kl_type);
  require(!o.use_tis || o.correction == "none" || o.correction == "tis",
          "--use-tis is --correction tis, but --correction {} is given too: give one of them",
          o.correction);
  const CorrectionKind kind =
      o.use_tis ? CorrectionKind::kTis : parse_name<CorrectionKind>("--correction", o.correction);
  rl.loss.correction = default_correction(
      kind, parse_name<CorrectionLevel>("--correction-level", o.correction_level));
  if (o.tis_clip) rl.loss.correction.high = *o.tis_clip;
  if (o.tis_clip_low) rl.loss.correction.low = *o.tis_clip_low;
  if (!o.old_logprobs.empty()) {
    rl.old_logprobs = parse_name<OldLogprobs>("--old-logprobs", o.old_logprobs);
  } else if (kind != CorrectionKind::kNone) {
    rl.old_logprobs = OldLogprobs::kRecomputed;
  }
  require(kind == CorrectionKind::kNone || rl.old_logprobs == OldLogprobs::kRecomputed,
          "{} weighs the trainer's own log-probs against the rollout's, --old-logprobs {} does not "
          "compute them: leave one of the two out",
          o.use_tis ? "--use-tis" : "--correction " + o.correction, o.old_logprobs);
  rl.advantages.divide_by_std = o.advantage == "grpo";
  rl.trainer.adamw.bf16_masters = o.master_dtype == "bf16";
  check(rl);
  require(rl.n_samples_per_prompt != 1,
          "--n-samples-per-prompt 1: --advantage-estimator {} compares a prompt's samples with one "
          "another, so every advantage would be 0: give at least 2",
          o.advantage);
  o.task.check();
  require(!o.task.from_files() || !o.task.prompt_data.empty(),
          "--eval-data without --prompt-data: there is nothing to train on");
  return rl;
}

// What depends on the model.
void fit(RlOptions& rl, const Options& o, const ModelConfig& model) {
  const bool quantises = rl.recipe.rollout != Precision{} || rl.recipe.trainer != Precision{};
  if (quantises) rl.scope = o.scope.make(model);
  rl.trainer.max_tokens = o.micro_batch.make(rl.device, model, rl.trainer.checkpoint_activations);
}

// ATen's blocks over a packed model of their own, whose weights they multiply with.
ForeignBlocks make_aten_blocks(const Parameters& parameters, const Precision& precision,
                               const QuantizeScope& scope, const kernels::CpuContext& context) {
  const auto model = std::make_shared<PackedModel>(
      parameters, PackedModel::Options{.precision = precision, .scope = scope});
  std::unique_ptr<CopyingBlocks> blocks = aten_engine().make_blocks(context, *model);
  auto refresh = [model, blocks = blocks.get(), context] {
    model->refresh(context, {});
    blocks->refresh();
  };
  return {std::move(refresh), std::move(blocks)};
}

// "key = value" of every line of a configuration that resolved_config wrote.
std::map<std::string, std::string> settings(std::istream& config) {
  std::map<std::string, std::string> result;
  for (std::string line; std::getline(config, line);) {
    const size_t equals = line.find(" = ");
    if (equals != std::string::npos) result[line.substr(0, equals)] = line.substr(equals + 3);
  }
  return result;
}

// What a number or a size says, however it is written ('1e-6', 1e-06; '256MiB'); the number of a
// text that is none is not equal to itself.
double number_of(std::string text) {
  std::erase(text, '\'');
  double value = 0;
  if (CLI::detail::lexical_cast(text, value)) return value;
  try {
    return static_cast<double>(std::stoull(CLI::AsSizeValue(false)(text).empty() ? text : ""));
  } catch (const std::exception&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

// Says on stderr what differs between the run's configuration and the one it is continued with.
void tell_changes(const std::filesystem::path& config, const std::string& resolved) {
  std::ifstream file(config);
  std::istringstream text(resolved);
  const std::map<std::string, std::string> before = settings(file), now = settings(text);
  if (before.empty()) return;
  std::set<std::string> keys;
  for (const auto* side : {&before, &now}) {
    for (const auto& [key, value] : *side) keys.insert(key);
  }
  keys.erase("out");  // the folder itself, perhaps moved
  const auto value_in = [](const std::map<std::string, std::string>& side, const std::string& key) {
    const auto it = side.find(key);
    return it == side.end() ? "not set" : it->second;
  };
  std::string changes;
  for (const std::string& key : keys) {
    const std::string was = value_in(before, key), is = value_in(now, key);
    if (was == is || number_of(was) == number_of(is)) continue;
    changes += fmt::format("{}{} was {}, is {}", changes.empty() ? "" : "; ", key, was, is);
  }
  if (changes.empty()) return;
  std::fprintf(stderr, "continued with other settings: %s\n", changes.c_str());
}

void run(const CLI::App& command, const Options& o) {
  RlOptions rl = from_options([&] { return make_rl_options(o); });
  require_available(rl.device);
  const auto runtime = o.runtime.make();
  const std::atomic<bool>& stop = stop_requested();
  const std::filesystem::path out = o.out;
  require_out_folder(out);
  require(!std::filesystem::exists(out / "config.json"),
          "--out {} holds a model: choose a folder of the run's own", o.out);
  require(o.resume || !run_has_steps(out),
          "{} holds a run already: continue it with --resume or choose another --out", o.out);
  require(
      !o.resume || run_has_begun(out),
      "--resume: {} holds no run to continue: correct --out, or leave --resume out to start one "
      "there",
      o.out);
  LoadedModel model = load_model(o.load);
  const std::unique_ptr<Task> task = o.task.make(model);
  const std::unique_ptr<Reward> reward = o.task.make_reward(*task, model);
  fit(rl, o, model.config());
  const ForeignKernels aten = {
      .on_cpu =
          [&](const Parameters& parameters, const kernels::CpuContext& context) {
            return make_aten_blocks(parameters, rl.recipe.trainer, rl.scope, context);
          },
      .on_gpu = make_aten_cuda_blocks};
  RlRun loop(*runtime, *model.parameters, *task, *reward, *model.tokenizer, model.stop_tokens, rl,
             aten);
  if (const std::string plan = loop.memory_plan(); !plan.empty()) {
    std::fprintf(stderr, "memory of the device: %s\n", plan.c_str());
  }
  make_out_folder(out);
  const OutputLock lock = OutputLock::inside(out);
  remove_stale_temporaries(out);  // of a process that was killed while writing
  const bool resumed = o.resume && loop.resume(out);
  if (o.resume && !resumed) {  // it was stopped before its first
    std::fprintf(stderr, "WARNING: %s has no checkpoint: starting from step 0\n", o.out.c_str());
  }
  if (loop.done()) {
    std::fprintf(stderr, "already at step %lld of %lld; nothing to do\n",
                 static_cast<long long>(loop.step()), static_cast<long long>(rl.num_rollout));
    return;
  }
  if (!o.task.from_files()) {
    std::fprintf(stderr,
                 "training on the built-in task %s; --prompt-data F.jsonl trains on your own "
                 "problems\n",
                 o.task.built_in.name.c_str());
  }
  const std::string config = resolved_config(command, {"resume"});
  if (resumed) tell_changes(out / "config.toml", config);
  write_file_atomically(out / "config.toml", config);
  const int64_t first = loop.step();
  {
    Progress progress(
        {.label = rl.recipe.name, .total = rl.num_rollout, .first = first, .log_every_s = 10});
    loop.run(out, stop, progress);
  }
  require(loop.step() == rl.num_rollout, "stopped after step {} of {}; continue with --resume",
          loop.step(), rl.num_rollout);
  require(loop.done(), "stopped in the evaluation after step {}; continue with --resume",
          loop.step());
}

// The subcommand, which does nothing yet, and what it will have parsed.
std::pair<CLI::App*, std::shared_ptr<const Options>> declare(CLI::App& app) {
  CLI::App* command = app.add_subcommand("train", "reinforcement learning under a recipe");
  const auto o = std::make_shared<Options>();
  add_config(command);
  command->add_option("--out", o->out, "run directory")->required();
  command->add_option("--load", o->load, "model directory to start from")->required();
  command->add_flag("--resume", o->resume, "continue the run in --out from its newest checkpoint");
  o->runtime.add(command);
  o->task.add(command);

  const auto text = [&](const char* name, std::string& value, const char* help) {
    return command->add_option(name, value, help)->capture_default_str();
  };
  const auto number = [&](const char* name, auto& value, const char* help) {
    return command->add_option(name, value, help)->capture_default_str();
  };
  text("--recipe", o->recipe, "the precisions of both sides")->check(CLI::IsMember(recipe_names()));
  command->add_option("--rollout-precision", o->rollout_precision, "instead of the recipe's")
      ->check(CLI::IsMember(precision_names()));
  command->add_option("--trainer-precision", o->trainer_precision, "likewise")
      ->check(CLI::IsMember(precision_names()));
  add_names<TrainerKernels>(command, "--trainer-kernels", o->trainer_kernels,
                            "shared: the rollout's kernels; aten: another engine's");
  o->rac.add(command);
  o->scope.add(command);

  RlOptions& rl = o->rl;
  number("--num-rollout", rl.num_rollout, "steps");
  number("--rollout-batch-size", rl.rollout_batch_size, "prompts a step");
  number("--n-samples-per-prompt", rl.n_samples_per_prompt, "responses a prompt");
  number("--rollout-max-response-len", rl.max_response_len, "longest response, tokens");
  number("--rollout-max-context-len", rl.max_context_len,
         "longest prompt and response, tokens; 0: the model's, at most 4096");
  number("--rollout-temperature", rl.sampling.temperature, "sampling temperature");
  number("--rollout-top-p", rl.sampling.top_p, "nucleus sampling; 1 is off");
  number("--rollout-top-k", rl.sampling.top_k, "top-k sampling; 0 is off");
  command->add_flag("--allow-truncated-sampling", rl.allow_truncated_sampling,
                    "train on top-k or top-p samples all the same");
  number("--rollout-seed", rl.rollout_seed, "of the sampling")->check(not_negative());
  number("--seed", rl.seed, "of the problems")->check(not_negative());
  number("--max-running", rl.max_running, "sequences decoded at once");
  add_kv_memory(command, rl.kv_memory);
  add_device(command, o->device);

  number("--global-batch-size", rl.global_batch_size, "samples an update; 0: the whole rollout");
  number("--lr", rl.lr.lr, "learning rate");
  number("--min-lr", rl.lr.min_lr, "learning rate at the end of a decay");
  number("--lr-warmup-steps", rl.lr.warmup_steps, "updates until lr is reached");
  add_names<LrDecay>(command, "--lr-decay", o->lr_decay, "from --lr to --min-lr");
  number("--adam-beta1", rl.trainer.adamw.beta1, "AdamW");
  number("--adam-beta2", rl.trainer.adamw.beta2, "AdamW");
  number("--adam-eps", rl.trainer.adamw.eps, "AdamW");
  number("--weight-decay", rl.trainer.adamw.weight_decay, "AdamW, decoupled");
  number("--clip-grad", rl.trainer.adamw.max_grad_norm, "largest gradient norm; 0 is off");
  text("--master-dtype", o->master_dtype, "fp32, or bf16: masters rounded after every update")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  o->micro_batch.add(command);
  command->add_flag("--recompute-activations", rl.trainer.checkpoint_activations,
                    "keep only the layers' inputs for the backward");

  text("--advantage-estimator", o->advantage, "grpo, or dr_grpo: not divided by the deviation")
      ->check(CLI::IsMember({"grpo", "dr_grpo"}));
  number("--eps-clip", rl.loss.eps_clip, "lower clip of the policy ratio");
  rl.loss.eps_clip_high = 0.28;
  number("--eps-clip-high", rl.loss.eps_clip_high, "upper clip");
  add_names<RatioLevel>(command, "--ratio-level", o->ratio_level, "token, or sequence (GSPO)");
  add_names<LossAggregation>(command, "--loss-aggregation", o->loss_aggregation,
                             "token-mean (DAPO), sequence-mean (GRPO) or constant (Dr.GRPO)");
  number("--kl-loss-coef", rl.loss.kl_coef, "weight of the KL to the initial policy");
  add_names<KlEstimator>(command, "--kl-loss-type", o->kl_type, "its estimator");
  command
      ->add_option("--old-logprobs", o->old_logprobs,
                   "rollout, or recomputed by the trainer; default rollout, with a correction "
                   "recomputed")
      ->check(CLI::IsMember(names_of<OldLogprobs>()));
  add_names<CorrectionKind>(command, "--correction", o->correction,
                            "for the rollout's policy not being the trainer's");
  add_names<CorrectionLevel>(command, "--correction-level", o->correction_level,
                             "of what the correction weighs");
  command->add_flag("--use-tis", o->use_tis, "the same as --correction tis");
  command->add_option("--tis-clip", o->tis_clip, "upper bound of the correction's weight")
      ->check(not_negative());
  command->add_option("--tis-clip-low", o->tis_clip_low, "lower bound")->check(not_negative());
  command->add_flag("--dynamic-sampling", rl.dynamic_sampling,
                    "train only on prompts whose samples differ in reward (DAPO)");
  number("--dynamic-sampling-max-rounds", rl.dynamic_sampling_max_rounds, "rollouts to try");
  number("--overlong-buffer-len", rl.overlong_cache,
         "tokens below the limit from which length is punished (DAPO); 0 is off");
  command->add_flag("--use-rollout-routing-replay", rl.routing_replay,
                    "the trainer takes the experts that the rollout took (R3)");

  number("--verify-interval", rl.verify_interval,
         "steps between comparisons over the whole rollout; 0 is never");
  number("--eval-interval", rl.eval_interval, "steps between evaluations; 0: at the end only");
  number("--eval-problems", rl.eval_problems, "problems evaluated; 0: all");
  number("--n-samples-per-eval-prompt", rl.eval_samples, "responses a problem evaluated");
  number("--eval-temperature", rl.eval_temperature, "of evaluation; 0 is greedy");
  number("--eval-top-p", rl.eval_top_p, "of evaluation; 1 is off");
  number("--eval-max-response-len", rl.eval_max_response_len,
         "of evaluation, tokens; 0: as in training");
  number("--save-interval", rl.save_interval, "steps between checkpoints; 0: at the end only");
  number("--keep-checkpoints", rl.keep_checkpoints, "newest checkpoints kept; 0: all");
  number("--log-samples", rl.log_samples, "samples a step in samples.jsonl");
  rl.lr.lr = 1e-4;
  command->get_option("--lr")->capture_default_str();
  return {command, o};
}

}  // namespace

void add_train(CLI::App& app) {
  const auto [command, o] = declare(app);
  command->callback([command = command, o = o] { run(*command, *o); });
}

void check_train(const std::vector<std::string>& arguments) {
  CLI::App app("", "quads");
  const auto [command, o] = declare(app);
  command->callback([o = o] {
    if (o->resume) {
      throw CLI::ValidationError(
          "--resume", "quads compare continues what was stopped by itself: leave it out");
    }
    from_options([&] { return make_rl_options(*o); });
  });
  add_value_checks(app);
  std::vector<std::string> words(arguments.rbegin(), arguments.rend());  // as CLI11 wants them
  words.emplace_back("train");
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success&) {  // --help
    throw;
  } catch (const CLI::Error& error) {
    throw CLI::ValidationError(with_origin(app, arguments, usage_error(app, error)));
  }
}

}  // namespace quads::cli
