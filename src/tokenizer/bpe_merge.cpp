// Merging by a linked list of symbols and a heap of candidate pairs.
#include "tokenizer/bpe_merge.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace quads {
namespace {

struct Candidate {
  uint32_t rank;
  int32_t position;  // of the left symbol
  int32_t result;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

struct Neighbours {
  int32_t previous;
  int32_t next;
};

}  // namespace

MergeTable::MergeTable(size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  size_t i = slot_of(left, right);
  while (slots_[i].left >= 0 && (slots_[i].left != left || slots_[i].right != right)) {
    i = (i + 1) & (slots_.size() - 1);
  }
  slots_[i] = {left, right, merge};
}

size_t merge_symbols(std::vector<int32_t>& symbols, const MergeTable& merges) {
  const auto size = static_cast<int32_t>(symbols.size());
  std::vector<Candidate> heap;
  for (int32_t i = 0; i + 1 < size; ++i) {
    if (const Merge* merge = merges.find(symbols[i], symbols[i + 1])) {
      heap.push_back({merge->rank, i, merge->result});
    }
  }
  if (heap.empty()) {
    return 0;
  }
  std::vector<Neighbours> links(symbols.size());
  for (int32_t i = 0; i < size; ++i) {
    links[i] = {i - 1, i + 1};
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  size_t seen = 0;
  const auto add = [&](int32_t left, int32_t right) {
    if (const Merge* merge = merges.find(symbols[left], symbols[right])) {
      heap.push_back({merge->rank, left, merge->result});
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
  };
  while (!heap.empty()) {
    ++seen;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const Candidate best = heap.back();
    heap.pop_back();
    const int32_t left = best.position;
    if (symbols[left] < 0 || links[left].next == size) {
      continue;
    }
    const int32_t right = links[left].next;
    const Merge* merge = merges.find(symbols[left], symbols[right]);
    if (merge == nullptr || merge->result != best.result) {
      continue;  // one of the two has changed since
    }
    symbols[left] = best.result;
    symbols[right] = -1;
    const int32_t after = links[right].next;
    links[left].next = after;
    if (after < size) {
      links[after].previous = left;
    }
    if (links[left].previous >= 0) {
      add(links[left].previous, left);
    }
    if (after < size) {
      add(left, after);
    }
  }
  std::erase(symbols, -1);
  return seen;
}

}  // namespace quads
