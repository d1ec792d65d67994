// Reading JSON Lines: one JSON document a line.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "io/json.h"

namespace quads {

/// Calls `visit(document, where)` for every line in order; `where` is "file:line" for messages.
/// Blank lines are skipped and a missing newline at the end is allowed. Errors name file and line;
/// a line may have 64 MiB.
void for_each_jsonl(const std::filesystem::path& path,
                    const std::function<void(const Json&, const std::string&)>& visit);

/// The same with the lines' texts, for callers that go on after a line that is not JSON.
void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, const std::string&)>& visit);

/// One line of a file as for_each_jsonl parses it.
Json parse_jsonl_line(std::string_view line, const std::string& where);

}  // namespace quads
