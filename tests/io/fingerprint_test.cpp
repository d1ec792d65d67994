// Fingerprints of files.
#include "io/fingerprint.h"

#include <gtest/gtest.h>

#include "test_files.h"

namespace quads {
namespace {

TEST(Fingerprint, IsThePublishedHashOfTheBytes) {
  const TempDir dir;
  const auto of = [&](const std::string& text) {
    write_text(dir / "f", text);
    return fingerprint(dir / "f");
  };
  // Test vectors of draft-eastlake-fnv.
  EXPECT_EQ(of("").hash, 0xCBF29CE484222325U);
  EXPECT_EQ(of("a").hash, 0xAF63DC4C8601EC8CU);
  EXPECT_EQ(of("foobar").hash, 0x85944171F73967E8U);
  EXPECT_EQ(of("foobar").bytes, 6U);
}

TEST(Fingerprint, TellsContentsApartButNotPlaces) {
  const TempDir dir;
  write_text(dir / "a", "one");
  write_text(dir / "b", "one");
  write_text(dir / "c", "two");
  EXPECT_TRUE(fingerprint(dir / "a").same_contents(fingerprint(dir / "b")));
  EXPECT_FALSE(fingerprint(dir / "a").same_contents(fingerprint(dir / "c")));
  expect_contains(error_of([&] { fingerprint(dir.path()); }), dir.path().string());
}

TEST(Fingerprint, ComesBackFromJsonAndSaysWhatIsMissing) {
  const FileFingerprint file{.path = "data.jsonl", .bytes = 7, .hash = ~uint64_t{0}};
  const FileFingerprint read = fingerprint_from_json(parse_json(to_json(file).dump(), "f"), "f");
  EXPECT_TRUE(read.same_contents(file));
  EXPECT_EQ(describe(read), "data.jsonl (7 bytes, hash ffffffffffffffff)");
  expect_contains(error_of([] {
                    fingerprint_from_json({{"path", "x"}}, "f: 'file'");
                  }),
                  "f: 'file': key 'bytes' is missing");
}

}  // namespace
}  // namespace quads
