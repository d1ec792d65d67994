#include "rewards/code_block.h"

#include <algorithm>
#include <cctype>

#include "base/text.h"

namespace quads {
namespace {

constexpr size_t kFence = 3;
constexpr std::string_view kBlank = " \t\r";  // within a line

bool is_python(std::string_view mark) {
  std::string lower(mark);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower == "python" || lower == "py" || lower == "python3";
}

}  // namespace

std::optional<std::string> last_code_block(std::string_view response) {
  std::optional<std::string_view> python;
  std::optional<std::string_view> unmarked;
  size_t fence = 0;  // backquotes of the block that is open; 0: none
  std::string_view mark;
  size_t start = 0;
  for (size_t at = 0; at < response.size();) {
    const size_t end = std::min(response.find('\n', at), response.size());
    const std::string_view line = trimmed(response.substr(at, end - at), kBlank);
    const size_t quotes = std::min(line.find_first_not_of('`'), line.size());
    if (fence == 0 && quotes >= kFence) {
      fence = quotes;
      mark = trimmed(line.substr(quotes), kBlank);
      start = std::min(end + 1, response.size());
    } else if (fence > 0 && quotes >= fence && quotes == line.size()) {
      const std::string_view text = response.substr(start, at - start);
      if (is_python(mark)) python = text;
      if (mark.empty()) unmarked = text;
      fence = 0;
    }
    at = end + 1;
  }
  if (python) return std::string(*python);
  if (unmarked) return std::string(*unmarked);
  return std::nullopt;
}

}  // namespace quads
