// Run directories as `quads compare` lays them out, with curves like those of a real comparison.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quads {

struct FakeRecipe {
  std::string name;
  double start;  // reward of the first step
  double end;    // reward it settles at
  double gap_start;
  double gap_end;  // 0 for a gap of exactly zero
};

/// The recipes of the demo and some more: one collapses, some follow the reference.
const std::vector<FakeRecipe>& fake_recipes();

/// Writes `steps` rows of one run, evaluated every 10 steps, with a config.toml beside them.
void write_fake_run(const std::filesystem::path& directory, const FakeRecipe& recipe, int seed,
                    int steps);

/// Writes DIR/<recipe>/seed<S> for every fake recipe and seeds 1 to `num_seeds`.
void write_fake_comparison(const std::filesystem::path& directory, int num_seeds, int steps);

}  // namespace quads
