// metrics.jsonl: one JSON object a step.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/file.h"
#include "report/metrics.h"

namespace quads {

/// Appends one line a row: {"step": N, "<key>": value, ...}, keys in the row's order, doubles in
/// the shortest form that reads back to the same bits. JSON has no NaN or infinity: those values
/// are written as the strings "NaN", "Infinity" and "-Infinity", which Python's float() and
/// JavaScript's Number() read. Each line reaches the file in one write before write() returns.
class JsonlSink : public MetricsSink {
 public:
  /// Opens `path`, creating it if need be. For a run that resumes at `first_step`, rows with
  /// step < first_step are kept and everything from the first later row on is cut off, as is a last
  /// line that a crash left half-written; with 0 the file is emptied. Throws Error if the file
  /// cannot be opened, or if the part to be kept is damaged (file:line, what was found).
  explicit JsonlSink(std::filesystem::path path, int64_t first_step = 0);

  /// Throws Error if the step does not increase or the line cannot be written whole (disk full);
  /// the file then ends where it ended before.
  void write(const MetricsRow& row) override;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  int64_t next_step_ = 0;
};

/// The line that JsonlSink writes for `row`, without the newline.
std::string to_json_line(const MetricsRow& row);

/// The row whose line is `line`; values that JSON does not have stay texts. Errors start with
/// `where`.
MetricsRow from_json_line(std::string_view line, const std::string& where);

}  // namespace quads
