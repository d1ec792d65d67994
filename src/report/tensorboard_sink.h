// TensorBoard event files.
#pragma once

#include <filesystem>
#include <fstream>
#include <string_view>

#include "report/metrics.h"

namespace quads {

/// Writes the numeric metrics of each row as scalars, one event a row, to a file
/// `events.out.tfevents.<seconds>.<host>.<process>` of its own. Scalars are FP32 there; strings are
/// left out. Flushed after every row.
class TensorBoardSink : public MetricsSink {
 public:
  /// Creates the file in `directory`, which must exist, under a name that sorts after every event
  /// file there. For a run that resumes at `first_step` > 0 the file opens with a session start, on
  /// which TensorBoard drops what earlier files hold from that step on. Throws Error if it cannot
  /// be created.
  explicit TensorBoardSink(const std::filesystem::path& directory, int64_t first_step = 0);

  /// Throws Error if the row cannot be written.
  void write(const MetricsRow& row) override;

  const std::filesystem::path& path() const { return path_; }

 private:
  void write_record(std::string_view data);

  std::filesystem::path path_;
  std::ofstream file_;
};

/// `data` framed as a TFRecord: its length (uint64, little-endian), the length's masked CRC-32C,
/// the data, the data's masked CRC-32C (tensorflow/core/lib/io/record_writer.cc).
std::string tfrecord(std::string_view data);

}  // namespace quads
