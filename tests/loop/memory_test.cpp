// A run's memory does not grow with its steps.
#include <fstream>

#include "tests/loop/testing.h"

namespace quads::testing {
namespace {

int64_t resident_bytes() {
  int64_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST_F(LoopTest, MemoryDoesNotGrowFromStep30ToStep60) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the address sanitizer keeps freed memory";
#endif
  RlOptions o = options("quads", 61);
  o.eval_interval = o.save_interval = 10;
  o.loss.kl_coef = 0.01;
  int64_t at_30 = 0, at_60 = 0;
  task_.on_problem = [&](int64_t index) {
    if (index == 30 * o.rollout_batch_size) at_30 = resident_bytes();
    if (index == 60 * o.rollout_batch_size) at_60 = resident_bytes();
  };
  EXPECT_EQ(run(o), 61);
  ASSERT_GT(at_30, 0);
  EXPECT_LE(at_60 - at_30, int64_t{2} << 20) << at_30 << " then " << at_60;
}

}  // namespace
}  // namespace quads::testing
