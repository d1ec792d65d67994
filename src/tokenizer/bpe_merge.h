// The merges of byte pair encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace quads {

struct Merge {
  uint32_t rank;   // lower ones are done first
  int32_t result;  // the id of the merged token
};

/// Merge by pair of ids, in open addressing: what encoding spends its time on.
class MergeTable {
 public:
  /// For up to `count` merges.
  explicit MergeTable(size_t count);
  /// A pair that is there already gets the new merge.
  void insert(int32_t left, int32_t right, Merge merge);
  /// Null if the pair is not merged.
  const Merge* find(int32_t left, int32_t right) const {
    for (size_t i = slot_of(left, right);; i = (i + 1) & (slots_.size() - 1)) {
      if (slots_[i].left == left && slots_[i].right == right) {
        return &slots_[i].merge;
      }
      if (slots_[i].left < 0) {
        return nullptr;
      }
    }
  }

 private:
  struct Slot {
    int32_t left = -1;
    int32_t right = -1;
    Merge merge{};
  };
  size_t slot_of(int32_t left, int32_t right) const {
    const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
    return static_cast<size_t>((key * 0x9E3779B97F4A7C15U) >> 32) & (slots_.size() - 1);
  }
  std::vector<Slot> slots_;  // a power of two, at least twice the count
};

/// Merges neighbours in `symbols` until no pair has a merge: always the one of the lowest rank, of
/// equal ones the leftmost. O(n log n) for n symbols. Returns how many candidates it looked at.
size_t merge_symbols(std::vector<int32_t>& symbols, const MergeTable& merges);

}  // namespace quads
