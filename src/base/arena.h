// Scratch memory of one thread: a stack of buffers that grows to its high-water mark and is then
// reused, so that a step in steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace quads {

class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Uninitialised array of `count` elements, 64-byte aligned, valid until the enclosing
  /// ArenaScope ends.
  template <class T>
  T* alloc(int64_t count) {
    return static_cast<T*>(alloc_bytes(static_cast<size_t>(count) * sizeof(T)));
  }
  void* alloc_bytes(size_t bytes);
  size_t capacity() const;

 private:
  friend class ArenaScope;
  struct Block {
    std::unique_ptr<std::byte[]> memory;
    std::byte* begin;  // first 64-byte boundary
    size_t size;
  };
  std::vector<Block> blocks_;
  size_t block_ = 0;   // the block being filled
  size_t offset_ = 0;  // bytes used of it
};

/// Gives back on destruction everything allocated since construction.
class ArenaScope {
 public:
  explicit ArenaScope(Arena& arena) : arena_(arena), block_(arena.block_), offset_(arena.offset_) {}
  ~ArenaScope() {
    arena_.block_ = block_;
    arena_.offset_ = offset_;
  }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena& arena_;
  size_t block_, offset_;
};

}  // namespace quads
