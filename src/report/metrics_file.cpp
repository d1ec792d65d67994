// Reading metrics.jsonl back, whatever a crash has left of it.
#include "report/metrics_file.h"

#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "io/file.h"
#include "io/json.h"

namespace quads {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;  // a million steps of a thousand bytes
constexpr JsonLimits kLineLimits{.max_bytes = 1 << 20, .max_depth = 8, .max_values = 10'000};

std::optional<double> numeric_value(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (value == "Infinity") return std::numeric_limits<double>::infinity();
  if (value == "-Infinity") return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

MetricsLine parse_line(std::string_view text, const std::string& where) {
  const Json row = parse_json(text, where, kLineLimits);
  MetricsLine line;
  line.step = get<int64_t>(row, "step", where);
  require(line.step >= 0, "{}: \"step\" is {}; it must be at least 0", where, line.step);
  for (const auto& [key, value] : row.items()) {
    if (key == "step") continue;
    if (const auto number = numeric_value(value)) line.values.emplace(key, *number);
  }
  return line;
}

}  // namespace

std::vector<MetricsLine> read_metrics_file(const std::filesystem::path& path) {
  const std::string text = read_text_file(path, kMaxFileBytes);
  std::vector<MetricsLine> lines;
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string where = fmt::format("{}:{}", path.string(), number);
    MetricsLine line = parse_line(std::string_view(text).substr(begin, end - begin), where);
    require(lines.empty() || line.step > lines.back().step,
            "{}: step {} follows step {}; steps must increase", where, line.step,
            lines.empty() ? 0 : lines.back().step);
    begin = end + 1;
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace quads
