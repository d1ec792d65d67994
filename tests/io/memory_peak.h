// How much memory something takes, for tests.
#pragma once

#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace quads {

/// A line of /proc/self/status in bytes: "VmRSS", "VmHWM".
inline int64_t status_bytes(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  }
  return -1;
}

/// The most resident memory that `action` takes beside what is there before it, mapped pages of
/// files included: measured in a child process, whose peak begins anew. -1 if `action` throws.
template <class Action>
int64_t memory_peak(const Action& action) {
  malloc_trim(0);
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    int64_t peak = -1;
    try {
      const int64_t before = status_bytes("VmRSS");
      action();
      peak = status_bytes("VmHWM") - before;
    } catch (...) {
    }
    _exit(write(ends[1], &peak, sizeof(peak)) == sizeof(peak) ? 0 : 1);
  }
  int64_t peak = -1;
  EXPECT_EQ(read(ends[0], &peak, sizeof(peak)), static_cast<ssize_t>(sizeof(peak)));
  close(ends[0]);
  close(ends[1]);
  waitpid(child, nullptr, 0);
  return peak;
}

/// Of the .safetensors files in a folder.
struct ShardSizes {
  explicit ShardSizes(const std::filesystem::path& directory) {
    for (const auto& file : std::filesystem::directory_iterator(directory)) {
      if (file.path().extension() != ".safetensors") continue;
      largest = std::max(largest, static_cast<int64_t>(file.file_size()));
      ++count;
    }
  }
  int64_t largest = 0;
  int count = 0;
};

}  // namespace quads
