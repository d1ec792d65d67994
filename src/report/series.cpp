// Curves over steps: a metric of a group of runs as mean and range, smoothed if asked.
#include "report/series.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace quads {

std::vector<SeriesPoint> series(const Run& run, const std::string& key) {
  std::vector<SeriesPoint> points;
  for (const MetricsLine& line : run.lines) {
    const auto found = line.values.find(key);
    if (found != line.values.end() && std::isfinite(found->second)) {
      points.push_back({line.step, found->second});
    }
  }
  return points;
}

std::vector<SeriesPoint> smooth(std::vector<SeriesPoint> points, double decay) {
  double sum = 0;
  double weight = 0;
  for (SeriesPoint& point : points) {
    sum = decay * sum + point.value;
    weight = decay * weight + 1;
    point.value = sum / weight;
  }
  return points;
}

std::vector<CurvePoint> curve(const RunGroup& group, const std::string& key, double decay) {
  std::map<int64_t, CurvePoint> by_step;
  for (const Run& run : group.runs) {
    for (const SeriesPoint& point : smooth(series(run, key), decay)) {
      CurvePoint& at =
          by_step.try_emplace(point.step, CurvePoint{point.step, 0, point.value, point.value, 0})
              .first->second;
      at.mean += point.value;  // the sum until all runs are in
      at.min = std::min(at.min, point.value);
      at.max = std::max(at.max, point.value);
      ++at.n;
    }
  }
  std::vector<CurvePoint> points;
  for (auto& [step, point] : by_step) {
    point.mean /= point.n;
    points.push_back(point);
  }
  return points;
}

}  // namespace quads
