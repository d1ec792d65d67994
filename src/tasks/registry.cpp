// The tasks by name: one line each.
#include <algorithm>
#include <functional>
#include <map>

#include "base/error.h"
#include "tasks/multiply.h"
#include "tasks/task.h"

namespace quads {
namespace {

struct Maker {
  std::function<std::unique_ptr<Task>(const Json& options)> make;
  std::string options;  // for --help
};

const std::map<std::string, Maker>& makers() {
  static const std::map<std::string, Maker> table = {
      {"multiply", {make_multiply_task, "first_digits=1..6, second_digits=1..6, noise=0..1"}},
  };
  return table;
}

}  // namespace

std::unique_ptr<Task> make_task(const std::string& name, const Json& options) {
  const auto it = makers().find(name);
  require(it != makers().end(), "unknown task '{}'; there are: {}", name,
          fmt::join(task_names(), ", "));
  return it->second.make(options);
}

std::vector<std::string> task_names() {
  std::vector<std::string> names;
  for (const auto& [name, maker] : makers()) {
    names.push_back(name);
  }
  return names;
}

std::string task_help() {
  std::string help;
  for (const auto& [name, maker] : makers()) {
    help += fmt::format("{}{} (options {})", help.empty() ? "" : "; ", name, maker.options);
  }
  return help;
}

void require_known_options(const Json& options, const std::vector<std::string>& known,
                           const std::string& where) {
  require(options.is_object(), "{}: options {} are not an object", where, json_excerpt(options));
  for (const auto& [key, value] : options.items()) {
    require(std::find(known.begin(), known.end(), key) != known.end(),
            "{}: unknown option '{}'; there are: {}", where, key, fmt::join(known, ", "));
  }
}

}  // namespace quads
