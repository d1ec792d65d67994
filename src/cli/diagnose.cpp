// quads diagnose: where the gap between rollout and trainer comes from.
#include "aten/aten_engine.h"
#include "base/error.h"
#include "cli/generation_options.h"
#include "cli/task_options.h"
#include "diagnose/diagnosis_report.h"
#include "eval/evaluation.h"
#include "eval/prompt_file.h"
#include "io/atomic_file.h"

namespace quads::cli {
namespace {

struct Options {
  std::string model, prompts, per_token;
  RuntimeOptions runtime;
  TaskOptions task;
  RacOptions rac;
  ScopeOptions scope;
  GenerationOptions generation;
  int64_t problems = 32;
  int32_t n_samples = 4;
  std::string trainer_kernels = "aten";
  JsonOption json;
};

std::vector<Request> requests_of(const Options& o, const LoadedModel& model) {
  if (o.prompts.empty()) {
    require(model.tokenizer != nullptr, "{}: a task's problems need a tokenizer.json", o.model);
    return evaluation_set(*o.task.make(model), *model.tokenizer, o.problems, o.n_samples).requests;
  }
  std::vector<Request> requests;
  for (const PromptLine& line : read_prompts(o.prompts, model.tokenizer.get())) {
    requests.push_back(
        {.prompt_index = line.index, .prompt = line.tokens, .n_samples = o.n_samples});
  }
  return requests;
}

// What is wrong whatever the files hold; the compensation.
Rac check(const Options& o) {
  require(o.generation.temperature > 0, "--temperature 0: a diagnosis samples: give one above 0");
  const Rac rac = o.rac.make(.5);
  require(rac.ratio > 0, "--rac-ratio {}: a diagnosis with compensation needs a share above 0",
          o.rac.ratio);
  if (o.prompts.empty()) {
    o.task.check();
    return rac;
  }
  const auto excludes = [&](bool given, const char* option) {
    require(!given, "--prompts {} and {}: the prompts come from one place: give one of them",
            o.prompts, option);
  };
  const BuiltInTaskOptions& task = o.task.built_in;
  excludes(!o.task.eval_data.empty(), "--eval-data");
  excludes(!o.task.prompt_data.empty(), "--prompt-data");
  excludes(task.name != BuiltInTaskOptions{}.name, "--task");
  excludes(!task.options.empty(), "--task-option");
  return rac;
}

void run(const Options& o) {
  stop_requested();
  const Rac rac = from_options([&] { return check(o); });
  from_options([&] { o.json.require_other("--per-token", o.per_token); });
  const auto runtime = o.runtime.make();
  if (!o.per_token.empty()) require_writable_target(o.per_token);
  o.json.require_writable();
  const LoadedModel model = load_model(o.model, {.require_tokenizer = false});
  DiagnosisOptions options;
  options.scope = o.scope.make(model.config());
  options.rac = rac;
  options.requests = requests_of(o, model);
  for (const Request& request : options.requests) {
    require_positions(model.config(), std::ssize(request.prompt), o.generation.max_response_len,
                      fmt::format("prompt {}", request.prompt_index));
  }
  options.sampling = o.generation.make(model.stop_tokens);
  options.engine = {.max_running = o.generation.max_running,
                    .max_context = context_of(options.requests, o.generation.max_response_len),
                    .kv_memory_bytes = o.generation.kv_memory};
  if (o.trainer_kernels == "aten") {
    options.trainer_blocks = [&](const PackedModel& packed) {
      return aten_engine().make_blocks(runtime->context(), packed);
    };
  }
  const Diagnosis diagnosis = diagnose(*runtime, *model.parameters, options);
  o.json.write(diagnosis_tables(diagnosis), diagnosis_json(diagnosis));
  if (!o.per_token.empty()) write_token_deltas(o.per_token, diagnosis);
}

}  // namespace

void add_diagnose(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "diagnose",
      "take the gap between NVFP4 rollouts and the trainer apart: activations, weights, kernels; "
      "with and without residual compensation, with a BF16 and a W4A16 trainer");
  const auto o = std::make_shared<Options>();
  add_config(command);
  command->add_option("--model", o->model, "model directory")->required();
  command->add_option("--prompts", o->prompts, "JSONL with prompts instead of the task's problems");
  command->add_option("--problems", o->problems, "evaluation problems of the task; 0: all")
      ->capture_default_str()
      ->check(not_negative());
  command->add_option("--n-samples-per-prompt", o->n_samples, "samples a prompt")
      ->capture_default_str()
      ->check(positive());
  command
      ->add_option("--trainer-kernels", o->trainer_kernels,
                   "aten: another engine's; shared: the rollout's, whose delta_num is zero")
      ->capture_default_str()
      ->check(CLI::IsMember({"aten", "shared"}));
  command->add_option("--per-token", o->per_token, "JSONL with every token's differences");
  o->json.add(command);
  o->task.add(command);
  o->rac.add(command);
  o->scope.add(command);
  o->generation.add(command);
  o->runtime.add(command);
  command->callback([o] { run(*o); });
}

}  // namespace quads::cli
