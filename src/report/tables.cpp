// The table of a comparison, as Markdown and as JSON.
#include "report/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "io/atomic_file.h"

namespace quads {
namespace {

constexpr const char* kNone = "–";

std::string spread_text(const Spread& spread, int decimals) {
  if (spread.n() == 0) return kNone;
  std::string text = fmt::format("{:.{}f}", spread.mean, decimals);
  if (spread.n() > 1) text += fmt::format(" ± {:.{}f}", spread.std, decimals);
  return text;
}

std::string pass_text(const Summary& summary) {
  std::string text = spread_text(summary.pass_at_1, 3);
  if (summary.pass_at_1.n() == 1 && summary.pass_at_1_stderr.n() == 1) {
    text += fmt::format(" ± {:.3f} s.e.", summary.pass_at_1_stderr.mean);
  }
  return text;
}

// Gaps span many orders of magnitude, and an exact zero must not look like a rounded one.
std::string gap_text(const Spread& spread) {
  if (spread.n() == 0) return kNone;
  if (spread.mean == 0) return "0";
  std::string text = fmt::format("{:.2g}", spread.mean);
  if (spread.n() > 1) text += fmt::format(" ± {:.1g}", spread.std);
  return text;
}

std::string steps_text(const Summary& summary) {
  if (summary.min_steps == summary.max_steps) return std::to_string(summary.max_steps);
  return fmt::format("{}–{}", summary.min_steps, summary.max_steps);
}

std::string seeds_text(const Summary& summary) {
  const bool named = std::none_of(summary.seeds.begin(), summary.seeds.end(),
                                  [](const std::string& seed) { return seed.empty(); });
  return named ? fmt::format("{}", fmt::join(summary.seeds, ", "))
               : std::to_string(summary.seeds.size());
}

std::string tokens_text(const Spread& spread) {
  if (spread.n() == 0) return kNone;
  const auto number = static_cast<int64_t>(std::llround(spread.mean));
  const std::string digits = std::to_string(number);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string zero_text(const Summary& summary) {
  if (summary.gap_steps == 0) return kNone;
  return fmt::format("{} of {}", summary.gap_zero_steps, summary.gap_steps);
}

std::string escape_markdown(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\n' || c == '\r') {
      escaped += ' ';
      continue;
    }
    if (std::string_view("\\`*_[]<>|&#").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

nlohmann::ordered_json to_json(const Spread& spread) {
  nlohmann::ordered_json json;
  json["mean"] = spread.n() > 0 ? nlohmann::ordered_json(spread.mean) : nullptr;
  json["std"] = spread.n() > 1 ? nlohmann::ordered_json(spread.std) : nullptr;
  json["n"] = spread.n();
  json["values"] = spread.values;
  return json;
}

}  // namespace

TableText format_table(const std::vector<Summary>& summaries) {
  TableText table;
  table.header = {"recipe",
                  "seeds",
                  "steps",
                  "held-out pass@1",
                  fmt::format("reward, last {}", kLastSteps),
                  fmt::format("max gap, last {}", kLastSteps),
                  "steps with gap 0",
                  "rollout tokens/s"};
  for (const Summary& summary : summaries) {
    table.rows.push_back({summary.name, seeds_text(summary), steps_text(summary),
                          pass_text(summary), spread_text(summary.reward, 3),
                          gap_text(summary.gap_max), zero_text(summary),
                          tokens_text(summary.tokens_per_s)});
  }
  return table;
}

std::string markdown_table(const TableText& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += fmt::format(" {} |", escape_markdown(cell));
    return text + "\n";
  };
  std::string text = line(table.header);
  text += "|";
  for (size_t i = 0; i < table.header.size(); ++i) text += i < 2 ? " --- |" : " ---: |";
  text += "\n";
  for (const auto& row : table.rows) text += line(row);
  return text;
}

std::string json_table(const std::vector<Summary>& summaries) {
  nlohmann::ordered_json recipes = nlohmann::ordered_json::array();
  for (const Summary& summary : summaries) {
    nlohmann::ordered_json recipe;
    recipe["recipe"] = summary.name;
    recipe["seeds"] = summary.seeds;
    recipe["steps"] = {{"min", summary.min_steps}, {"max", summary.max_steps}};
    recipe["gap_zero_steps"] = summary.gap_zero_steps;
    recipe["gap_steps"] = summary.gap_steps;
    recipe["metrics"] = {{"eval/pass@1", to_json(summary.pass_at_1)},
                         {"eval/pass@1_stderr", to_json(summary.pass_at_1_stderr)},
                         {"reward/mean", to_json(summary.reward)},
                         {"gap/max", to_json(summary.gap_max)},
                         {"perf/rollout_tokens_per_s", to_json(summary.tokens_per_s)}};
    recipes.push_back(std::move(recipe));
  }
  const nlohmann::ordered_json table = {{"recipes", std::move(recipes)}};
  return table.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void write_tables(const std::filesystem::path& directory, const std::vector<RunGroup>& groups) {
  std::vector<Summary> summaries;
  summaries.reserve(groups.size());
  for (const RunGroup& group : groups) summaries.push_back(summarize(group));
  write_file_atomically(directory / "table.md", markdown_table(format_table(summaries)));
  write_file_atomically(directory / "table.json", json_table(summaries));
}

}  // namespace quads
