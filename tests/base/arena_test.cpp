// Scratch memory: a stack that grows to its high-water mark and then stays.
#include "base/arena.h"

#include <gtest/gtest.h>

#include <cstring>

namespace quads {
namespace {

TEST(Arena, GivesAlignedDistinctMemory) {
  Arena arena;
  const ArenaScope scope(arena);
  char* a = arena.alloc<char>(1);
  char* b = arena.alloc<char>(0);
  auto* c = arena.alloc<double>(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(c) % 64, 0U);
  EXPECT_NE(a, b);
  std::memset(c, 0xFF, 8000);
  EXPECT_LT(reinterpret_cast<uintptr_t>(b), reinterpret_cast<uintptr_t>(c));
}

TEST(Arena, ReusesWhatAScopeGaveBack) {
  Arena arena;
  void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    const ArenaScope scope(arena);
    void* p = arena.alloc<float>(100);
    if (first == nullptr) first = p;
    EXPECT_EQ(p, first);
  }
}

TEST(Arena, KeepsOuterMemoryWhileInnerScopesComeAndGo) {
  Arena arena;
  const ArenaScope outer(arena);
  int* kept = arena.alloc<int>(1000);
  for (int i = 0; i < 1000; ++i) kept[i] = i;
  for (int round = 0; round < 4; ++round) {
    const ArenaScope inner(arena);
    std::memset(arena.alloc<char>(int64_t{3} << 20), 0xFF, size_t{3} << 20);  // needs a new block
  }
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(kept[i], i);
}

TEST(Arena, StopsGrowingOnceItHasSeenTheLargestUse) {
  Arena arena;
  const auto use = [&] {
    const ArenaScope scope(arena);
    for (int i = 1; i <= 20; ++i) arena.alloc<char>(i * 100'000);
  };
  use();
  const size_t capacity = arena.capacity();
  for (int i = 0; i < 10; ++i) use();
  EXPECT_EQ(arena.capacity(), capacity);
}

}  // namespace
}  // namespace quads
