// Reading JSON Lines: one JSON document a line.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "io/json.h"

namespace quads {

/// Calls `visit(document, where)` for every line in order; `where` is "file:line" for messages.
/// Blank lines are skipped and a missing newline at the end is allowed. Errors name file and line;
/// a line may have 64 MiB.
void for_each_jsonl(const std::filesystem::path& path,
                    const std::function<void(const Json&, const std::string&)>& visit);

}  // namespace quads
