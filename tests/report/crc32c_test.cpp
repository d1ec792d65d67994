// CRC-32C against the vectors of RFC 3720, appendix B.4.
#include "report/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace quads {
namespace {

TEST(Crc32c, MatchesTheVectorsOfRfc3720) {
  std::string ascending;
  std::string descending;
  for (int i = 0; i < 32; ++i) {
    ascending.push_back(static_cast<char>(i));
    descending.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
  EXPECT_EQ(crc32c(ascending), 0x46DD794EU);
  EXPECT_EQ(crc32c(descending), 0x113FDB5CU);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283U);
  EXPECT_EQ(crc32c(""), 0U);
}

TEST(Crc32c, MaskRotatesRightByFifteenAndAddsTheConstant) {
  // 0xE3069283 rotated right by 15 is 0x2507C60D.
  EXPECT_EQ(masked_crc32c("123456789"), 0x2507C60DU + 0xA282EAD8U);
  EXPECT_EQ(masked_crc32c(""), 0xA282EAD8U);
}

}  // namespace
}  // namespace quads
