// The key-value pages of all sequences: allocation, sharing by reference counts, and copies of
// shared pages before they are written. The pages' contents are the backend's.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_kernels.h"
#include "rollout/backend.h"

namespace quads {

/// A page holds kernels::kPageSize positions of every layer.
class KvCache {
 public:
  /// Has the backend, which must outlive this object, make the pages.
  KvCache(RolloutBackend& backend, int64_t pages);

  /// Pages that hold `positions` positions.
  static int64_t pages_for(int64_t positions) {
    return (positions + kernels::kPageSize - 1) / kernels::kPageSize;
  }

  int64_t pages() const { return std::ssize(references_); }
  int64_t free_pages() const { return std::ssize(free_); }

  /// A page with one reference; its content is undefined. Some page must be free.
  int32_t allocate();
  void share(int32_t page) { ++references_[static_cast<size_t>(page)]; }
  void release(int32_t page);
  bool shared(int32_t page) const { return references_[static_cast<size_t>(page)] > 1; }
  /// Turns one reference to a shared page into a page of one's own with the same content. Some page
  /// must be free.
  int32_t copy_shared(int32_t page);
  /// Frees every page.
  void clear();

 private:
  RolloutBackend& backend_;
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // the next one is last
};

}  // namespace quads
