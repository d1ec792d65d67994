// Times of kernels: replays of captured graphs.
#pragma once

#include <functional>

#include "kernels/cuda/context.h"

namespace quads::bench {

/// Microseconds a call: the median of `replays` replays of a graph of `calls` calls of
/// launch(context, i), the device idle for 10 ms before, as sustained load lowers the clock. One
/// call before the capture does not count: what it loads or allocates, a capture could not. Error
/// if anything that is launched fails. Needs a device.
double time_graph(bool overlap, int calls, int replays,
                  const std::function<void(const kernels::cuda::CudaContext&, int)>& launch);

}  // namespace quads::bench
