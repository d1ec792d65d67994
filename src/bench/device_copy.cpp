#include "bench/device_copy.h"

#include <algorithm>
#include <limits>

#include "bench/device_event.h"
#include "cuda/device_memory.h"

namespace quads::bench {

double copy_bandwidth() {
  // Not as a graph, whose copies the slower copy engines make.
  constexpr int64_t kBytes = int64_t{2} << 30;
  constexpr int kCopies = 4;
  const cuda::DeviceArray<uint8_t> from(kBytes), to(kBytes);
  const cuda::Stream stream;
  const DeviceEvent begin, end;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < 5; ++round) {
    begin.record(stream.get());
    for (int i = 0; i < kCopies; ++i) {
      cuda::check_cuda(
          cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, stream.get()),
          "copying");
    }
    end.record(stream.get());
    stream.wait("copying");
    best = std::min(best, end.seconds_since(begin));
  }
  return 2.0 * static_cast<double>(kBytes * kCopies) / best;
}

}  // namespace quads::bench
