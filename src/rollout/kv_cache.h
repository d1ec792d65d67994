// The pool of key-value pages of all sequences: allocation, sharing by reference counts, and copies
// of shared pages before they are written.
#pragma once

#include <cstdint>
#include <vector>

#include "base/aligned_buffer.h"
#include "kernels/cpu/attention_kernels.h"
#include "numerics/bf16.h"

namespace quads {

/// A page holds kernels::kPageSize positions of every layer: [layers][pages][page_elements].
class KvCache {
 public:
  KvCache(const kernels::AttentionShape& shape, int64_t layers, int64_t pages);

  /// Bytes of one page over all layers.
  static int64_t page_bytes(const kernels::AttentionShape& shape, int64_t layers) {
    return layers * shape.page_elements() * static_cast<int64_t>(sizeof(Bf16));
  }
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

  /// Layer 0's page 0; elements from a layer's page to the next layer's, and from page to page.
  Bf16* base() { return pool_.data(); }
  int64_t layer_stride() const { return pages() * page_elements_; }
  int64_t page_stride() const { return page_elements_; }

 private:
  int64_t layers_;
  int64_t page_elements_;
  AlignedBuffer<Bf16> pool_;
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;  // the next one is last
};

}  // namespace quads
