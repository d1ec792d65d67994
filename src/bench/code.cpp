#include "bench/code.h"

#include "base/error.h"
#include "base/thread_pool.h"
#include "bench/machine.h"
#include "rewards/code_reward.h"
#include "rewards/piped_process.h"

namespace quads::bench {
namespace {

constexpr int kRepeats = 3;

// Tests of a program that doubles a number.
std::string label_of(int64_t tests) {
  Json inputs = Json::array();
  Json outputs = Json::array();
  for (int64_t i = 0; i < tests; ++i) {
    inputs.push_back(fmt::format("{}\n", i));
    outputs.push_back(fmt::format("{}\n", 2 * i));
  }
  return Json{{"inputs", inputs}, {"outputs", outputs}}.dump();
}

double score_seconds(CodeReward& reward, int64_t programs, int64_t tests) {
  const std::string label = label_of(tests);
  const std::string response = "```python\nprint(2 * int(input()))\n```";
  const std::vector<RewardRequest> requests(static_cast<size_t>(programs),
                                            {.response = response, .label = label});
  return median_seconds(
      [&] {
        for (const RewardResult& result : reward.score(requests)) {
          require(result.value == 1, "a right program has {} {}", result.value, result.failure);
        }
      },
      kRepeats);
}

double python_seconds(ThreadPool& threads, int64_t starts) {
  return median_seconds(
      [&] {
        threads.run(starts, [](int64_t, int) {
          PipedProcess python({"/usr/bin/python3", "-I", "-S", "-c", "pass"});
          const std::string end = python.end(/*wait_ms=*/10'000);
          require(end == "exited with status 0", "/usr/bin/python3 {}", end);
        });
      },
      kRepeats);
}

}  // namespace

Result bench_code(const CodeBench& bench) {
  CodeReward reward({.workers = bench.workers});
  ThreadPool threads(bench.workers);
  Result result;
  result.name = "code";
  result.notes =
      "Programs that read a number and print another, each right. python_per_s: starts of "
      "`python3 -I -S -c pass` without a sandbox, as many at once.";
  result.machine = {{"workers", bench.workers}};
  const double starts_per_s =
      static_cast<double>(bench.programs) / python_seconds(threads, bench.programs);
  for (const int64_t tests : {1, 10}) {
    const double per_s =
        static_cast<double>(bench.programs) / score_seconds(reward, bench.programs, tests);
    result.rows.push_back({.labels = {{"tests", tests}},
                           .figures = {{"programs_per_s", per_s},
                                       {"tests_per_s", per_s * static_cast<double>(tests)},
                                       {"python_per_s", starts_per_s},
                                       {"x_python", per_s / starts_per_s}}});
  }
  return result;
}

}  // namespace quads::bench
