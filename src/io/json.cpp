// Strict JSON parsing: nlohmann's parser, and a first pass that counts and looks for duplicate
// keys.
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

// Reads a document for its syntax, keys and size.
class Checker : public nlohmann::json_sax<Json> {
 public:
  Checker(const std::string& where, const JsonLimits& limits) : where_(where), limits_(limits) {}
  const std::string& syntax_error() const { return syntax_error_; }

  bool null() override { return count(); }
  bool boolean(bool /*value*/) override { return count(); }
  bool number_integer(int64_t /*value*/) override { return count(); }
  bool number_unsigned(uint64_t /*value*/) override { return count(); }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return count(); }
  bool string(std::string& /*value*/) override { return count(); }
  bool binary(Json::binary_t& /*value*/) override { return count(); }
  bool start_object(size_t /*size*/) override { return open(); }
  bool end_object() override { return close(); }
  bool start_array(size_t /*size*/) override { return open(); }
  bool end_array() override { return close(); }
  bool key(std::string& key) override {
    require(keys_.back().insert(key).second, "{}: key '{}' appears twice in one object", where_,
            key);
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const Json::exception& error) override {
    syntax_error_ = error.what();
    return false;
  }

 private:
  bool count() {
    require(++values_ <= limits_.max_values, "{}: JSON of more than {} values", where_,
            limits_.max_values);
    return true;
  }
  bool open() {
    keys_.emplace_back();
    require(keys_.size() <= static_cast<size_t>(limits_.max_depth),
            "{}: JSON nested deeper than {} levels", where_, limits_.max_depth);
    return count();
  }
  bool close() {
    keys_.pop_back();
    return true;
  }

  const std::string& where_;
  const JsonLimits& limits_;
  std::string syntax_error_;
  std::vector<std::unordered_set<std::string>> keys_;  // of the open objects; empty sets for arrays
  size_t values_ = 0;
};

}  // namespace

Json parse_json(std::string_view text, const std::string& where, const JsonLimits& limits) {
  require(text.size() <= limits.max_bytes, "{}: {} bytes of JSON, more than the {} allowed here",
          where, text.size(), limits.max_bytes);
  // The parser takes a NUL byte for the end of the text and would ignore what follows it.
  require(text.find('\0') == std::string_view::npos, "{}: not valid JSON: it has a NUL byte",
          where);
  // Checked first, built then: a callback of the building parser would make it look through all
  // members of an object whenever one of them ends.
  Checker checker(where, limits);
  if (!Json::sax_parse(text, &checker)) {
    const std::string message = with_short_token(without_tag(checker.syntax_error()));
    fail("{}: not valid JSON: {}", where,
         text.find('\n') == std::string_view::npos ? without_line(message) : message);
  }
  return Json::parse(text);
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
