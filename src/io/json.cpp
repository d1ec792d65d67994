// Strict JSON parsing: nlohmann's parser with a callback that counts and looks for duplicate keys.
#include "io/json.h"

#include <unordered_set>

#include "io/atomic_file.h"
#include "io/file.h"

namespace quads {
namespace {

// nlohmann's messages open with "[json.exception.parse_error.101] ".
std::string without_tag(const std::string& message) {
  const size_t end = message.find("] ");
  return message.starts_with('[') && end != std::string::npos ? message.substr(end + 2) : message;
}

// They end with what was read last, which may be a string of megabytes.
std::string with_short_token(std::string message) {
  constexpr std::string_view kRead = "last read: '";
  constexpr size_t kMost = 60;
  const size_t begin = message.find(kRead);
  const size_t end = message.rfind('\'');
  if (begin == std::string::npos || end < begin + kRead.size() + kMost) return message;
  size_t cut = begin + kRead.size() + kMost;
  while ((message[cut] & 0xC0) == 0x80) --cut;  // no half character
  return message.replace(cut, end - cut, "...");
}

// In a text of one line, often a line of a file that `where` names, the column is enough.
std::string without_line(std::string message) {
  constexpr std::string_view kLine = "at line 1, column";
  const size_t at = message.find(kLine);
  return at == std::string::npos ? message : message.replace(at, kLine.size(), "at column");
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  require(text.size() <= limits.max_bytes, "{}: {} bytes of JSON, more than the {} allowed here",
          where, text.size(), limits.max_bytes);
  // The parser takes a NUL byte for the end of the text and would ignore what follows it.
  require(text.find('\0') == std::string_view::npos, "{}: not valid JSON: it has a NUL byte",
          where);
  std::vector<std::unordered_set<std::string>> keys;  // of the open objects; empty sets for arrays
  size_t num_values = 0;
  const auto check = [&](int /*depth*/, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys.emplace_back();
        require(keys.size() <= static_cast<size_t>(limits.max_depth),
                "{}: JSON nested deeper than {} levels", where, limits.max_depth);
        [[fallthrough]];
      case Json::parse_event_t::value:
        require(++num_values <= limits.max_values, "{}: JSON of more than {} values", where,
                limits.max_values);
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        require(keys.back().insert(key).second, "{}: key '{}' appears twice in one object", where,
                key);
        break;
      }
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& e) {
    const std::string message = with_short_token(without_tag(e.what()));
    fail("{}: not valid JSON: {}", where,
         text.find('\n') == std::string_view::npos ? without_line(message) : message);
  }
}

Json read_json_file(const std::filesystem::path& path, const JsonLimits& limits) {
  return parse_json(read_text_file(path, limits.max_bytes), path.string(), limits);
}

void write_json_file(const std::filesystem::path& path, const Json& json) {
  write_file_atomically(path, json.dump(2) + "\n");
}

std::string to_string(const JsonExcerpt& excerpt) {
  std::string text =
      excerpt.json.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > 60) {
    text = text.substr(0, 57) + "...";
  }
  return text;
}

}  // namespace quads
