#include "rollout/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

KvCache::KvCache(RolloutBackend& backend, int64_t pages)
    : backend_(backend), references_(static_cast<size_t>(pages)) {
  backend.allocate_pages(pages);
  clear();
}

void KvCache::clear() {
  std::ranges::fill(references_, 0);
  free_.clear();
  for (int64_t page = pages() - 1; page >= 0; --page) free_.push_back(static_cast<int32_t>(page));
}

int32_t KvCache::allocate() {
  require(!free_.empty(), "no key-value page is free of {}", pages());
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void KvCache::release(int32_t page) {
  if (--references_[static_cast<size_t>(page)] == 0) free_.push_back(page);
}

int32_t KvCache::copy_shared(int32_t page) {
  const int32_t copy = allocate();
  backend_.copy_page(page, copy);
  release(page);
  return copy;
}

}  // namespace quads
