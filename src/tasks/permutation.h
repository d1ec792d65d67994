// A random order of 0..n-1 that is computed, not stored.
#pragma once

#include <cstdint>

namespace quads {

/// A pseudo-random permutation of 0..size-1 chosen by (seed, id): a four-round Feistel network over
/// the next power of four, applied again until it lands below `size` (Black and Rogaway, "Ciphers
/// with Arbitrary Finite Domains", 2002). Takes constant memory, and on average under four rounds
/// of the network, for any size up to 2^62.
class Permutation {
 public:
  Permutation(uint64_t size, uint64_t seed, uint32_t id);
  uint64_t operator()(uint64_t position) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  uint64_t size_;
  uint64_t seed_;
  uint32_t id_;
  uint32_t half_bits_ = 1;
};

}  // namespace quads
