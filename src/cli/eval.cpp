// quads eval: pass@k, maj@k and mean@k of a model, in any precision.
#include "base/error.h"
#include "cli/generation_options.h"
#include "cli/task_options.h"
#include "eval/evaluation.h"
#include "io/atomic_file.h"
#include "io/output_lock.h"
#include "report/progress.h"
#include "tasks/benchmark.h"

namespace quads::cli {
namespace {

struct Options {
  std::string model, out, benchmark;
  RuntimeOptions runtime;
  TaskOptions task;
  PrecisionOptions precisions;
  GenerationOptions generation;
  int64_t problems = 0;
  int32_t n_samples = 1;
  std::vector<int64_t> ks = {1};
  JsonOption json;
};

// The options with what the benchmark's form says and the user did not.
TaskOptions with_benchmark(TaskOptions task, const CLI::App& command, const std::string& path) {
  if (path.empty()) return task;
  const BenchmarkForm form = benchmark_form(path);
  task.eval_data = path;
  task.data.format.live_code_bench_prompts = form.live_code_bench;
  if (command.get_option("--rm-type")->empty()) task.rewards.options.types = {form.reward};
  if (command.get_option("--prompt-template")->empty()) {
    task.data.format.prompt_template = form.prompt_template;
  }
  return task;
}

// What is wrong whatever the files hold.
void check(const Options& o) {
  for (int64_t k : o.ks) {
    require(k >= 1 && k <= o.n_samples, "--k: {} is not in 1..{}, the samples a prompt", k,
            o.n_samples);
  }
  require(o.benchmark.empty() || !o.task.from_files(),
          "--benchmark {}: --prompt-data and --eval-data are for other files", o.benchmark);
  require(o.task.prompt_data.empty() || !o.task.eval_data.empty(),
          "--prompt-data {}: problems to train on are not evaluated: give them as --eval-data",
          o.task.prompt_data);
}

void run(const CLI::App& command, const Options& o) {
  from_options([&] { check(o); });
  from_options([&] { o.json.require_other("--out", o.out); });
  const std::vector<NamedPrecision> precisions = from_options([&] { return o.precisions.make(); });
  const LoadOptions loading = from_options([&] { return o.generation.load_options(precisions); });
  require_available(parse_device(o.generation.device));
  const auto runtime = o.runtime.make();
  stop_requested();
  if (!o.out.empty()) require_writable_target(o.out);
  o.json.require_writable();
  std::optional<OutputLock> lock;
  if (!o.out.empty()) lock.emplace(OutputLock::beside(o.out));
  const TaskOptions task_options = with_benchmark(o.task, command, o.benchmark);
  from_options([&] { task_options.check(); });
  const LoadedModel model = load_model(o.model, loading);
  const std::unique_ptr<Task> task = task_options.make(model);
  const std::unique_ptr<Reward> reward = task_options.make_reward(*task, model);
  const EvaluationSet set = evaluation_set(*task, *model.tokenizer, o.problems, o.n_samples);
  for (const Request& request : set.requests) {
    require_positions(model.config(), std::ssize(request.prompt), o.generation.max_response_len,
                      fmt::format("problem {}", request.prompt_index));
  }
  const std::optional<RacMasks> masks = checkpoint_masks(o.model, model.config());
  std::vector<Evaluation> evaluations;
  for (const NamedPrecision& precision : precisions) {
    GenerateOptions options = o.generation.make(model.stop_tokens);
    const auto generator =
        make_generator(*runtime, model, precision, o.precisions, o.generation, set.requests,
                       context_of(set.requests, options.max_new_tokens), options, masks);
    Progress progress({.label = precision.name,
                       .unit = "sample",
                       .total = std::ssize(set.problems) * o.n_samples,
                       .log_every_s = 10});
    int64_t done = 0;
    options.on_finished = [&](const Sample&) { progress.update(++done); };
    evaluations.push_back(evaluate_set(*generator, set, *reward, *model.tokenizer, o.ks, options));
  }
  std::vector<NamedEvaluation> named;
  for (size_t i = 0; i < precisions.size(); ++i) {
    named.push_back({precisions[i].name, &evaluations[i]});
  }
  o.json.write(evaluations_table(named), evaluations_json(named));
  if (!o.out.empty()) write_by_problem(o.out, set, named);
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "pass@k, maj@k and mean@k of a model");
  const auto o = std::make_shared<Options>();
  add_config(command);
  command->add_option("--model", o->model, "model directory")->required();
  command->add_option("--out", o->out, "JSONL with an object a problem and precision");
  o->json.add(command);
  o->precisions.add(command, {"bf16"}, true);
  o->task.add(command);
  command->get_option("--prompt-data")
      ->description("JSONL that was trained on: a problem in both files is an error");
  command->get_option("--eval-data")
      ->description("JSONL with problems to evaluate on, instead of a built-in task");
  command->add_option("--benchmark", o->benchmark,
                      "JSONL in the form of AIME and HMMT (problem, answer) or LiveCodeBench "
                      "(question_content, test cases); chooses --rm-type and --prompt-template");
  command->add_option("--problems", o->problems, "evaluation problems; 0: all")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--n-samples-per-prompt", o->n_samples, "samples a problem")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--k", o->ks, "k of pass@k and maj@k: 1,2,4")
      ->capture_default_str()
      ->delimiter(',');
  o->generation.add(command);
  o->generation.add_device_and_stored(command);
  o->runtime.add(command);
  command->callback([command, o] { run(*command, *o); });
}

}  // namespace quads::cli
