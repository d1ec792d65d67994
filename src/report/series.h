// Curves over steps: a metric of a group of runs as mean and range, smoothed if asked.
#pragma once

#include <string>
#include <vector>

#include "report/runs.h"

namespace quads {

/// One point of a group's curve: over the runs that have a finite value at this step.
struct CurvePoint {
  int64_t step = 0;
  double mean = 0;
  double min = 0;
  double max = 0;
  int n = 0;
};

struct SeriesPoint {
  int64_t step = 0;
  double value = 0;
};

/// The finite values of `key` in a run, by step. Steps without one are left out.
std::vector<SeriesPoint> series(const Run& run, const std::string& key);

/// Exponential moving average without the start's bias: s = sum w_i x_i / sum w_i with
/// w_i = decay^(n - i). `decay` in [0, 1); 0 changes nothing.
std::vector<SeriesPoint> smooth(std::vector<SeriesPoint> points, double decay);

/// Mean and range over a group's runs, each smoothed first. Where one run ends early, the later
/// points are of the others.
std::vector<CurvePoint> curve(const RunGroup& group, const std::string& key, double decay = 0);

}  // namespace quads
