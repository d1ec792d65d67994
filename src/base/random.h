// Counter-based random numbers: every draw is a function of a key and a counter, never of what was
// drawn before, so results do not depend on batch size, order or thread count.
#pragma once

#include <array>
#include <cstdint>

namespace quads {

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
inline std::array<uint32_t, 4> philox(std::array<uint32_t, 4> counter,
                                      std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// What a stream of draws is for; part of the key, so that streams never overlap.
enum class RandomStream : uint32_t { kSampling = 1, kInit = 2, kShuffle = 3, kTask = 4 };

/// Four 32-bit words for the draw (a, b, c) of `stream` under `seed`.
inline std::array<uint32_t, 4> random_words(uint64_t seed, RandomStream stream, uint64_t a,
                                            uint32_t b = 0, uint32_t c = 0) {
  return philox({static_cast<uint32_t>(a), static_cast<uint32_t>(a >> 32), b, c},
                {static_cast<uint32_t>(seed) ^ (static_cast<uint32_t>(stream) * 0x85EBCA6B),
                 static_cast<uint32_t>(seed >> 32)});
}

/// Uniform in [0, 1) with 24 bits, exact in FP32.
inline float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24F; }

/// A sequence of draws for code that needs many in a row (shuffles, initial weights, problems).
class RandomSequence {
 public:
  RandomSequence(uint64_t seed, RandomStream stream, uint64_t id)
      : seed_(seed), stream_(stream), id_(id) {}
  uint32_t next() {
    if (used_ == 4) {
      words_ = random_words(seed_, stream_, id_, block_++, 0);
      used_ = 0;
    }
    return words_[used_++];
  }
  /// Uniform integer in [0, n); n >= 1. Multiply-shift; the bias is below n / 2^32.
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((uint64_t{next()} * n) >> 32); }
  float uniform() { return uniform_from_bits(next()); }

 private:
  uint64_t seed_;
  RandomStream stream_;
  uint64_t id_;
  uint32_t block_ = 0;
  int used_ = 4;
  std::array<uint32_t, 4> words_{};
};

}  // namespace quads
