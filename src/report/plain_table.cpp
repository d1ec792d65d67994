#include "report/plain_table.h"

#include <algorithm>

#include "base/error.h"
#include "report/progress.h"

namespace quads {

std::string plain_table(const TableText& table) {
  std::vector<int> widths;
  for (const std::string& cell : table.header) widths.push_back(display_width(cell));
  for (const std::vector<std::string>& row : table.rows) {
    require(row.size() == widths.size(), "a table row has {} cells, the header {}", row.size(),
            widths.size());
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], display_width(row[i]));
    }
  }
  std::string text;
  const auto add_row = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(static_cast<size_t>(widths[i] - display_width(row[i])), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? row[i] + space : space + row[i];
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  add_row(table.header);
  std::vector<std::string> rule;
  for (int width : widths) {
    std::string dashes;
    for (int i = 0; i < width; ++i) dashes += "─";
    rule.push_back(dashes);
  }
  add_row(rule);
  for (const std::vector<std::string>& row : table.rows) add_row(row);
  return text;
}

}  // namespace quads
