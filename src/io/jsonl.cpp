// Reading JSON Lines from a mapped file.
#include "io/jsonl.h"

#include "io/mapped_file.h"

namespace quads {

Json parse_jsonl_line(std::string_view line, const std::string& where) {
  return parse_json(line, where, {.max_bytes = size_t{64} << 20});
}

void for_each_jsonl(const std::filesystem::path& path,
                    const std::function<void(const Json&, const std::string&)>& visit) {
  for_each_line(path, [&](std::string_view line, const std::string& where) {
    visit(parse_jsonl_line(line, where), where);
  });
}

void for_each_line(const std::filesystem::path& path,
                   const std::function<void(std::string_view, const std::string&)>& visit) {
  const MappedFile file(path);
  std::string_view rest = file.text();
  for (int64_t line_number = 1; !rest.empty(); ++line_number) {
    const size_t end = rest.find('\n');
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    visit(line, fmt::format("{}:{}", path.string(), line_number));
  }
}

}  // namespace quads
