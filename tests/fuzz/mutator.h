// Makes bad inputs from good ones.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"

namespace quads {

/// The same inputs for the same seed and corpus.
class Mutator {
 public:
  Mutator(uint64_t seed, std::vector<std::string> corpus, std::vector<std::string> words);

  /// One of the corpus after one to eight changes, at most kMaxBytes of it: bits flipped, ranges
  /// erased, doubled, swapped and cut off, words put in, numbers and binary lengths made extreme,
  /// brackets nested, and ranges and whole JSON values of other inputs put in.
  std::string next();
  /// Adds an input to start from.
  void keep(std::string input) { corpus_.push_back(std::move(input)); }

  static constexpr size_t kMaxBytes = size_t{1} << 13;

 private:
  struct Range {
    size_t begin;
    size_t size;
  };
  size_t below(size_t n) { return n == 0 ? 0 : random_.below(static_cast<uint32_t>(n)); }
  const std::string& any(const std::vector<std::string>& from) { return from[below(from.size())]; }
  Range any_range(std::string_view text);
  Range any_value(std::string_view text);
  std::string extreme_number();
  void change(std::string& input);

  RandomSequence random_;
  std::vector<std::string> corpus_;
  size_t num_good_;
  std::vector<std::string> words_;
};

}  // namespace quads
