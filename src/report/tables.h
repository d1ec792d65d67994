// The table of a comparison, as Markdown and as JSON.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/summary.h"

namespace quads {

/// One row of text a recipe; the HTML report shows the same cells.
struct TableText {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
};

/// The column of the max gap, in which "0" is an exact zero.
constexpr size_t kGapColumn = 5;

/// Cells: recipe, seeds, steps, pass@1, reward and max gap of the last 10 steps, steps whose gap is
/// zero, tokens/s. Figures are mean ± sample standard deviation over seeds; with one seed a pass@1
/// has the standard error of its evaluation, marked "s.e."; "–" is a figure that no run has.
TableText format_table(const std::vector<Summary>& summaries);

/// A Markdown table; what Markdown or HTML would read as markup in a name is escaped.
std::string markdown_table(const TableText& table);

/// {"recipes": [{"recipe", "seeds", "steps": {"min", "max"}, "gap_zero_steps", "gap_steps",
/// "metrics": {"<key>": {"mean", "std", "n", "values"}}}]}, indented. std is null for n < 2. Keys:
/// eval/pass@1 (last), eval/pass@1_stderr (last), reward/mean and gap/max (mean of the last 10
/// steps), perf/rollout_tokens_per_s (median).
std::string json_table(const std::vector<Summary>& summaries);

/// Writes table.md and table.json into `directory`, each whole or not at all.
void write_tables(const std::filesystem::path& directory, const std::vector<RunGroup>& groups);

}  // namespace quads
