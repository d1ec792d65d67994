// Trivial programs under the reward `code`, beside starts of Python without a sandbox.
#pragma once

#include <cstdint>

#include "bench/result.h"

namespace quads::bench {

struct CodeBench {
  int workers = 1;         // programs at once, and Pythons
  int64_t programs = 400;  // scored in one call
};

/// A row for programs with 1 and with 10 tests. Figures: programs_per_s, tests_per_s, python_per_s
/// (starts of an isolated Python that does nothing, as many at once), x_python. Error if bubblewrap
/// cannot run.
Result bench_code(const CodeBench& bench);

}  // namespace quads::bench
