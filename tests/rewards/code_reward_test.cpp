// Responses scored by running their programs.
#include "rewards/code_reward.h"

#include <chrono>
#include <thread>

#include "io/test_files.h"
#include "rewards/sandbox_testing.h"

namespace quads {
namespace {

using CodeRewardTest = WithSandbox;

constexpr const char* kSquares = R"({"inputs": ["1", "2", "3"], "outputs": ["1\n", "4", "9.0"]})";

std::string block(const std::string& program) { return "So:\n```python\n" + program + "\n```\n"; }

std::vector<RewardResult> scores(const CodeReward::Options& options, const std::string& label,
                                 const std::vector<std::string>& responses) {
  CodeReward reward(options);
  std::vector<RewardRequest> requests;
  for (const std::string& response : responses) {
    requests.push_back({.prompt = "", .response = response, .label = label});
  }
  return reward.score(requests);
}

std::vector<double> values(const std::vector<RewardResult>& results) {
  std::vector<double> values;
  for (const RewardResult& result : results) {
    EXPECT_EQ(result.failure, "");
    values.push_back(result.value);
  }
  return values;
}

TEST_F(CodeRewardTest, AProgramHasToPassAllTests) {
  const std::vector<std::string> responses = {block("print(int(input()) ** 2)"),
                                              block("print(int(input()) * 2)"),
                                              block("x = int(input())\nprint(x if x == 1 else 0)"),
                                              block("print(1)"),
                                              "no program",
                                              block("while True: pass"),
                                              block("import os\nos._exit(0)"),
                                              ""};
  CodeReward::Options options;
  options.workers = 2;
  options.sandbox.run_s = 2;
  EXPECT_EQ(values(scores(options, kSquares, responses)),
            (std::vector<double>{1, 0, 0, 0, 0, 0, 0, 0}));
  options.fraction = true;
  EXPECT_EQ(values(scores(options, kSquares, responses)),
            (std::vector<double>{1, 1.0 / 3, 1.0 / 3, 1.0 / 3, 0, 0, 0, 0}));
}

TEST_F(CodeRewardTest, FunctionsAreComparedByValue) {
  const std::string label =
      R"({"fn_name": "pairs", "inputs": ["3", "1"], "outputs": ["[[0, 1], [1, 2]]", "[]"]})";
  EXPECT_EQ(values(scores({}, label,
                          {block("def pairs(n): return [(i, i + 1) for i in range(n - 1)]"),
                           block("class Solution:\n  def pairs(self, n): return []"),
                           block("def pairs(n): raise SystemExit(0)")})),
            (std::vector<double>{1, 0, 0}));
}

TEST_F(CodeRewardTest, AProblemWithoutTestsIsAFailureAndNoZero) {
  const std::vector<RewardResult> results = scores({}, "eJxrYJ", {block("print(1)"), "nothing"});
  for (const RewardResult& result : results) {
    expect_contains(result.failure, "label is \"eJxrYJ\", not JSON");
  }
}

TEST_F(CodeRewardTest, ASandboxThatCannotBeStartedIsAFailureAndNoZero) {
  CodeReward reward({});
  const std::string path = getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  const std::string response = block("print(1)");
  const RewardRequest request = {.prompt = "", .response = response, .label = kSquares};
  const std::vector<RewardResult> results = reward.score({&request, 1});
  setenv("PATH", path.c_str(), 1);
  expect_contains(results.at(0).failure, "cannot be started");
}

TEST_F(CodeRewardTest, AProgramThatBreaksItsSandboxIsZero) {
  CodeReward reward({});
  std::thread breaker([] {
    for (int broken = 0; broken < 2;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      const auto processes = descendants(getpid());
      if (processes.size() < 4) continue;  // bwrap twice, runner, program
      for (const auto& [process, started] : processes) kill(process, SIGKILL);
      expect_gone(processes);
      ++broken;
    }
  });
  const std::string response = block("import time\ntime.sleep(1000)");
  const RewardRequest request = {.prompt = "", .response = response, .label = kSquares};
  const std::vector<RewardResult> results = reward.score({&request, 1});
  breaker.join();
  EXPECT_EQ(values(results), (std::vector<double>{0}));
}

TEST_F(CodeRewardTest, AnInputThatIsTooLargeIsAFailure) {
  CodeReward::Options options;
  options.sandbox.disk_bytes = 1 << 20;
  const std::string label = Json{{"inputs", {std::string(600'000, 'x')}}, {"outputs", {""}}}.dump();
  expect_contains(scores(options, label, {block("print(1)")}).at(0).failure,
                  "a test's input has 600000 bytes, more than 524288");
}

TEST_F(CodeRewardTest, CancellingEndsIt) {
  std::atomic<bool> cancel = false;
  CodeReward::Options options;
  options.sandbox.cancel = &cancel;
  CodeReward reward(options);
  cancel = true;
  const std::string response = block("print(1)");
  const RewardRequest request = {.prompt = "", .response = response, .label = kSquares};
  EXPECT_THROW(reward.score({&request, 1}), Interrupted);
}

TEST(CodeRewardOptions, AreChecked) {
  RewardOptions options;
  options.types = {"code"};
  options.code_sandbox = "chroot";
  expect_contains(error_of([&] { make_reward(options); }), "unknown sandbox 'chroot'");
  options.code_sandbox = "none";
  options.timeout_s = -1;
  expect_contains(error_of([&] { make_reward(options); }), "--rm-timeout: -1 s is not in");
}

}  // namespace
}  // namespace quads
