// Pages: reference counts, copies before writing, and what is left when all are in use.
#include "rollout/testing.h"

namespace quads {
namespace {

using namespace quads::testing;

TEST(KvCache, APageIsFreeAgainWhenItsLastReferenceGoes) {
  TestModel m;
  KvCache cache(m.backend, 3);
  EXPECT_EQ(cache.free_pages(), 3);
  const int32_t page = cache.allocate();
  cache.share(page);
  EXPECT_TRUE(cache.shared(page));
  cache.release(page);
  EXPECT_FALSE(cache.shared(page));
  EXPECT_EQ(cache.free_pages(), 2);
  cache.release(page);
  EXPECT_EQ(cache.free_pages(), 3);
}

TEST(KvCache, PagesAreDistinctAndNoneIsLeftWhenAllAreTaken) {
  TestModel m;
  KvCache cache(m.backend, 3);
  const int32_t a = cache.allocate(), b = cache.allocate(), c = cache.allocate();
  EXPECT_TRUE(a != b && b != c && a != c);
  EXPECT_MENTIONS(error_of([&] { cache.allocate(); }), "no key-value page is free of 3");
  cache.clear();
  EXPECT_EQ(cache.free_pages(), 3);
}

TEST(KvCache, ACopyHoldsEveryLayerAndIsNotShared) {
  TestModel m;  // three layers
  KvCache cache(m.backend, 4);
  const int64_t elements = m.backend.page_bytes() / 3 / 2;
  const int32_t page = cache.allocate();
  const auto element = [&](int64_t layer, int32_t of_page, int64_t i) -> Bf16& {
    return m.backend.page(layer, of_page)[i];
  };
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t i = 0; i < elements; ++i) {
      element(layer, page, i) = to_bf16(static_cast<float>(layer * 100 + i % 100));
    }
  }
  cache.share(page);
  const int32_t copy = cache.copy_shared(page);
  EXPECT_NE(copy, page);
  EXPECT_FALSE(cache.shared(copy));
  EXPECT_FALSE(cache.shared(page));
  EXPECT_EQ(cache.free_pages(), 2);
  element(1, copy, 0) = to_bf16(-1.0F);
  EXPECT_EQ(to_float(element(1, page, 0)), 100.0F);
  for (int64_t layer = 0; layer < 3; ++layer) {
    for (int64_t i = 1; i < elements; ++i) {
      ASSERT_EQ(to_float(element(layer, copy, i)), to_float(element(layer, page, i)));
    }
  }
}

TEST(KvCache, EngineSizesThePoolByMemoryAndNeed) {
  TestModel m;
  const int64_t page = m.backend.page_bytes();
  EXPECT_EQ(page, 3 * 2 * 2 * 16 * 16 * 2);
  const auto pages = [&](const Engine::Options& options) {
    return Engine(m.backend, options).cache().pages();
  };
  EXPECT_EQ(pages({.max_context = 4096, .kv_memory_bytes = 10 * page + 1}), 10);
  // Two sequences of three pages and one each for the prompt's last one.
  EXPECT_EQ(pages({.max_running = 2, .max_context = 33, .kv_memory_bytes = 1 << 30}), 8);
  EXPECT_EQ(pages({.max_context = 64, .kv_pages = 5}), 5);
}

}  // namespace
}  // namespace quads
