// CRC-32C (Castagnoli), the checksum of TFRecord files.
#pragma once

#include <cstdint>
#include <string_view>

namespace quads {

/// CRC-32C of `bytes` (RFC 3720, appendix B.4: polynomial 0x1EDC6F41 reflected, inverted in and
/// out).
uint32_t crc32c(std::string_view bytes);

/// The form in which TFRecord stores it, so that the checksum of data that holds checksums stays
/// sound: rotated right by 15 bits, plus 0xA282EAD8 (tensorflow/core/lib/hash/crc32c.h).
inline uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace quads
