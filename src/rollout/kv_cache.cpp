#include "rollout/kv_cache.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

KvCache::KvCache(const kernels::AttentionShape& shape, int64_t layers, int64_t pages)
    : layers_(layers),
      page_elements_(shape.page_elements()),
      pool_(layers * pages * shape.page_elements()),
      references_(static_cast<size_t>(pages)) {
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
  for (int64_t layer = 0; layer < layers_; ++layer) {
    Bf16* of_layer = base() + layer * layer_stride();
    std::copy_n(of_layer + page * page_elements_, page_elements_, of_layer + copy * page_elements_);
  }
  release(page);
  return copy;
}

}  // namespace quads
