#include "compare/run_all.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "compare/child_process.h"
#include "io/atomic_file.h"
#include "report/metrics_file.h"
#include "report/progress.h"
#include "report/runs.h"

namespace quads {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// What a run's result depends on: its arguments and the configuration file they name.
std::string command_text(const PlannedRun& run) {
  std::string text;
  for (size_t i = 0; i < run.arguments.size(); ++i) {
    text += run.arguments[i] + "\n";
    constexpr std::string_view kConfig = "--config", kInOneWord = "--config=";
    std::string config;
    if (run.arguments[i].starts_with(kInOneWord)) {
      config = run.arguments[i].substr(kInOneWord.size());
    } else if (run.arguments[i] == kConfig && i + 1 < run.arguments.size()) {
      config = run.arguments[++i];
    } else {
      continue;
    }
    require(std::filesystem::exists(config), "--config {}: there is no such file", config);
    text += read_text(config) + "\n";
  }
  return text;
}

void claim_directory(const PlannedRun& run) {
  const std::filesystem::path record = run.directory / "command.txt";
  const std::string command = command_text(run);
  // A command that never came to a step, refused for a typing error, leaves nothing to lose.
  const bool has_steps = run_has_steps(run.directory);
  const bool recorded = std::filesystem::exists(record);
  if (recorded && read_text(record) == command) return;
  require(!has_steps, "{} holds a run {}: remove it or choose another --out",
          run.directory.string(),
          recorded ? "with other options (see command.txt in it)" : "that is not of a comparison");
  std::filesystem::create_directories(run.directory);
  write_file_atomically(record, command);
}

// The number that `key` has in a configuration written by resolved_config; 0 if it is not there.
int64_t config_number(const std::string& config, const std::string& key) {
  const std::string start = key + " = ";
  std::istringstream lines(config);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(start)) continue;
    int64_t value = 0;
    std::from_chars(line.data() + start.size(), line.data() + line.size(), value);
    return value;
  }
  return 0;
}

struct Child {
  size_t run;
  ChildProcess process;
};

class Overview {
 public:
  explicit Overview(const std::vector<PlannedRun>& runs) : runs_(runs), done_(runs.size()) {}

  void finished(size_t run) { done_[run] = run_progress(runs_[run].directory); }
  void message(const std::string& text) {
    if (progress_) {
      progress_->message(text);
    } else {
      std::fprintf(stderr, "%s\n", text.c_str());
    }
  }
  void update(const std::vector<Child>& children, size_t finished, size_t failed) {
    for (const Child& child : children) done_[child.run] = run_progress(runs_[child.run].directory);
    int64_t steps = 0, known = 0, wanted = 0;
    for (const RunProgress& p : done_) {
      steps += p.done;
      known += p.wanted > 0;
      wanted += p.wanted;
    }
    if (known == 0) return;
    if (!progress_) {
      // Runs that have not started are taken to be as long as those that have.
      const int64_t total = wanted + wanted / known * (std::ssize(runs_) - known);
      progress_.emplace(
          ProgressOptions{.label = "compare", .total = total, .first = steps, .log_every_s = 30});
    }
    const std::pair shown(steps, finished + failed);
    if (shown == shown_) return;
    shown_ = shown;
    ProgressFigures figures = {{"runs", fmt::format("{}/{}", finished, runs_.size())}};
    if (failed > 0) figures.emplace_back("failed", fmt::format("{}", failed));
    progress_->update(steps, figures);
  }

 private:
  const std::vector<PlannedRun>& runs_;
  std::vector<RunProgress> done_;
  std::optional<Progress> progress_;
  std::pair<int64_t, size_t> shown_ = {-1, 0};  // steps, and runs that have ended
};

}  // namespace

RunProgress run_progress(const std::filesystem::path& directory) {
  RunProgress progress;
  const std::filesystem::path config = directory / "config.toml";
  const std::filesystem::path metrics = directory / "metrics.jsonl";
  if (!std::filesystem::exists(config)) return progress;
  progress.wanted = config_number(read_text(config), "num-rollout");
  if (!std::filesystem::exists(metrics)) return progress;
  const std::vector<MetricsLine> lines = read_metrics_file(metrics);
  if (!lines.empty()) progress.done = lines.back().step + 1;
  return progress;
}

std::vector<RunFailure> run_all(const std::vector<PlannedRun>& runs, const RunAllOptions& options,
                                const std::atomic<bool>& stop) {
  for (const PlannedRun& run : runs) claim_directory(run);
  std::vector<RunFailure> failures;
  std::vector<Child> children;
  Overview overview(runs);
  size_t next = 0, finished = 0;
  bool passed_on = false;
  while (true) {
    while (!stop && next < runs.size() && std::ssize(children) < options.jobs) {
      const PlannedRun& run = runs[next];
      const RunProgress before = run_progress(run.directory);
      const std::string last = fmt::format("step_{:06d}", before.done);
      if (before.finished() && std::filesystem::exists(run.directory / "checkpoints" / last)) {
        overview.finished(next++);
        ++finished;
        continue;
      }
      std::vector<std::string> arguments = {"train"};
      arguments.insert(arguments.end(), run.arguments.begin(), run.arguments.end());
      for (const std::string& more :
           {std::string("--threads"), fmt::format("{}", options.threads_per_run),
            std::string("--out"), run.directory.string()}) {
        arguments.push_back(more);
      }
      if (run_has_begun(run.directory)) arguments.emplace_back("--resume");
      children.push_back(
          {next++, ChildProcess(options.program, arguments, run.directory / "log.txt")});
    }
    if (children.empty() && (stop || next == runs.size())) break;
    if (stop && !passed_on) {
      passed_on = true;
      overview.message("stopping: waiting for the runs to save");
      for (Child& child : children) child.process.signal(SIGTERM);
    }
    for (Child& child : children) {
      const std::optional<int> status = child.process.poll();
      if (!status) continue;
      const PlannedRun& run = runs[child.run];
      overview.finished(child.run);
      if (stop && (*status == 0 || *status == options.stopped_status)) {
        finished += run_progress(run.directory).finished();
        continue;
      }
      if (*status == 0) {
        ++finished;
        continue;
      }
      std::string message = last_line(run.directory / "log.txt");
      if (message.empty() || *status > 128) {
        message = fmt::format("ended with status {}; {}", *status, message);
      }
      overview.message(fmt::format("{} failed: {}", run.name, message));
      failures.push_back({run.name, message});
    }
    std::erase_if(children, [](Child& child) { return child.process.poll().has_value(); });
    overview.update(children, finished, failures.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return failures;
}

}  // namespace quads
