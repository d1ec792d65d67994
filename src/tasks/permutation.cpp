// A Feistel network with cycle walking.
#include "tasks/permutation.h"

#include "base/error.h"
#include "base/random.h"

namespace quads {

Permutation::Permutation(uint64_t size, uint64_t seed, uint32_t id)
    : size_(size), seed_(seed), id_(id) {
  require(size >= 1 && size <= uint64_t{1} << 62, "a permutation of {} elements is not supported",
          size);
  while ((uint64_t{1} << (2 * half_bits_)) < size) {
    ++half_bits_;
  }
}

uint64_t Permutation::encrypt(uint64_t value) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_;
  uint64_t right = value & mask;
  for (uint32_t round = 0; round < 4; ++round) {
    const uint64_t mixed =
        left ^ (random_words(seed_, RandomStream::kShuffle, right, id_, round)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

uint64_t Permutation::operator()(uint64_t position) const {
  require(position < size_, "position {} is outside a permutation of {} elements", position, size_);
  uint64_t value = encrypt(position);
  while (value >= size_) {
    value = encrypt(value);
  }
  return value;
}

}  // namespace quads
