// quads quantize: a checkpoint in NVFP4 or FP8 that other engines load.
#include <cstdio>

#include "base/error.h"
#include "checkpoints/module_patterns.h"
#include "checkpoints/write_quantised.h"
#include "cli/command.h"
#include "eval/prompt_file.h"
#include "io/atomic_dir.h"
#include "io/output_lock.h"
#include "report/progress.h"

namespace quads::cli {
namespace {

struct Options {
  std::string model, out, format, prompts;
  bool weights_only = false;
  std::vector<std::string> exclude;
  std::string global_scale = "pow2";
  ScopeOptions scope;
  RuntimeOptions runtime;
};

// Without the scope, which depends on the model.
WriteQuantisedOptions write_options(const Options& o) {
  WriteQuantisedOptions options;
  options.format = parse_checkpoint_format(o.format);
  [[maybe_unused]] const ModulePatterns checked(o.exclude, "--exclude");
  options.exclude = o.exclude;
  options.global_scale = parse_global_scale(o.global_scale);
  const bool fp8 = options.format == CheckpointFormat::kFp8;
  if (fp8 && (o.weights_only || options.global_scale != GlobalScale::kPowerOfTwo)) {
    throw CLI::ValidationError("--format fp8",
                               "it has neither input scales nor a global scale to choose "
                               "(--weights-only, --global-scale)");
  }
  const bool scales = !o.weights_only && !fp8;
  if (scales && o.prompts.empty()) {
    throw CLI::ValidationError(
        "--prompts",
        fmt::format("--format {} has static input scales, which are measured on prompts: add "
                    "--prompts F.jsonl, or --weights-only to do without the scales",
                    o.format));
  }
  if (!scales && !o.prompts.empty()) {
    throw CLI::ValidationError("--prompts",
                               fmt::format("{} has no input scales to measure: leave --prompts out",
                                           fp8 ? "--format fp8" : "--weights-only"));
  }
  return options;
}

InputAmax measure(kernels::CpuRuntime& runtime, const LoadedModel& model,
                  const std::vector<PromptLine>& lines) {
  std::vector<std::vector<int32_t>> prompts;
  for (const PromptLine& line : lines) {
    prompts.push_back(line.tokens);
    if (line.response) {
      prompts.back().insert(prompts.back().end(), line.response->begin(), line.response->end());
    }
  }
  require(!prompts.empty(), "--prompts: the file has no lines");
  Progress progress(
      {.label = "calibrate", .unit = "prompt", .total = std::ssize(prompts), .log_every_s = 10});
  return measure_input_amax(runtime, *model.parameters, prompts,
                            [&](int64_t done) { progress.update(done); });
}

void run(const Options& o) {
  WriteQuantisedOptions options = from_options([&] { return write_options(o); });
  const auto runtime = o.runtime.make();
  const OutputLock lock = OutputLock::beside(o.out);
  AtomicDir out(o.out);
  const LoadedModel model = load_model(o.model, {.require_tokenizer = false});
  options.scope = o.scope.make(model.config());
  std::optional<InputAmax> amax;
  if (!o.prompts.empty()) {
    amax = measure(*runtime, model, read_prompts(o.prompts, model.tokenizer.get()));
    options.input_amax = &*amax;
  }
  {
    std::optional<Progress> progress;
    options.on_progress = [&](int64_t done, int64_t total) {
      if (!progress) {
        progress.emplace(ProgressOptions{
            .label = "quantize", .unit = "matrix", .total = total, .log_every_s = 10});
      } else {
        progress->update(done);
      }
    };
    write_quantised(runtime->context(), *model.parameters, o.model, out.path(), options);
  }
  out.commit();
  std::printf("%s: %s\n", o.out.c_str(), o.format.c_str());
}

}  // namespace

void add_quantize(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("quantize", "write a checkpoint in NVFP4 or FP8 that other engines load");
  const auto o = std::make_shared<Options>();
  add_config(command);
  command->add_option("--model", o->model, "model directory")->required();
  command->add_option("--format", o->format, "nvfp4-modelopt, nvfp4-compressed-tensors or fp8")
      ->required()
      ->check(CLI::IsMember({"nvfp4-modelopt", "nvfp4-compressed-tensors", "fp8"}));
  command->add_option("--out", o->out, "model directory to write")->required();
  command->add_flag("--weights-only", o->weights_only,
                    "NVFP4: no input scales; engines keep activations in BF16");
  command->add_option("--prompts", o->prompts,
                      "NVFP4: JSONL as for quads rollout, responses included, on which the static "
                      "input scales are measured");
  command->add_option("--exclude", o->exclude,
                      "module that stays BF16: a name, a parent's name, a wildcard like "
                      "'*.layers.0.*', or re: and a regular expression; repeatable");
  o->scope.add(command);
  command
      ->add_option("--global-scale", o->global_scale,
                   "NVFP4: pow2, as rollouts have it, or amax / 2688, as other tools do")
      ->capture_default_str()
      ->check(CLI::IsMember({"pow2", "amax"}));
  o->runtime.add(command);
  command->callback([o] { run(*o); });
}

}  // namespace quads::cli
