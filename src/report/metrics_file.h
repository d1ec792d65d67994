// Reading metrics.jsonl back, whatever a crash has left of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace quads {

/// One line of metrics.jsonl: its step and its numeric metrics ("NaN", "Infinity" and "-Infinity"
/// are numbers; other strings, null, and nested values are left out).
struct MetricsLine {
  int64_t step = 0;
  std::map<std::string, double> values;
};

/// Reads every line of `path`. A last line without its newline is what a crash leaves: it is
/// dropped. Throws Error naming file:line for any other damage: not a JSON object, no integer
/// "step" >= 0, a step that is not larger than the one before it.
std::vector<MetricsLine> read_metrics_file(const std::filesystem::path& path);

}  // namespace quads
