// What tests of programs in a sandbox share.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "rewards/sandbox.h"

namespace quads {

/// Why sandboxes cannot run here; empty where they can.
inline const std::string& no_sandbox() {
  static const std::string cause = [] {
    try {
      check_sandbox({});
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  }();
  return cause;
}

/// Skips all tests of the fixture, loudly, where bubblewrap cannot run.
class WithSandbox : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!no_sandbox().empty()) GTEST_SKIP() << "NOT TESTED: " << no_sandbox();
  }
};

/// Process numbers of all below `parent`, with the times they started.
inline std::map<pid_t, std::string> descendants(pid_t parent) {
  std::map<pid_t, std::string> found;
  for (const auto& thread :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", parent))) {
    std::ifstream children(thread.path() / "children");
    for (pid_t child; children >> child;) {
      std::ifstream stat(fmt::format("/proc/{}/stat", child));
      std::string field;
      for (int i = 0; i < 22; ++i) stat >> field;
      found[child] = field;
      found.merge(descendants(child));
    }
  }
  return found;
}

inline bool is_gone(pid_t process, const std::string& started) {
  std::ifstream stat(fmt::format("/proc/{}/stat", process));
  std::string field;
  std::string state;
  for (int i = 0; i < 22; ++i) {
    stat >> field;
    if (i == 2) state = field;
  }
  return !stat || state == "Z" || field != started;
}

inline void expect_gone(const std::map<pid_t, std::string>& processes) {
  for (const auto& [process, started] : processes) {
    for (int i = 0; i < 1000 && !is_gone(process, started); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(is_gone(process, started)) << process;
  }
}

}  // namespace quads
