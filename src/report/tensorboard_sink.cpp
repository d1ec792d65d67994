// TensorBoard event files: protobuf events in TFRecord frames.
#include "report/tensorboard_sink.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "base/error.h"
#include "event.pb.h"
#include "report/crc32c.h"

namespace quads {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

double seconds_since_epoch() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// TensorBoard reads a directory's event files in the order of their names: the time in a new name
// must be later than in the others, also when two start within a second or the clock was set back.
int64_t next_file_time(const std::filesystem::path& directory) {
  auto time = static_cast<int64_t>(seconds_since_epoch());
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int64_t other = 0;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), other);
    if (other < 9'999'999'999) time = std::max(time, other + 1);
  }
  return time;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 && name[0] != '\0' ? name : "localhost";
}

void append_little_endian(std::string& out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

}  // namespace

std::string tfrecord(std::string_view data) {
  std::string record;
  append_little_endian(record, data.size(), 8);
  append_little_endian(record, masked_crc32c(std::string_view(record.data(), 8)), 4);
  record.append(data);
  append_little_endian(record, masked_crc32c(data), 4);
  return record;
}

TensorBoardSink::TensorBoardSink(const std::filesystem::path& directory, int64_t first_step) {
  require(std::filesystem::is_directory(directory), "{}: not a directory", directory.string());
  path_ = directory /
          fmt::format("{}{:010}.{}.{}", kPrefix, next_file_time(directory), host_name(), getpid());
  file_.open(path_, std::ios::binary);
  require(file_.is_open(), "{}: cannot be created", path_.string());

  tfevents::Event event;
  event.set_wall_time(seconds_since_epoch());
  event.set_file_version("brain.Event:2");
  write_record(event.SerializeAsString());
  if (first_step > 0) {
    event.set_step(first_step);
    event.mutable_session_log()->set_status(tfevents::SessionLog::START);
    write_record(event.SerializeAsString());
  }
}

void TensorBoardSink::write(const MetricsRow& row) {
  tfevents::Event event;
  event.set_wall_time(seconds_since_epoch());
  event.set_step(row.step());
  const auto add = [&](const std::string& tag, double value) {
    auto* scalar = event.mutable_summary()->add_value();
    scalar->set_tag(tag);
    scalar->set_simple_value(static_cast<float>(value));
  };
  for (const auto& [key, value] : row.values()) {
    if (const auto* number = std::get_if<double>(&value)) add(key, *number);
    if (const auto* integer = std::get_if<int64_t>(&value)) add(key, static_cast<double>(*integer));
  }
  if (event.has_summary()) write_record(event.SerializeAsString());
}

void TensorBoardSink::write_record(std::string_view data) {
  file_ << tfrecord(data) << std::flush;
  require(file_.good(), "{}: cannot be written (disk full?)", path_.string());
}

}  // namespace quads
