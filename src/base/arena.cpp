#include "base/arena.h"

#include <algorithm>

namespace quads {
namespace {
constexpr size_t kAlign = 64;
constexpr size_t kMinBlock = size_t{1} << 20;
}  // namespace

void* Arena::alloc_bytes(size_t bytes) {
  bytes = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  while (block_ < blocks_.size() && offset_ + bytes > blocks_[block_].size) {
    ++block_;
    offset_ = 0;
  }
  if (block_ == blocks_.size()) {
    const size_t last = blocks_.empty() ? 0 : blocks_.back().size;
    const size_t size = std::max({bytes, kMinBlock, 2 * last});
    Block block;
    block.memory = std::make_unique_for_overwrite<std::byte[]>(size + kAlign);
    const auto address = reinterpret_cast<uintptr_t>(block.memory.get());
    block.begin = block.memory.get() + (kAlign - address % kAlign) % kAlign;
    block.size = size;
    blocks_.push_back(std::move(block));
  }
  void* result = blocks_[block_].begin + offset_;
  offset_ += bytes;
  return result;
}

size_t Arena::capacity() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

}  // namespace quads
