// What a training step reports, and the interface of the places it is reported to.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace quads {

using MetricValue = std::variant<double, int64_t, std::string>;

/// The metrics of one step, in the order they were set.
class MetricsRow {
 public:
  /// `step` counts from 0. Throws if it is negative.
  explicit MetricsRow(int64_t step);

  /// Adds a metric. Throws if `key` is empty, is "step", or was set before.
  void set(std::string key, double value) { add(std::move(key), value); }
  void set(std::string key, int64_t value) { add(std::move(key), value); }
  void set(std::string key, int value) { add(std::move(key), int64_t{value}); }
  void set(std::string key, std::string value) { add(std::move(key), std::move(value)); }
  void set(std::string key, const char* value) { add(std::move(key), std::string(value)); }

  int64_t step() const { return step_; }
  const std::vector<std::pair<std::string, MetricValue>>& values() const { return values_; }

 private:
  void add(std::string key, MetricValue value);

  int64_t step_;
  std::vector<std::pair<std::string, MetricValue>> values_;
};

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;

  /// Takes one row, which is visible to readers when the call returns. Steps must increase.
  virtual void write(const MetricsRow& row) = 0;
};

}  // namespace quads
