// Which runs a comparison consists of.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace quads {

/// One run of `quads train` in directory <out>/<name>/seed<seed>.
struct PlannedRun {
  std::string name;  // "quads-k50/seed1"
  std::filesystem::path directory;
  /// Of `quads train`, without --out, --threads and --resume.
  std::vector<std::string> arguments;
};

struct PlanOptions {
  std::filesystem::path out;
  std::vector<std::string> recipes;
  /// "NAME=FLAGS": a group NAME of runs with these flags of `quads train`.
  std::vector<std::string> variants;
  /// Compensated shares in per cent: each recipe in `compensated` is run with every one of them, as
  /// <recipe>-k<share>; empty: with its own.
  std::vector<double> shares;
  std::vector<std::string> compensated;
  std::vector<uint64_t> seeds;
  std::string config;                         // empty: none
  std::vector<std::string> common_arguments;  // of every run
};

/// Recipes first, then variants, each with every seed, by seed first so that a comparison that is
/// stopped early has whole seeds. Flags of a variant come after the common ones. Errors: nothing to
/// run, a name that is not a plain folder name, or a name twice.
std::vector<PlannedRun> plan_runs(const PlanOptions& options);

/// Splits at white space, except within '...' or "..."; quotes are taken off. Error for a quote
/// that is not closed.
std::vector<std::string> split_flags(const std::string& text);

}  // namespace quads
