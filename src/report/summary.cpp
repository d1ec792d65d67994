// The figures of a recipe that a table shows, over its seeds.
#include "report/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "report/series.h"

namespace quads {
namespace {

std::optional<double> last(const std::vector<SeriesPoint>& points) {
  if (points.empty()) return std::nullopt;
  return points.back().value;
}

std::optional<double> mean_of_last(const std::vector<SeriesPoint>& points) {
  const size_t count = std::min<size_t>(points.size(), kLastSteps);
  if (count == 0) return std::nullopt;
  double sum = 0;
  for (size_t i = points.size() - count; i < points.size(); ++i) sum += points[i].value;
  return sum / static_cast<double>(count);
}

std::optional<double> median(std::vector<SeriesPoint> points) {
  if (points.empty()) return std::nullopt;
  const auto middle = points.begin() + static_cast<std::ptrdiff_t>(points.size() / 2);
  std::nth_element(points.begin(), middle, points.end(),
                   [](const SeriesPoint& a, const SeriesPoint& b) { return a.value < b.value; });
  return middle->value;
}

template <class Figure>
Spread over_runs(const RunGroup& group, const std::string& key, Figure figure) {
  std::vector<double> values;
  for (const Run& run : group.runs) {
    if (const std::optional<double> value = figure(series(run, key))) values.push_back(*value);
  }
  return spread_of(std::move(values));
}

}  // namespace

Spread spread_of(std::vector<double> values) {
  Spread spread;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) spread.mean += value;
  if (!values.empty()) spread.mean /= n;
  if (values.size() > 1) {
    double squares = 0;
    for (const double value : values) squares += (value - spread.mean) * (value - spread.mean);
    spread.std = std::sqrt(squares / (n - 1));
  }
  spread.values = std::move(values);
  return spread;
}

Summary summarize(const RunGroup& group) {
  Summary summary;
  summary.name = group.name;
  summary.min_steps = std::numeric_limits<int64_t>::max();
  for (const Run& run : group.runs) {
    const auto steps = static_cast<int64_t>(run.lines.size());
    summary.seeds.push_back(run.seed);
    summary.min_steps = std::min(summary.min_steps, steps);
    summary.max_steps = std::max(summary.max_steps, steps);
    for (const MetricsLine& line : run.lines) {
      const auto gap = line.values.find("gap/max");
      if (gap == line.values.end()) continue;
      ++summary.gap_steps;
      if (gap->second == 0) ++summary.gap_zero_steps;
    }
  }
  summary.pass_at_1 = over_runs(group, "eval/pass@1", last);
  summary.pass_at_1_stderr = over_runs(group, "eval/pass@1_stderr", last);
  summary.reward = over_runs(group, "reward/mean", mean_of_last);
  summary.gap_max = over_runs(group, "gap/max", mean_of_last);
  summary.tokens_per_s = over_runs(group, "perf/rollout_tokens_per_s", median);
  return summary;
}

}  // namespace quads
