// Timing of kernels: graph replays, and the bandwidth that a plain copy has.
#pragma once

#include <functional>

#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {

/// Microseconds a launch: the median of `replays` replays of a graph of `launches` calls of
/// launch(context, i), the device idle for 10 ms before, as sustained load lowers the clock.
double time_graph(bool overlap, int launches, int replays,
                  const std::function<void(const CudaContext&, int)>& launch);

/// Bytes read and written a second by copies on the device.
double copy_bandwidth();

}  // namespace quads::kernels::cuda
