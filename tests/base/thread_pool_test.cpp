// The thread pool: every task once, for any number of threads; failures reach the caller.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <vector>

namespace quads {
namespace {

class Pools : public testing::TestWithParam<int> {};

TEST_P(Pools, RunsEveryTaskOnceWithAWorkerInRange) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.size(), std::max(1, GetParam()));
  for (const int64_t tasks : {0, 1, 2, 3, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    std::atomic<bool> in_range{true};
    pool.run(tasks, [&](int64_t task, int worker) {
      ++runs[static_cast<size_t>(task)];
      if (worker < 0 || worker >= pool.size()) in_range = false;
    });
    for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
    EXPECT_TRUE(in_range);
  }
}

TEST_P(Pools, RethrowsATasksExceptionAndStaysUsable) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 20; ++round) {
    EXPECT_THROW(pool.run(100,
                          [](int64_t task, int) {
                            if (task == 17) throw std::runtime_error("task 17");
                          }),
                 std::runtime_error);
    std::atomic<int> done{0};
    pool.run(100, [&](int64_t, int) { ++done; });
    EXPECT_EQ(done.load(), 100);
  }
}

TEST_P(Pools, SeesEachRunsOwnTasks) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> last(64);
  for (int64_t round = 0; round < 2000; ++round) {
    pool.run(64, [&](int64_t task, int) { last[static_cast<size_t>(task)] = round; });
    for (const int64_t value : last) ASSERT_EQ(value, round);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, Pools, testing::Values(0, 1, 2, 3, 8));

TEST(AvailableCores, IsAtLeastOne) { EXPECT_GE(available_cores(), 1); }

}  // namespace
}  // namespace quads
