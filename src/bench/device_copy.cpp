#include "bench/device_copy.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "cuda/device_memory.h"

namespace quads::bench {

using cuda::check_cuda;

double copy_bandwidth() {
  constexpr int64_t kBytes = int64_t{2} << 30;
  const cuda::DeviceArray<uint8_t> from(kBytes), to(kBytes);
  const cuda::Stream stream;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    check_cuda(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
        "copying");
    stream.wait("copying");
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count());
  }
  return 2.0 * static_cast<double>(kBytes) / best;
}

}  // namespace quads::bench
