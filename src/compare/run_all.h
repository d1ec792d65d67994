// Runs what is planned, several at a time, each in a process of its own, and continues what an
// earlier call left unfinished.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "compare/plan.h"

namespace quads {

struct RunAllOptions {
  std::filesystem::path program;  // quads
  int jobs = 1;                   // processes at a time
  int threads_per_run = 1;
  int stopped_status = 130;  // a run's exit status after SIGTERM
};

struct RunFailure {
  std::string name;
  std::string message;  // the last line of its log; was shown when the run ended
};

/// Runs every run that is not finished as `program train ...`, with --resume where it has begun,
/// output into <directory>/log.txt, and shows the steps of all of them on standard error. A run
/// that fails does not stop the others. Once `stop` is set no run is started, SIGTERM is passed on
/// to those that run, and they are waited for. Returns the failures. Error, before anything is run,
/// if a directory holds a run made with other options (recorded in <directory>/command.txt).
std::vector<RunFailure> run_all(const std::vector<PlannedRun>& runs, const RunAllOptions& options,
                                const std::atomic<bool>& stop);

/// Steps done and wanted of a run directory, from metrics.jsonl and config.toml; wanted is 0 as
/// long as that is not known.
struct RunProgress {
  int64_t done = 0;
  int64_t wanted = 0;
  bool finished() const { return wanted > 0 && done >= wanted; }
};
RunProgress run_progress(const std::filesystem::path& directory);

}  // namespace quads
