// Values for tests of the CUDA kernels, and the comparison of bits.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

/// A bell curve of about unit width, times `scale`.
inline std::vector<float> bell(int64_t count, uint64_t seed, float scale = 1.0F) {
  RandomSequence random(seed, RandomStream::kTask, 9);
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * (random.uniform() + random.uniform() + random.uniform() - 1.5F) * 2.0F;
  }
  return values;
}

inline std::vector<Bf16> bell_bf16(int64_t count, uint64_t seed, float scale = 1.0F) {
  std::vector<Bf16> result;
  for (const float value : bell(count, seed, scale)) result.push_back(to_bf16(value));
  return result;
}

/// Elements whose bits differ.
template <class T>
int64_t differing_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return INT64_MAX;
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return count;
}

}  // namespace quads::kernels::cuda
