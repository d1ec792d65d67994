// What the kernel tests share: the instruction sets to run, seeded fills, guarded buffers and
// golden hashes.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/isa.h"
#include "numerics/bf16.h"

namespace quads::kernels::testing {

/// Parameterised over every instruction set; those that the machine lacks are skipped, loudly. The
/// floating-point mode of the kernels is in force during each test.
class EachIsa : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_available(GetParam())) {
      GTEST_SKIP() << "this CPU has no " << isa_name(GetParam()) << ": NOT TESTED";
    }
  }
  const CpuKernels& kernels() const { return cpu_kernels(GetParam()); }

 private:
  FlushDenormals flush_;
};

inline std::string isa_test_name(const ::testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}

#define QUADS_INSTANTIATE_EACH_ISA(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Isa, Suite,                                                             \
                           ::testing::Values(Isa::kPortable, Isa::kAvx2, Isa::kAvx512, Isa::kAmx), \
                           ::quads::kernels::testing::isa_test_name)

/// Seeded values: the same on every machine (no libm, no <random> distributions).
class Fill {
 public:
  explicit Fill(uint64_t seed) : draws_(seed, RandomStream::kInit, 0) {}
  float uniform(float low, float high) { return low + (high - low) * draws_.uniform(); }
  /// Roughly normal with unit variance: the sum of twelve uniforms less six.
  float normal() {
    float sum = -6.0F;
    for (int i = 0; i < 12; ++i) sum += draws_.uniform();
    return sum;
  }
  /// Normal times a power of two between 2^-octaves and 1: wide-spread magnitudes.
  float spread(uint32_t octaves) {
    return std::ldexp(normal(), -static_cast<int>(draws_.below(octaves + 1)));
  }
  uint32_t below(uint32_t n) { return draws_.below(n); }

 private:
  RandomSequence draws_;
};

inline std::vector<Bf16> normal_bf16(int64_t count, uint64_t seed, float scale = 1.0F) {
  Fill fill(seed);
  std::vector<Bf16> x(static_cast<size_t>(count));
  for (Bf16& v : x) v = to_bf16(fill.normal() * scale);
  return x;
}
inline std::vector<Bf16> spread_bf16(int64_t count, uint64_t seed, uint32_t octaves = 12) {
  Fill fill(seed);
  std::vector<Bf16> x(static_cast<size_t>(count));
  for (Bf16& v : x) v = to_bf16(fill.spread(octaves));
  return x;
}
inline std::vector<float> normal_f32(int64_t count, uint64_t seed, float scale = 1.0F) {
  Fill fill(seed);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& v : x) v = fill.normal() * scale;
  return x;
}

/// An output of `count` elements filled with a marker (a NaN pattern), with `kGuard` more on either
/// side. After the kernel: `unwritten()` counts markers left inside, `guards_intact()` checks the
/// margins.
template <class T>
class Poisoned {
 public:
  explicit Poisoned(int64_t count) : count_(count), v_(static_cast<size_t>(count + 2 * kGuard)) {
    std::memset(static_cast<void*>(v_.data()), kByte, v_.size() * sizeof(T));
  }
  T* data() { return v_.data() + kGuard; }
  const T* data() const { return v_.data() + kGuard; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }
  int64_t size() const { return count_; }
  std::vector<T> values() const { return {data(), data() + count_}; }
  int64_t unwritten() const {
    int64_t n = 0;
    for (int64_t i = 0; i < count_; ++i) n += is_marker(data()[i]);
    return n;
  }
  bool guards_intact() const {
    for (int64_t i = 0; i < kGuard; ++i) {
      if (!is_marker(v_[static_cast<size_t>(i)])) return false;
      if (!is_marker(v_[static_cast<size_t>(kGuard + count_ + i)])) return false;
    }
    return true;
  }

 private:
  static constexpr int64_t kGuard = 32;
  static constexpr int kByte = 0xFF;  // a NaN in FP32 and in BF16
  static bool is_marker(const T& x) {
    unsigned char bytes[sizeof(T)];
    std::memcpy(bytes, &x, sizeof(T));
    for (unsigned char b : bytes) {
      if (b != kByte) return false;
    }
    return true;
  }
  int64_t count_;
  std::vector<T> v_;
};

/// FNV-1a over the bytes of `count` values.
template <class T>
uint64_t bits_hash(const T* values, int64_t count, uint64_t hash = 0xCBF29CE484222325U) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(values);
  for (size_t i = 0; i < static_cast<size_t>(count) * sizeof(T); ++i) {
    hash = (hash ^ bytes[i]) * 0x100000001B3U;
  }
  return hash;
}

/// Compares named hashes with tests/kernels/golden/<op>.txt ("name hash" a line). With
/// QUADS_UPDATE_GOLDEN=1 in the environment the file is written instead.
inline void expect_golden(const std::string& op, const std::map<std::string, uint64_t>& hashes) {
  const std::string path = std::string(QUADS_SOURCE_DIR) + "/tests/kernels/golden/" + op + ".txt";
  const char* update = std::getenv("QUADS_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream out(path);
    for (const auto& [name, hash] : hashes) out << name << ' ' << std::hex << hash << '\n';
    ASSERT_TRUE(out.good()) << "cannot write " << path;
    return;
  }
  std::ifstream in(path);
  ASSERT_TRUE(in.good()) << "no golden file " << path << ": make it with QUADS_UPDATE_GOLDEN=1";
  std::map<std::string, uint64_t> golden;
  std::string name;
  uint64_t hash = 0;
  while (in >> name >> std::hex >> hash) golden[name] = hash;
  EXPECT_EQ(golden, hashes) << path;
}

}  // namespace quads::kernels::testing
