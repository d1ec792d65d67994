#include "rewards/code_reward.h"

#include <algorithm>
#include <map>
#include <utility>

#include "rewards/code_block.h"
#include "rewards/output_match.h"
#include "rewards/test_cases.h"

namespace quads {
namespace {

/// A problem's tests, or why there are none.
struct Problem {
  TestCases tests;
  std::string failure;
};

Problem read_problem(const RewardRequest& request, size_t largest_input) {
  Problem problem;
  try {
    problem.tests = parse_test_cases(request.label, request.metadata);
    for (const TestCase& test : problem.tests.cases) {
      require(test.input.size() <= largest_input, "a test's input has {} bytes, more than {}",
              test.input.size(), largest_input);
    }
  } catch (const Error& error) {
    problem.failure = error.what();
  }
  return problem;
}

double score_program(Sandbox& sandbox, const std::string& program, const TestCases& tests,
                     bool fraction) {
  sandbox.load(program, tests.function);
  size_t passed = 0;
  for (const TestCase& test : tests.cases) {
    const Sandbox::Run run = sandbox.run(test.input);
    const auto matches = tests.function.empty() ? same_output : same_value;
    const bool pass = run.finished && matches(run.output, test.expected);
    passed += pass ? 1 : 0;
    if (!pass && !fraction) return 0;
  }
  return static_cast<double>(passed) / static_cast<double>(tests.cases.size());
}

RewardResult score_response(Sandbox& sandbox, std::string_view response, const Problem& problem,
                            const CodeReward::Options& options) {
  if (!problem.failure.empty()) return {.failure = problem.failure};
  const std::optional<std::string> program = last_code_block(response);
  if (!program) return {.value = 0};
  std::string failure;
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      return {.value = score_program(sandbox, *program, problem.tests, options.fraction)};
    } catch (const SandboxError& error) {
      failure = error.what();  // the machine may have been short of something
    }
  }
  // No program should be able to do that (program_filter.h). If one is, it gains nothing by it.
  try {
    check_sandbox(options.sandbox);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error&) {
    return {.failure = failure};
  }
  return {.value = 0};
}

}  // namespace

CodeReward::CodeReward(const Options& options) : options_(options), threads_(options.workers) {
  check_sandbox(options_.sandbox);
  for (int i = 0; i < threads_.size(); ++i) {
    sandboxes_.push_back(std::make_unique<Sandbox>(options_.sandbox));
  }
}

std::vector<RewardResult> CodeReward::score(std::span<const RewardRequest> requests) {
  // The samples of a problem share its tests, which may be large.
  std::map<std::pair<const Json*, std::string_view>, Problem> problems;
  std::vector<const Problem*> problem_of;
  for (const RewardRequest& request : requests) {
    const auto [entry, is_new] = problems.try_emplace({request.metadata, request.label});
    if (is_new) entry->second = read_problem(request, options_.sandbox.disk_bytes / 2);
    problem_of.push_back(&entry->second);
  }
  std::vector<RewardResult> results(requests.size());
  threads_.run(static_cast<int64_t>(requests.size()), [&](int64_t i, int thread) {
    const auto index = static_cast<size_t>(i);
    results[index] = score_response(*sandboxes_[static_cast<size_t>(thread)],
                                    requests[index].response, *problem_of[index], options_);
  });
  return results;
}

std::unique_ptr<Reward> make_code_reward(const RewardOptions& options) {
  CodeReward::Options code;
  code.sandbox.kind = parse_sandbox_kind(options.code_sandbox);
  code.sandbox.run_s = options.timeout_s;
  code.sandbox.cancel = options.cancel;
  code.workers = options.num_workers();
  code.fraction = options.code_fraction;
  return std::make_unique<CodeReward>(code);
}

}  // namespace quads
