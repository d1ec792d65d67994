// JSON Lines appended with one write a line, and cut back for a resumed run.
#include "io/jsonl_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string_view>

#include "base/error.h"
#include "io/mapped_file.h"

namespace quads {
namespace {

void truncate_to(int fd, size_t size, const std::filesystem::path& path) {
  const bool cut = ::ftruncate(fd, static_cast<off_t>(size)) == 0;
  require(cut, "{}: cannot cut to {} bytes: {}", path.string(), size, errno_text());
}

}  // namespace

JsonlWriter::JsonlWriter(std::filesystem::path path) : path_(std::move(path)) {
  if (std::filesystem::is_regular_file(path_)) {
    const MappedFile file(path_);
    const size_t whole = file.text().rfind('\n') + 1;  // npos + 1 is 0
    if (whole != file.text().size()) {
      truncate_to(open_file(path_, O_WRONLY).get(), whole, path_);
    }
  }
  fd_ = open_file(path_, O_WRONLY | O_CREAT | O_APPEND);
}

void JsonlWriter::write(const Json& document) {
  const std::string line = document.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  const off_t before = ::lseek(fd_.get(), 0, SEEK_END);
  try {
    write_all(fd_.get(), std::as_bytes(std::span(line)), path_);
  } catch (const Error&) {
    // Best effort: if this fails too, the next opening cuts off the torn line.
    [[maybe_unused]] const int ignored = ::ftruncate(fd_.get(), before);
    throw;
  }
}

void JsonlWriter::sync() {
  const bool synced = ::fsync(fd_.get()) == 0;
  require(synced, "{}: cannot sync to disk: {}", path_.string(), errno_text());
}

void truncate_jsonl(const std::filesystem::path& path,
                    const std::function<bool(const Json&, const std::string&)>& keep) {
  if (!std::filesystem::exists(path)) {
    return;
  }
  const MappedFile file(path);
  const std::string_view text = file.text();
  size_t kept = 0;
  int64_t line_number = 1;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', kept)) {
    const std::string where = fmt::format("{}:{}", path.string(), line_number++);
    if (!keep(parse_json(text.substr(kept, end - kept), where), where)) {
      break;
    }
    kept = end + 1;
  }
  if (kept != text.size()) {
    truncate_to(open_file(path, O_WRONLY).get(), kept, path);
  }
}

}  // namespace quads
