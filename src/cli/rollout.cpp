// quads rollout: samples responses to prompts, or scores given ones.
#include <algorithm>
#include <cstdio>
#include <optional>
#include <set>

#include "base/error.h"
#include "cli/generation_options.h"
#include "cli/task_options.h"
#include "eval/sample_file.h"
#include "io/atomic_file.h"
#include "io/output_lock.h"
#include "report/progress.h"
#include "tasks/scoring.h"

namespace quads::cli {
namespace {

struct Options {
  std::string model, prompts, out;
  BuiltInTaskOptions task{.name = ""};
  RewardFlags rewards;
  RuntimeOptions runtime;
  PrecisionOptions precisions;
  GenerationOptions generation;
  int32_t n_samples = 1;
  bool stream = false;
};

// What is sampled and what is scored, each with its line.
struct Work {
  std::vector<Request> requests;
  std::vector<const PromptLine*> request_lines;
  std::vector<Sample> scored;
  std::vector<const PromptLine*> scored_lines;
};

Work plan(const std::vector<PromptLine>& lines, int32_t n_samples) {
  Work work;
  for (const PromptLine& line : lines) {
    if (line.response) {
      Sample& sample = work.scored.emplace_back();
      sample.prompt_index = line.index;
      sample.sample_index = line.sample;
      sample.prompt = line.tokens;
      sample.response = *line.response;
      work.scored_lines.push_back(&line);
    } else {
      work.requests.push_back({.prompt_index = line.index,
                               .prompt = line.tokens,
                               .n_samples = n_samples,
                               .first_sample = line.sample});
      work.request_lines.push_back(&line);
    }
  }
  return work;
}

// The rewards of the samples whose prompts have a label or metadata; none at all after Ctrl-C. A
// reward that breaks down gives failures: what was sampled is kept.
std::vector<std::optional<RewardResult>> score(Reward& reward,
                                               const std::vector<const PromptLine*>& lines,
                                               const std::vector<Sample>& samples,
                                               const Tokenizer* tokenizer) {
  std::vector<std::optional<RewardResult>> results(samples.size());
  if (tokenizer == nullptr) return results;
  std::vector<size_t> places;
  std::vector<Problem> problems;
  std::vector<std::string> responses;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!lines[i]->label && !lines[i]->metadata) continue;
    places.push_back(i);
    problems.push_back(
        {lines[i]->index, lines[i]->prompt, lines[i]->label.value_or(""), lines[i]->metadata});
    responses.push_back(tokenizer->decode(samples[i].response));
  }
  try {
    const std::vector<RewardResult> scored = score_responses(reward, problems, responses);
    for (size_t i = 0; i < places.size(); ++i) results[places[i]] = scored[i];
  } catch (const Interrupted&) {
  } catch (const Error& error) {
    for (size_t place : places) results[place] = RewardResult{.failure = error.what()};
  }
  return results;
}

// Says on stderr how many could not be scored, and the first cause.
void tell_failures(const std::vector<std::optional<RewardResult>>& rewards) {
  int64_t asked = 0, failed = 0;
  std::string first;
  for (const auto& reward : rewards) {
    asked += reward.has_value();
    if (!reward || reward->failure.empty()) continue;
    if (failed++ == 0) first = reward->failure;
  }
  if (failed == 0) return;
  std::fprintf(stderr, "%lld of %lld responses could not be scored; first: %s\n",
               static_cast<long long>(failed), static_cast<long long>(asked), first.c_str());
}

// What is wrong with the reward's options whatever the prompts are.
void check_reward(const Options& o) {
  if (!o.task.name.empty()) {
    o.rewards.require_none(o.task.name);
    o.task.make();
    return;
  }
  require(o.task.options.empty(), "--task-option is for --task, which is not given");
  check(o.rewards.parsed());
}

std::unique_ptr<Reward> make_reward(const Options& o, const LoadedModel& model,
                                    const std::vector<PromptLine>& lines) {
  if (!o.task.name.empty()) return o.task.make()->reward();
  std::set<std::string> by_problem;
  for (const PromptLine& line : lines) {
    if (auto type = own_reward(line.metadata.get())) by_problem.insert(*type);
  }
  return o.rewards.make(model, std::move(by_problem));
}

void run(const Options& o) {
  const std::atomic<bool>& stop = stop_requested();
  const std::vector<NamedPrecision> precisions = from_options([&] { return o.precisions.make(); });
  if (precisions.size() != 1) {
    throw CLI::ValidationError("--precision", "one precision is expected");
  }
  LoadOptions loading = from_options([&] { return o.generation.load_options(precisions); });
  loading.require_tokenizer = false;
  from_options([&] { check_reward(o); });
  require_available(parse_device(o.generation.device));
  const auto runtime = o.runtime.make();
  std::error_code unequal;  // one that is not there is not the same
  require(!std::filesystem::equivalent(o.prompts, o.out, unequal),
          "--out {}: would overwrite the prompts", o.out);
  const OutputLock lock = OutputLock::beside(o.out);
  const LoadedModel model = load_model(o.model, loading);
  const Tokenizer* tokenizer = model.tokenizer.get();
  const std::vector<PromptLine> lines = read_prompts(o.prompts, tokenizer);
  for (const PromptLine& line : lines) {
    require_positions(model.config(), std::ssize(line.tokens),
                      line.response ? std::ssize(*line.response) : o.generation.max_response_len,
                      line.where);
  }
  const std::unique_ptr<Reward> reward = make_reward(o, model, lines);
  Work work = plan(lines, o.n_samples);
  GenerateOptions options = o.generation.make(model.stop_tokens);

  // The prompts of scored responses serve for calibration too.
  std::vector<Request> prompts = work.requests;
  for (const Sample& s : work.scored) prompts.push_back({.prompt = s.prompt});
  int64_t max_context = context_of(prompts, options.max_new_tokens);
  for (const Sample& s : work.scored) {
    max_context = std::max(max_context, std::ssize(s.prompt) + std::ssize(s.response));
  }
  GenerationOptions generation = o.generation;
  if (o.stream) generation.max_running = 1;  // one response after the other, readable
  const auto generator =
      make_generator(*runtime, model, precisions[0], o.precisions, generation, prompts, max_context,
                     options, checkpoint_masks(o.model, model.config()));

  AtomicFile out(o.out);
  std::vector<const PromptLine*> finished_lines;
  std::vector<Sample> finished_samples;
  const int64_t sampled = std::ssize(work.requests) * o.n_samples;
  const int64_t wanted = sampled + std::ssize(work.scored);
  if (!work.requests.empty()) {
    std::optional<Progress> progress;
    std::unique_ptr<TokenStream> text;  // of the one response that is being generated
    if (o.stream) {
      require(tokenizer != nullptr, "--stream needs a tokenizer.json in the model's directory");
      text = tokenizer->stream();
      options.on_token = [&](int64_t, int32_t, int32_t token, float) {
        std::fputs(text->push(token).c_str(), stdout);
        std::fflush(stdout);
      };
      options.on_finished = [&](const Sample& sample) {
        if (sample.finish != FinishReason::kCancelled) {
          std::fputs((text->finish() + "\n").c_str(), stdout);
        }
        text = tokenizer->stream();
      };
    } else {
      progress.emplace(ProgressOptions{
          .label = "rollout", .unit = "sample", .total = sampled, .log_every_s = 10});
      options.on_finished = [&progress, done = int64_t{0}](const Sample& sample) mutable {
        if (sample.finish != FinishReason::kCancelled) progress->update(++done);
      };
    }
    std::vector<Sample> samples = generator->generate(work.requests, options);
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].finish == FinishReason::kCancelled) continue;
      finished_lines.push_back(work.request_lines[i / static_cast<size_t>(o.n_samples)]);
      finished_samples.push_back(std::move(samples[i]));
    }
  }
  constexpr size_t kScoredAtOnce = 256;  // between looks at `stop`
  std::vector<std::vector<float>> logprobs;
  for (size_t i = 0; i < work.scored.size() && !(stop && i % kScoredAtOnce == 0); ++i) {
    if (i % kScoredAtOnce == 0) {
      const std::span<const Sample> rest = std::span(work.scored).subspan(i);
      logprobs = generator->score(rest.first(std::min(rest.size(), kScoredAtOnce)),
                                  o.generation.temperature);
    }
    Sample& sample = work.scored[i];
    sample.logprobs = logprobs[i % kScoredAtOnce];
    const bool stopped =
        !sample.response.empty() &&
        std::ranges::find(model.stop_tokens, sample.response.back()) != model.stop_tokens.end();
    sample.finish = stopped ? FinishReason::kStop : FinishReason::kLength;
    finished_lines.push_back(work.scored_lines[i]);
    finished_samples.push_back(std::move(sample));
  }
  const int64_t finished = std::ssize(finished_samples);
  const std::vector<std::optional<RewardResult>> rewards =
      score(*reward, finished_lines, finished_samples, tokenizer);
  for (size_t i = 0; i < finished_samples.size(); ++i) {
    out.write(sample_line(*finished_lines[i], finished_samples[i], tokenizer,
                          rewards[i] ? &*rewards[i] : nullptr));
  }
  out.commit();
  tell_failures(rewards);
  require(finished == wanted, "stopped: {} of {} samples were finished and are in {}", finished,
          wanted, o.out);
}

}  // namespace

void add_rollout(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "rollout",
      "sample responses to prompts, one JSON object a sample; a prompt that comes with "
      "response_tokens is not sampled: the log-probabilities of those tokens are computed instead");
  const auto o = std::make_shared<Options>();
  add_config(command);
  command->add_option("--model", o->model, "model directory")->required();
  command
      ->add_option("--prompts", o->prompts,
                   "JSONL: prompt or prompt_tokens; perhaps label, response_tokens, index, sample")
      ->required();
  command->add_option("--out", o->out, "JSONL to write; after Ctrl-C it has what was finished")
      ->required();
  o->task.add(command);
  command->get_option("--task")->description(
      "scores responses to prompts with a label, instead of --rm-type");
  o->rewards.add(command);
  o->precisions.add(command, {"bf16"}, true);
  command->add_option("--n-samples-per-prompt", o->n_samples, "samples a prompt")
      ->capture_default_str()
      ->check(positive());
  o->generation.add(command);
  o->generation.add_device_and_stored(command);
  command->add_flag("--stream", o->stream,
                    "print the text as it comes, one response after the other");
  o->runtime.add(command);
  command->callback([o] { run(*o); });
}

}  // namespace quads::cli
