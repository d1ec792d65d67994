// Rows of metrics: no key twice.
#include "report/metrics.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

MetricsRow::MetricsRow(int64_t step) : step_(step) {
  require(step >= 0, "metrics: the step is {}; it must be at least 0", step);
}

void MetricsRow::add(std::string key, MetricValue value) {
  require(!key.empty() && key != "step", "metrics of step {}: '{}' cannot be the name of a metric",
          step_, key);
  const bool seen = std::any_of(values_.begin(), values_.end(),
                                [&](const auto& entry) { return entry.first == key; });
  require(!seen, "metrics of step {}: '{}' is set twice", step_, key);
  values_.emplace_back(std::move(key), std::move(value));
}

}  // namespace quads
