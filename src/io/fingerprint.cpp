// http://www.isthe.com/chongo/tech/comp/fnv/
#include "io/fingerprint.h"

#include "io/mapped_file.h"

namespace quads {

FileFingerprint fingerprint(const std::filesystem::path& path) {
  const MappedFile file(path);
  uint64_t hash = 0xCBF29CE484222325;
  for (const std::byte byte : file.bytes()) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001B3;
  }
  return {.path = path, .bytes = file.bytes().size(), .hash = hash};
}

Json to_json(const FileFingerprint& file) {
  return {{"path", file.path.string()}, {"bytes", file.bytes}, {"hash", file.hash}};
}

FileFingerprint fingerprint_from_json(const Json& json, const std::string& where) {
  return {.path = get<std::string>(json, "path", where),
          .bytes = get<uint64_t>(json, "bytes", where),
          .hash = get<uint64_t>(json, "hash", where)};
}

std::string describe(const FileFingerprint& file) {
  return fmt::format("{} ({} bytes, hash {:016x})", file.path.string(), file.bytes, file.hash);
}

}  // namespace quads
