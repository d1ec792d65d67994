// The charts of a report: what each shows, and the log axis on which zero has a place.
#include "report/charts.h"

#include <algorithm>
#include <cmath>

namespace quads {

const std::vector<ChartSpec>& report_charts() {
  static const std::vector<ChartSpec> charts = {
      {.id = "reward",
       .key = "reward/mean",
       .title = "Training reward",
       .note = "Mean reward of each step's rollouts: what the policy earns in the precision that "
               "generates.",
       .unit = "mean reward",
       .smooth = true,
       .share = true},
      {.id = "gap",
       .key = "gap/max",
       .title = "Largest gap between rollout and trainer",
       .note =
           "Largest |log p(rollout) − log p(trainer)| over a step's tokens, before any update. A "
           "line at the foot is a gap of exactly zero: both sides computed the same bits.",
       .unit = "max |Δ log p|",
       .log = true},
      {.id = "pass",
       .key = "eval/pass@1",
       .title = "Held-out pass@1",
       .note = "Share of problems never trained on that are solved at the first try.",
       .unit = "pass@1",
       .share = true},
      {.id = "length",
       .key = "rollout/response_length",
       .title = "Response length",
       .note = "Mean number of tokens in a response. A sudden rise or fall often comes before a "
               "collapse.",
       .unit = "tokens",
       .smooth = true},
      {.id = "entropy",
       .key = "train/entropy",
       .title = "Entropy of the policy",
       .note = "Mean entropy of the next token's distribution: how much the policy still explores.",
       .unit = "nats",
       .smooth = true,
       .share = true},
  };
  return charts;
}

LogAxis log_axis(const std::vector<std::vector<CurvePoint>>& curves) {
  double smallest = HUGE_VAL;
  double largest = 0;
  LogAxis axis;
  for (const auto& points : curves) {
    for (const CurvePoint& point : points) {
      for (const double value : {point.min, point.mean, point.max}) {
        axis.has_zero |= value <= 0;
        if (value > 0) smallest = std::min(smallest, value);
        largest = std::max(largest, value);
      }
    }
  }
  if (largest > 0) {
    axis.min = std::pow(10, std::floor(std::log10(smallest)) - (axis.has_zero ? 1 : 0));
    axis.max = std::max(std::pow(10, std::ceil(std::log10(largest))), axis.min * 10);
  }
  return axis;
}

}  // namespace quads
