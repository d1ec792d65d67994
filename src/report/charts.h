// The charts of a report: what each shows, and the log axis on which zero has a place.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/series.h"

namespace quads {

/// A chart of one metric, a line a recipe.
struct ChartSpec {
  std::string_view id;
  std::string_view key;  // in metrics.jsonl
  std::string_view title;
  std::string_view note;  // one or two sentences on how to read it
  std::string_view unit;  // of the vertical axis
  bool log = false;
  bool smooth = false;  // can be shown smoothed
  bool share = false;   // a share: the axis starts at 0
};

const std::vector<ChartSpec>& report_charts();

/// The decay of the smoothed curves: an average over about the last ten steps.
constexpr double kSmoothing = 0.9;

/// A log axis from `min` to `max`, both powers of ten. With `has_zero`, `min` stands for zero and
/// the smallest positive value lies at least one decade above it.
struct LogAxis {
  double min = 1e-3;
  double max = 1;
  bool has_zero = false;

  /// Where a value is drawn: values at or below zero on the floor.
  double place(double value) const { return value > min ? value : min; }
};

LogAxis log_axis(const std::vector<std::vector<CurvePoint>>& curves);

}  // namespace quads
