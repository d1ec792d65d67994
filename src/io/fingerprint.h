// What tells a file from another, or from its own earlier contents.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "io/json.h"

namespace quads {

struct FileFingerprint {
  std::filesystem::path path;  // where it lay
  uint64_t bytes = 0;
  uint64_t hash = 0;  // FNV-1a of all bytes: against changes that happen, not against forgers

  bool same_contents(const FileFingerprint& other) const {
    return bytes == other.bytes && hash == other.hash;
  }
};

/// Reads the whole file. Error if it is not a readable regular file.
FileFingerprint fingerprint(const std::filesystem::path& path);

Json to_json(const FileFingerprint& file);
/// Errors start with `where`.
FileFingerprint fingerprint_from_json(const Json& json, const std::string& where);

/// "data.jsonl (1234 bytes, hash 00000000deadbeef)".
std::string describe(const FileFingerprint& file);

}  // namespace quads
