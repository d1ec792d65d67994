// quads bench: each figure beside a peer or a limit that is measured in the same run.
#include "bench/code.h"
#include "bench/device_gemm.h"
#include "bench/device_rollout.h"
#include "bench/device_sync.h"
#include "bench/device_train.h"
#include "bench/gemm.h"
#include "bench/rollout.h"
#include "bench/sync.h"
#include "bench/train.h"
#include "cli/generation_options.h"
#include "rl/recipe.h"

namespace quads::cli {
namespace {

struct Common {
  RuntimeOptions runtime;
  JsonOption json;
  void add(CLI::App* command) {
    add_config(command);
    json.add(command);
    runtime.add(command);
  }
  std::unique_ptr<kernels::CpuRuntime> make_runtime() const {
    json.require_writable();
    return runtime.make();
  }
  void write(const bench::Result& result) const {
    json.write(bench::result_table(result), bench::result_json(result));
  }
};

CLI::Option* add_shape(CLI::App* command, std::string& shape) {
  return command
      ->add_option("--model-shape", shape, "the demo's model, or the shape of a larger one")
      ->capture_default_str()
      ->check(CLI::IsMember({"demo", "1b", "olmoe", "30b"}));
}

std::vector<bench::BenchPrecision> precisions_of(const PrecisionOptions& options,
                                                 const std::string& shape) {
  const ModelConfig model = bench::bench_shape(shape);
  std::vector<bench::BenchPrecision> precisions;
  for (const NamedPrecision& named : options.make()) {
    precisions.push_back({*named.precision, options.scope_of(*named.precision, model)});
  }
  return precisions;
}

// Options that only one device has: wrong usage if one of them is given on the other.
struct DeviceOptions {
  std::vector<const CLI::Option*> of_cpu, of_gpu;
  void check(bool on_gpu) const {
    for (const CLI::Option* option : on_gpu ? of_cpu : of_gpu) {
      if (option->count() == 0) continue;
      throw CLI::ValidationError(option->get_name(),
                                 fmt::format("it is for --device {}", on_gpu ? "cpu" : "cuda"));
    }
  }
};

void add_gemm(CLI::App* bench) {
  struct Options {
    Common common;
    std::vector<int64_t> rows = {1, 8, 64, 512};
    bench::DeviceGemmBench on_device;
    std::string device = "cpu";
    DeviceOptions of_device;
  };
  CLI::App* command =
      bench->add_subcommand("gemm", "matrix products, beside ATen's and the memory");
  const auto o = std::make_shared<Options>();
  o->common.add(command);
  add_device(command, o->device);
  o->of_device.of_cpu = {command->add_option("--m", o->rows, "on a CPU: rows of activations")
                             ->capture_default_str()
                             ->check(positive())
                             ->delimiter(',')};
  o->of_device.of_gpu = {
      add_shape(command, o->on_device.shape)->description("on a GPU: whose experts"),
      command->add_option("--tokens", o->on_device.tokens, "on a GPU: tokens of a batch")
          ->capture_default_str()
          ->check(positive())
          ->delimiter(',')};
  command->callback([o] {
    const bool on_gpu = parse_device(o->device) == Device::kCuda;
    o->of_device.check(on_gpu);
    const auto runtime = o->common.make_runtime();
    o->common.write(
        on_gpu ? bench::bench_device_gemm(o->on_device)
               : bench::bench_gemm(
                     *runtime,
                     {{1536, 2048, true}, {2048, 768, true}, {128, 128, false}, {64, 128, false}},
                     o->rows));
  });
}

void add_rollout_bench(CLI::App* bench) {
  struct Options {
    Common common;
    bench::RolloutBench rollout;
    PrecisionOptions precisions;
    std::string device = "cpu";
  };
  CLI::App* command = bench->add_subcommand("rollout", "tokens a second by precision");
  const auto o = std::make_shared<Options>();
  o->common.add(command);
  add_shape(command, o->rollout.shape);
  add_device(command, o->device);
  command->add_option("--prompt-len", o->rollout.prompt_len, "tokens of a prompt")
      ->capture_default_str()
      ->check(positive());
  o->precisions.add(command, {"bf16", "fp8", "w4a16", "nvfp4", "nvfp4-rac50", "nvfp4-rac100"},
                    false);
  command->add_option("--batch", o->rollout.batches, "sequences at once; default 512, or 1,8,64")
      ->delimiter(',')
      ->check(positive());
  command->add_option("--response-len", o->rollout.response_len, "tokens of a response")
      ->capture_default_str()
      ->check(positive());
  command->add_option("--repeats", o->rollout.repeats, "runs whose median is taken")
      ->capture_default_str()
      ->check(positive());
  command->add_flag("--by-kernel", o->rollout.by_kernel,
                    "on a GPU: where the time of a decode step goes");
  command->callback([o] {
    bench::RolloutBench rollout = o->rollout;
    if (rollout.by_kernel && o->device != "cuda") {
      throw CLI::ValidationError("--by-kernel", "it is for --device cuda");
    }
    rollout.precisions = from_options([&] { return precisions_of(o->precisions, rollout.shape); });
    if (rollout.batches.empty()) {
      rollout.batches =
          rollout.shape == "demo" ? std::vector<int64_t>{512} : std::vector<int64_t>{1, 8, 64};
    }
    const auto runtime = o->common.make_runtime();
    const bool on_gpu = parse_device(o->device) == Device::kCuda;
    o->common.write(on_gpu ? bench::bench_device_rollout(*runtime, rollout)
                           : bench::bench_rollout(*runtime, rollout));
  });
}

void add_train_bench(CLI::App* bench) {
  struct Options {
    Common common;
    bench::TrainBench train;
    bench::DeviceTrainBench on_device;
    std::string device = "cpu";
    std::vector<std::string> recipes;
    std::optional<int64_t> steps, prompts, samples, response_len;
    DeviceOptions of_device;
  };
  CLI::App* command = bench->add_subcommand("train", "seconds of a step by part");
  const auto o = std::make_shared<Options>();
  o->train.recipes = {"bf16", "nvfp4", "quads", "quads-aligned"};
  o->on_device.recipes = {"quads:aten", "quads-aligned"};
  o->common.add(command);
  command->add_option("--device", o->device, "cpu: the demo's shape; cuda: a GPU, and a shape")
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command
      ->add_option("--recipes", o->recipes,
                   "recipes, on a GPU with ':aten' behind them for ATen's kernels, ':floor' for "
                   "--rac-scale-floor; default " +
                       fmt::format("{}, there {}", fmt::join(o->train.recipes, ","),
                                   fmt::join(o->on_device.recipes, ",")))
      ->delimiter(',')
      ->check([](const std::string& text) {
        try {
          bench::parse_device_recipe(text);
          return std::string();
        } catch (const Error& error) {
          return std::string(error.what());
        }
      });
  const auto count = [&](const char* name, auto& value, const char* help, int64_t of_cpu,
                         int64_t of_gpu) {
    return command
        ->add_option(name, value, fmt::format("{}; default {}, on a GPU {}", help, of_cpu, of_gpu))
        ->check(positive());
  };
  count("--steps", o->steps, "steps of each; the first is not counted", o->train.steps,
        o->on_device.steps)
      ->check(CLI::Range(2, 1000));
  count("--prompts", o->prompts, "prompts a step", o->train.prompts, o->on_device.prompts);
  count("--samples", o->samples, "responses a prompt", o->train.samples, o->on_device.samples);
  count("--response-len", o->response_len, "tokens of a response", o->train.response_len,
        o->on_device.response_len);
  o->of_device.of_gpu = {
      add_shape(command, o->on_device.shape),
      command->add_option("--layers", o->on_device.layers, "of the shape; 0: all")
          ->capture_default_str()
          ->check(not_negative()),
      command->add_option("--prompt-len", o->on_device.prompt_len, "tokens of a prompt")
          ->capture_default_str()
          ->check(positive()),
      command
          ->add_option("--max-tokens-per-batch", o->on_device.max_tokens,
                       "rows of a micro-batch; 0: as train")
          ->capture_default_str()
          ->check(not_negative())};
  command->callback([o] {
    const bool on_gpu = parse_device(o->device) == Device::kCuda;
    o->of_device.check(on_gpu);
    const auto take = [&](auto& options) {
      if (!o->recipes.empty()) options.recipes = o->recipes;
      options.steps = o->steps.value_or(options.steps);
      options.prompts = o->prompts.value_or(options.prompts);
      options.samples = o->samples.value_or(options.samples);
      options.response_len = o->response_len.value_or(options.response_len);
    };
    take(o->train);
    take(o->on_device);
    for (const std::string& recipe : o->recipes) {
      if (!on_gpu) from_options([&] { return make_recipe(recipe, {}); });
    }
    const auto runtime = o->common.make_runtime();
    o->common.write(on_gpu ? bench::bench_device_train(o->on_device)
                           : bench::bench_train(*runtime, o->train));
  });
}

void add_sync_bench(CLI::App* bench) {
  struct Options {
    Common common;
    std::string shape = "demo";
    PrecisionOptions precisions;
    std::string device = "cpu";
  };
  CLI::App* command = bench->add_subcommand("sync", "weight syncs, beside memcpy");
  const auto o = std::make_shared<Options>();
  o->common.add(command);
  add_shape(command, o->shape);
  add_device(command, o->device);
  o->precisions.add(command, {"bf16", "fp8", "w4a16", "nvfp4-rac50"}, false);
  command->callback([o] {
    const auto precisions = from_options([&] { return precisions_of(o->precisions, o->shape); });
    const auto runtime = o->common.make_runtime();
    o->common.write(parse_device(o->device) == Device::kCuda
                        ? bench::bench_device_sync(o->shape, precisions)
                        : bench::bench_sync(*runtime, o->shape, precisions));
  });
}

void add_code_bench(CLI::App* bench) {
  struct Options {
    Common common;
    bench::CodeBench code;
  };
  CLI::App* command = bench->add_subcommand(
      "code", "programs a second under --rm-type code, beside Python's start");
  const auto o = std::make_shared<Options>();
  o->common.add(command);
  command->add_option("--programs", o->code.programs, "programs scored in one call")
      ->capture_default_str()
      ->check(positive());
  command->callback([o] {
    bench::CodeBench code = o->code;
    code.workers = o->common.make_runtime()->num_threads();
    o->common.write(bench::bench_code(code));
  });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand(
      "bench", "speed, each figure beside a peer or a limit measured in the same run");
  bench->require_subcommand(1);
  add_gemm(bench);
  add_rollout_bench(bench);
  add_train_bench(bench);
  add_sync_bench(bench);
  add_code_bench(bench);
}

}  // namespace quads::cli
