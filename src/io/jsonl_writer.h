// Appending to a JSON Lines file that must survive kills and be continued after them.
#pragma once

#include <filesystem>
#include <functional>

#include "io/file.h"
#include "io/json.h"

namespace quads {

/// Appends lines to `path`, creating it if needed. Each line goes to the operating system in one
/// write, so a killed process loses none that was written. Opening cuts off a last line without a
/// newline (the writer died in its middle); a write that fails (full disk) leaves no part of its
/// line and is an Error that names the path.
class JsonlWriter {
 public:
  explicit JsonlWriter(std::filesystem::path path);

  /// Invalid UTF-8 in texts becomes U+FFFD.
  void write(const Json& document);
  /// fsync: what was written survives a loss of power.
  void sync();

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

/// Cuts `path` just before its first line for which `keep` is false, and cuts off a last line
/// without a newline. To resume from step 100: keep = [](const Json& m) { return m["step"] <= 100;
/// }. `keep` is also given "file:line". Nothing happens if the file does not exist. Error for a
/// whole line that is not JSON.
void truncate_jsonl(const std::filesystem::path& path,
                    const std::function<bool(const Json&, const std::string&)>& keep);

}  // namespace quads
