// What the blocks promise about bits for any model and precision; tests of several files ask for
// it.
#pragma once

#include <gtest/gtest.h>

#include "tests/model/side.h"

namespace quads::testing {

/// A sequence run alone has the logits that it has among the others of these lengths.
inline void expect_alone_as_among_others(const Parameters& parameters, const Side::Options& options,
                                         const std::vector<int64_t>& lengths) {
  const int64_t vocab = parameters.config().vocab_size;
  Side side(parameters, options);
  const auto sequences = random_sequences(lengths, vocab, 1);
  WholeSequences packed(side, sequences);
  const std::vector<float> together = run_logits(side, packed);
  for (size_t s = 0; s < sequences.size(); ++s) {
    WholeSequences single(side, {sequences[s]});
    const std::vector<float> alone = run_logits(side, single);
    const auto begin = together.begin() + packed.begin(s) * vocab;
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), begin)) << "sequence " << s;
  }
}

/// The logits are the same on every instruction set that this machine has, with each of `threads`.
inline void expect_same_bits_everywhere(const Parameters& parameters, Side::Options options,
                                        const std::vector<int>& threads) {
  using kernels::Isa;
  const auto sequences = random_sequences({21, 70, 3}, parameters.config().vocab_size, 2);
  std::vector<float> expected;
  for (const Isa isa : {Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (!kernels::isa_available(isa)) continue;
    for (const int count : threads) {
      options.isa = isa;
      options.threads = count;
      Side side(parameters, options);
      WholeSequences packed(side, sequences);
      const std::vector<float> logits = run_logits(side, packed);
      if (expected.empty()) expected = logits;
      EXPECT_EQ(logits, expected) << kernels::isa_name(isa) << ", " << count << " threads";
    }
  }
}

}  // namespace quads::testing
