// A directory of a test's own, removed with everything in it at the end.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace quads {

class TemporaryDirectory : public ::testing::Test {
 protected:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "quads-report-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() override { std::filesystem::remove_all(directory_); }

  const std::filesystem::path& directory() const { return directory_; }

  std::filesystem::path write(const std::string& name, std::string_view text) const {
    const std::filesystem::path path = directory_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  static std::string read(const std::filesystem::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path directory_;
};

/// The message of the quads::Error that `function` throws; a failure of the test if it throws none.
template <class Function>
std::string error_of(Function&& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// How often `part` occurs in `text`.
inline size_t count_of(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

}  // namespace quads
