#include "bench/machine.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/aligned_buffer.h"

namespace quads::bench {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Beyond the cache, but no more than any machine of today can spare.
int64_t beyond_cache_bytes() {
  return std::clamp<int64_t>(4 * last_level_cache_bytes(), int64_t{256} << 20, int64_t{1} << 30);
}

}  // namespace

double median_seconds(const std::function<void()>& body, int repeats, double seconds) {
  body();
  std::vector<double> times;
  double total = 0;
  while (static_cast<int>(times.size()) < repeats || total < seconds) {
    const double start = now();
    body();
    times.push_back(now() - start);
    total += times.back();
  }
  std::ranges::nth_element(times, times.begin() + std::ssize(times) / 2);
  return times[times.size() / 2];
}

double read_bandwidth(const kernels::CpuContext& context) {
  AlignedBuffer<uint64_t> buffer(beyond_cache_bytes() / 8);
  constexpr int64_t kChunk = 1 << 17;  // words
  const int64_t chunks = buffer.size() / kChunk;
  std::vector<uint64_t> sums(static_cast<size_t>(chunks));
  uint64_t seen = 0;
  const double seconds = median_seconds([&] {
    context.parallel_for(chunks, [&](int64_t chunk, int) {
      const uint64_t* words = buffer.data() + chunk * kChunk;
      uint64_t lanes[16] = {};  // independent sums, so that the loop waits for memory alone
      for (int64_t i = 0; i < kChunk; i += 16) {
        for (int64_t lane = 0; lane < 16; ++lane) lanes[lane] ^= words[i + lane];
      }
      uint64_t sum = 0;
      for (uint64_t lane : lanes) sum ^= lane;
      sums[static_cast<size_t>(chunk)] = sum;
    });
    for (uint64_t sum : sums) seen ^= sum;
  });
  buffer[0] = seen;  // the sums are used, so the reads are not optimised away
  return static_cast<double>(chunks * kChunk * 8) / seconds;
}

double memcpy_seconds(const kernels::CpuContext& context, int64_t bytes) {
  AlignedBuffer<uint8_t> from(bytes), to(bytes);
  constexpr int64_t kChunk = 1 << 20;
  return median_seconds([&] {
    context.parallel_for((bytes + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
      const int64_t begin = chunk * kChunk;
      std::memcpy(to.data() + begin, from.data() + begin,
                  static_cast<size_t>(std::min(kChunk, bytes - begin)));
    });
  });
}

int64_t last_level_cache_bytes() {
  for (int index = 4; index >= 2; --index) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index) +
                       "/size");
    int64_t size = 0;
    char unit = 0;
    if (file >> size >> unit) return size * (unit == 'M' ? int64_t{1} << 20 : 1 << 10);
  }
  return int64_t{32} << 20;
}

}  // namespace quads::bench
