// The main function of the small programs that tests/oracle runs.
#pragma once

#include <cstdio>
#include <exception>

namespace quads {

/// Runs `run`; the exit status is 0, or 1 after the message of what it threw.
template <class Run>
int tool_main(const Run& run) {
  try {
    run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace quads
