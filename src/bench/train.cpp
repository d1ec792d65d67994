#include "bench/train.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "bench/shapes.h"
#include "io/file.h"
#include "report/metrics_file.h"
#include "rl/loop.h"

namespace quads::bench {
namespace {

// A directory that is gone afterwards.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "quads-bench-XXXXXX").string();
    require(mkdtemp(name.data()) != nullptr, "no temporary directory {} can be made", name);
    path_ = name;
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

double median(const std::vector<MetricsLine>& lines, const std::string& key) {
  std::vector<double> values;
  for (size_t i = 1; i < lines.size(); ++i) {
    const auto it = lines[i].values.find(key);
    if (it != lines[i].values.end()) values.push_back(it->second);
  }
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

std::vector<MetricsLine> run_steps(kernels::CpuRuntime& runtime, const std::string& recipe,
                                   const TrainBench& options) {
  const std::unique_ptr<Task> task = make_task("multiply", Json::object());
  const std::unique_ptr<Reward> reward = task->reward();
  const CharacterTokenizer tokenizer(*task->vocabulary());
  ModelConfig config = bench_shape("demo");
  config.vocab_size = tokenizer.vocab_size();
  const auto policy = random_parameters(config);
  RlOptions rl;
  rl.recipe = make_recipe(recipe, {});
  rl.num_rollout = options.steps;
  rl.rollout_batch_size = options.prompts;
  rl.n_samples_per_prompt = options.samples;
  rl.max_response_len = options.response_len;
  rl.max_running = options.prompts * options.samples;
  rl.verify_interval = 0;
  rl.eval_problems = 1;
  rl.lr.lr = 0;  // the same work every step
  const ScratchDirectory directory;
  // Without stop tokens every response has its full length.
  RlRun loop(runtime, *policy, *task, *reward, tokenizer, {}, rl, {});
  const UniqueFd nowhere(open("/dev/null", O_WRONLY | O_CLOEXEC));
  Progress progress({.label = recipe, .total = options.steps, .fd = nowhere.get()});
  const std::atomic<bool> stop{false};
  loop.run(directory.path(), stop, progress);
  return read_metrics_file(directory.path() / "metrics.jsonl");
}

}  // namespace

Result bench_train(kernels::CpuRuntime& runtime, const TrainBench& options) {
  Result result;
  result.name = "train";
  result.notes = fmt::format(
      "Demo shape, random weights, {} prompts x {} samples of {} tokens a step; medians of {} "
      "steps. x_bf16: the step's time over that of bf16.",
      options.prompts, options.samples, options.response_len, options.steps - 1);
  result.machine = {{"threads", runtime.num_threads()}};
  double bf16 = std::numeric_limits<double>::quiet_NaN();
  for (const std::string& recipe : options.recipes) {
    const std::vector<MetricsLine> lines = run_steps(runtime, recipe, options);
    const double rollout = median(lines, "time/rollout"), train = median(lines, "time/train"),
                 sync = median(lines, "time/sync"), reward = median(lines, "time/reward");
    const double step = rollout + reward + train + sync;
    if (recipe == "bf16") bf16 = step;
    result.rows.push_back(
        {.labels = {{"recipe", recipe}},
         .figures = {{"step_s", step},
                     {"rollout_s", rollout},
                     {"train_s", train},
                     {"sync_s", sync},
                     {"rollout_tokens_per_s", median(lines, "perf/rollout_tokens_per_s")},
                     {"train_tokens_per_s", median(lines, "perf/train_tokens_per_s")},
                     {"x_bf16", step / bf16}}});
  }
  return result;
}

}  // namespace quads::bench
