// Finding and reading run directories, and grouping them into recipes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/metrics_file.h"

namespace quads {

/// One run directory as it is on disk now; a run that has not finished a step has no lines.
struct Run {
  std::filesystem::path directory;
  std::string seed;    // the S of a folder `seed<S>`; empty for a run directory of another name
  std::string config;  // config.toml as it is; empty if there is none
  std::vector<MetricsLine> lines;
};

/// The runs that differ in their seed alone.
struct RunGroup {
  std::string name;  // the recipe, with its suffix: "quads-k50"
  std::vector<Run> runs;
};

/// Reads the runs at `paths` and in the folders below them. A folder is a run if it holds
/// metrics.jsonl or config.toml or is named seed<S>; the search does not descend into runs. Runs
/// DIR/<recipe>/seed<S> form the group <recipe>; any other run is a group of its own named after
/// its folder. Equal names of different groups are told apart by the folders above them. Groups
/// come in the order of recipe_rank (palette.h), then by name (numbers in it by value: k50 before
/// k100); seeds by value. Throws Error for a path that does not exist or holds no run, and for
/// damaged metrics.
std::vector<RunGroup> load_runs(const std::vector<std::filesystem::path>& paths);

/// Whether a run has been started in `directory`: it holds config.toml, metrics.jsonl or
/// checkpoints.
bool run_has_begun(const std::filesystem::path& directory);
/// Whether it has done a step. An empty metrics.jsonl is what one leaves that failed in its first.
bool run_has_steps(const std::filesystem::path& directory);

/// True if `a` comes before `b`, with runs of digits compared by value.
bool natural_less(std::string_view a, std::string_view b);

}  // namespace quads
