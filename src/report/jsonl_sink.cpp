// metrics.jsonl: one JSON object a step.
#include "report/jsonl_sink.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "io/json.h"
#include "io/jsonl_writer.h"

namespace quads {
namespace {

nlohmann::ordered_json to_json(const MetricValue& value) {
  if (const auto* number = std::get_if<double>(&value)) {
    if (std::isfinite(*number)) return *number;
    if (std::isnan(*number)) return "NaN";
    return *number > 0 ? "Infinity" : "-Infinity";
  }
  if (const auto* integer = std::get_if<int64_t>(&value)) return *integer;
  return std::get<std::string>(value);
}

}  // namespace

std::string to_json_line(const MetricsRow& row) {
  nlohmann::ordered_json object;
  object["step"] = row.step();
  for (const auto& [key, value] : row.values()) object[key] = to_json(value);
  // Bytes that are not UTF-8 become U+FFFD instead of an exception in the middle of a run.
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

MetricsRow from_json_line(std::string_view line, const std::string& where) {
  const auto object = nlohmann::ordered_json::parse(line, nullptr, false);
  const auto wrong = [&] { fail("{}: not a line of metrics: {}", where, line.substr(0, 200)); };
  if (!object.is_object() || !object.contains("step") || !object["step"].is_number_unsigned()) {
    wrong();
  }
  MetricsRow row(object["step"].get<int64_t>());
  for (const auto& [key, value] : object.items()) {
    if (key == "step") continue;
    if (value.is_number_float()) {
      row.set(key, value.get<double>());
    } else if (value.is_number_integer()) {
      row.set(key, value.get<int64_t>());
    } else if (value.is_string()) {
      row.set(key, value.get<std::string>());
    } else {
      wrong();
    }
  }
  return row;
}

JsonlSink::JsonlSink(std::filesystem::path path, int64_t first_step)
    : path_(std::move(path)), next_step_(first_step) {
  if (first_step > 0) {
    truncate_jsonl(path_, [&](const Json& row, const std::string& where) {
      return get<int64_t>(row, "step", where) < first_step;
    });
  }
  fd_ = open_file(path_, O_WRONLY | O_CREAT | O_APPEND | (first_step > 0 ? 0 : O_TRUNC));
}

void JsonlSink::write(const MetricsRow& row) {
  require(row.step() >= next_step_, "{}: step {} cannot be written, the next is {}", path_.string(),
          row.step(), next_step_);
  const std::string line = to_json_line(row) + "\n";
  const off_t before = ::lseek(fd_.get(), 0, SEEK_END);
  try {
    write_all(fd_.get(), std::as_bytes(std::span(line)), path_);
  } catch (const Error&) {
    // Best effort: readers drop a torn last line, and resuming cuts it off.
    [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), before);
    throw;
  }
  next_step_ = row.step() + 1;
}

}  // namespace quads
