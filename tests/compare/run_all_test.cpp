// Running what is planned, with a shell script in the place of `quads`.
#include "compare/run_all.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "compare/child_process.h"

namespace quads {
namespace {

using testing::HasSubstr;

// Takes `quads train ... --out DIR [--resume]`; the word "fail" among the arguments makes it fail,
// "sleep" makes it wait for a signal.
constexpr const char* kScript = R"(#!/bin/sh
for a in "$@"; do
  [ "$previous" = --out ] && out="$a"
  [ "$a" = fail ] && fail=1
  [ "$a" = sleep ] && sleep=1
  previous="$a"
done
echo "$@" >> "$out/calls"
if [ -n "$fail" ]; then echo "some output"; echo "quads: it broke" >&2; exit 1; fi
printf 'lr = 0.1\nnum-rollout = 2\n' > "$out/config.toml"
if [ -n "$sleep" ]; then
  trap 'echo stopped >> "$out/calls"; exit 130' TERM
  echo '{"step": 0}' > "$out/metrics.jsonl"
  while true; do sleep 0.05; done
fi
printf '{"step": 0}\n{"step": 1}\n' > "$out/metrics.jsonl"
mkdir -p "$out/checkpoints/step_000002"
)";

class RunAll : public testing::Test {
 protected:
  RunAll() {
    std::string name = testing::TempDir() + "quads-compare-XXXXXX";
    directory_ = mkdtemp(name.data());
    options_ = {.program = directory_ / "program", .jobs = 2, .threads_per_run = 1};
    std::ofstream(options_.program) << kScript;
    std::filesystem::permissions(options_.program, std::filesystem::perms::owner_all);
  }
  ~RunAll() override { std::filesystem::remove_all(directory_); }

  PlannedRun planned(const std::string& name, std::vector<std::string> arguments) const {
    return {name, directory_ / name, std::move(arguments)};
  }
  std::string calls(const PlannedRun& run) const {
    std::ostringstream text;
    text << std::ifstream(run.directory / "calls").rdbuf();
    return text.str();
  }

  std::filesystem::path directory_;
  RunAllOptions options_;
  std::atomic<bool> stop_{false};
};

TEST_F(RunAll, RunsAllAndSkipsWhatIsFinishedTheNextTime) {
  const std::vector<PlannedRun> runs = {planned("a", {"--recipe", "bf16"}),
                                        planned("b", {"--recipe", "quads"}),
                                        planned("c", {"--recipe", "nvfp4"})};
  EXPECT_TRUE(run_all(runs, options_, stop_).empty());
  EXPECT_TRUE(run_all(runs, options_, stop_).empty());
  EXPECT_EQ(calls(runs[1]),
            "train --recipe quads --threads 1 --out " + runs[1].directory.string() + "\n");
  EXPECT_TRUE(run_progress(runs[2].directory).finished());
}

TEST_F(RunAll, AnUnfinishedRunIsStartedAgain) {
  const std::vector<PlannedRun> runs = {planned("a", {})};
  run_all(runs, options_, stop_);
  std::ofstream(runs[0].directory / "metrics.jsonl") << "{\"step\": 0}\n{\"st";
  EXPECT_FALSE(run_progress(runs[0].directory).finished());
  run_all(runs, options_, stop_);
  EXPECT_TRUE(run_progress(runs[0].directory).finished());
  const std::string started = "train --threads 1 --out " + runs[0].directory.string();
  EXPECT_EQ(calls(runs[0]), started + "\n" + started + " --resume\n");
  // All steps are there, but the last checkpoint is not: it is still unfinished.
  std::filesystem::remove_all(runs[0].directory / "checkpoints");
  run_all(runs, options_, stop_);
  EXPECT_TRUE(std::filesystem::exists(runs[0].directory / "checkpoints" / "step_000002"));
}

TEST_F(RunAll, AFailureIsReportedWithItsLastLineAndTheOthersGoOn) {
  options_.jobs = 1;
  const std::vector<PlannedRun> runs = {planned("bad", {"fail"}), planned("good", {})};
  const std::vector<RunFailure> failures = run_all(runs, options_, stop_);
  ASSERT_EQ(failures.size(), 1);
  EXPECT_EQ(failures[0].name, "bad");
  EXPECT_EQ(failures[0].message, "quads: it broke");
  EXPECT_TRUE(run_progress(runs[1].directory).finished());
}

TEST_F(RunAll, ADirectoryOfOtherOptionsIsAnErrorBeforeAnythingRuns) {
  run_all({planned("a", {"--lr", "1"})}, options_, stop_);
  const std::vector<PlannedRun> runs = {planned("b", {}), planned("a", {"--lr", "2"})};
  try {
    run_all(runs, options_, stop_);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("holds a run with other options"));
  }
  EXPECT_EQ(calls(runs[0]), "");
}

TEST_F(RunAll, AChangedConfigurationFileIsAChangedOption) {
  const std::filesystem::path config = directory_ / "demo.toml";
  std::ofstream(config) << "lr = 1\n";
  const std::vector<PlannedRun> runs = {planned("a", {"--config", config.string()})};
  run_all(runs, options_, stop_);
  EXPECT_TRUE(run_all(runs, options_, stop_).empty());
  std::ofstream(config) << "lr = 2\n";
  EXPECT_THROW(run_all(runs, options_, stop_), Error);
}

TEST_F(RunAll, StoppingIsPassedOnAndWaitedFor) {
  options_.jobs = 1;
  const std::vector<PlannedRun> runs = {planned("a", {"sleep"}), planned("b", {})};
  std::thread stopper([&] {
    while (!std::filesystem::exists(runs[0].directory / "metrics.jsonl")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    stop_ = true;
  });
  EXPECT_TRUE(run_all(runs, options_, stop_).empty());
  stopper.join();
  EXPECT_THAT(calls(runs[0]), HasSubstr("stopped"));
  EXPECT_EQ(calls(runs[1]), "");
}

TEST_F(RunAll, AProgramThatDoesNotExistIsAnError) {
  options_.program = directory_ / "nothing";
  EXPECT_THROW(run_all({planned("a", {})}, options_, stop_), Error);
}

TEST_F(RunAll, AChildEndedByASignalSaysSo) {
  ChildProcess child("/bin/sh", {"-c", "kill -9 $$"}, directory_ / "log");
  std::optional<int> status;
  while (!(status = child.poll())) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(*status, 128 + 9);
}

}  // namespace
}  // namespace quads
