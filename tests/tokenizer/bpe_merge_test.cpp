// Merging against the definition, and its cost on long runs.
#include "tokenizer/bpe_merge.h"

#include <gtest/gtest.h>

#include <random>

namespace quads {
namespace {

// Merges of `letters` letters: every pair of ids below `limit` may be one, by chance.
struct Grammar {
  MergeTable table{0};
  std::vector<std::vector<Merge>> pairs;  // result < 0: none
};

Grammar random_grammar(std::mt19937& rng, int letters, int merges) {
  Grammar grammar;
  const int ids = letters + merges;
  grammar.table = MergeTable(static_cast<size_t>(merges));
  grammar.pairs.assign(ids, std::vector<Merge>(ids, {0, -1}));
  for (int i = 0; i < merges; ++i) {
    const auto pick = [&] {
      return static_cast<int32_t>(rng() % static_cast<unsigned>(letters + i));
    };
    const int32_t left = pick();
    const int32_t right = pick();
    const Merge merge{static_cast<uint32_t>(rng() % 8), letters + i};
    grammar.table.insert(left, right, merge);
    grammar.pairs[left][right] = merge;
  }
  return grammar;
}

// The definition: the lowest rank, then the leftmost, again and again.
std::vector<int32_t> merged_slowly(std::vector<int32_t> symbols, const Grammar& grammar) {
  for (;;) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge merge = grammar.pairs[symbols[i]][symbols[i + 1]];
      if (merge.result >= 0 &&
          (best == symbols.size() ||
           merge.rank < grammar.pairs[symbols[best]][symbols[best + 1]].rank)) {
        best = i;
      }
    }
    if (best == symbols.size()) {
      return symbols;
    }
    symbols[best] = grammar.pairs[symbols[best]][symbols[best + 1]].result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(MergeSymbols, DoesTheLowestRankFirstAndThenTheLeftmost) {
  std::mt19937 rng(1);
  for (int round = 0; round < 2000; ++round) {
    const Grammar grammar = random_grammar(rng, 4, 12);
    std::vector<int32_t> symbols(rng() % 40);
    for (int32_t& symbol : symbols) {
      symbol = static_cast<int32_t>(rng() % 4);
    }
    const std::vector<int32_t> expected = merged_slowly(symbols, grammar);
    merge_symbols(symbols, grammar.table);
    ASSERT_EQ(symbols, expected) << "round " << round;
  }
}

TEST(MergeTable, ALaterMergeOfTheSamePairReplacesTheEarlier) {
  MergeTable table(2);
  table.insert(1, 2, {0, 3});
  table.insert(1, 2, {7, 4});
  EXPECT_EQ(table.find(1, 2)->rank, 7U);
  EXPECT_EQ(table.find(1, 2)->result, 4);
  EXPECT_EQ(table.find(2, 1), nullptr);
  EXPECT_EQ(MergeTable(0).find(0, 0), nullptr);
}

// A run of one symbol where 2^k of them merge: every merge adds at most two candidates.
TEST(MergeSymbols, LooksAtLinearlyManyCandidatesInALongRun) {
  MergeTable table(20);
  for (int32_t i = 0; i < 20; ++i) {
    table.insert(i, i, {static_cast<uint32_t>(i), i + 1});
  }
  for (const size_t size : {size_t{1000}, size_t{30'000}, size_t{1'000'000}}) {
    std::vector<int32_t> symbols(size, 0);
    EXPECT_LE(merge_symbols(symbols, table), 4 * size);
    EXPECT_LE(symbols.size(), 20U);
  }
}

TEST(MergeSymbols, LeavesShortAndForeignSequences) {
  MergeTable table(1);
  table.insert(0, 1, {0, 2});
  for (const std::vector<int32_t>& symbols : {std::vector<int32_t>{}, {0}, {1, 0}, {5, 6, 7}}) {
    std::vector<int32_t> merged = symbols;
    merge_symbols(merged, table);
    EXPECT_EQ(merged, symbols);
  }
}

}  // namespace
}  // namespace quads
