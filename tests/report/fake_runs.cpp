// Run directories as `quads compare` lays them out, with curves like those of a real comparison.
#include "report/fake_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "base/random.h"
#include "report/jsonl_sink.h"

namespace quads {
namespace {

constexpr int kEvalInterval = 10;

}  // namespace

const std::vector<FakeRecipe>& fake_recipes() {
  static const std::vector<FakeRecipe> recipes = {
      {"bf16", 0.54, 0.87, 0, 0},     {"fp8", 0.50, 0.84, 0.25, 0.3},
      {"nvfp4", 0.36, 0.03, 1.2, 11}, {"nvfp4-rac", 0.42, 0.31, 0.9, 8},
      {"quads", 0.42, 0.75, 0.8, 4},  {"quads-aligned", 0.45, 0.85, 0, 0},
  };
  return recipes;
}

void write_fake_run(const std::filesystem::path& directory, const FakeRecipe& recipe, int seed,
                    int steps) {
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "config.toml") << fmt::format(
      "recipe = \"{}\"\nseed = {}\nnum-rollout = {}\n\n[model]\nlayers = 4\nhidden = 128\n",
      recipe.name, seed, steps);
  RandomSequence random(static_cast<uint64_t>(seed), RandomStream::kTask,
                        std::hash<std::string>{}(recipe.name) % 1000);
  const auto noise = [&](double size) { return size * (random.uniform() + random.uniform() - 1); };
  JsonlSink sink(directory / "metrics.jsonl");
  const double shift = noise(0.03);
  for (int step = 0; step < steps; ++step) {
    const double course = 1 - std::exp(-3.0 * step / steps);
    const double level = recipe.start + (recipe.end - recipe.start) * course + shift * course;
    MetricsRow row(step);
    row.set("reward/mean", std::clamp(level + noise(0.06), 0.0, 1.0));
    row.set("reward/std", 0.4);
    row.set("rollout/response_length", 21 + 4 * (0.9 - level) + noise(0.8));
    row.set("gap/max", recipe.gap_end == 0
                           ? 0.0
                           : recipe.gap_start *
                                 std::pow(recipe.gap_end / recipe.gap_start, course) *
                                 std::exp(noise(0.5)));
    row.set("train/entropy", 0.12 + 0.25 * (1 - course) + noise(0.02));
    row.set("perf/rollout_tokens_per_s", 250000.0 + noise(20000));
    if (step % kEvalInterval == 0 || step == steps - 1) {
      row.set("eval/pass@1", std::clamp(level - 0.02 + noise(0.02), 0.0, 1.0));
      row.set("eval/pass@1_stderr", 0.009);
    }
    sink.write(row);
  }
}

void write_fake_comparison(const std::filesystem::path& directory, int num_seeds, int steps) {
  for (const FakeRecipe& recipe : fake_recipes()) {
    for (int seed = 1; seed <= num_seeds; ++seed) {
      write_fake_run(directory / recipe.name / fmt::format("seed{}", seed), recipe, seed, steps);
    }
  }
}

}  // namespace quads
