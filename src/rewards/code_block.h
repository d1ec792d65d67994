// The program in a response.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace quads {

/// The text of the last closed block between lines of three or more backquotes that is marked
/// python (or py, python3; in any case), else of the last that is not marked at all. A block closes
/// at a line of backquotes alone, at least as many. Nothing if there is none.
std::optional<std::string> last_code_block(std::string_view response);

}  // namespace quads
