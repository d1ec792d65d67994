// The machine's own limits, and how times are taken.
#pragma once

#include <cstdint>
#include <functional>

#include "kernels/cpu/context.h"

namespace quads::bench {

/// Seconds of one call of `body`: the median of at least `repeats` calls that take at least
/// `seconds` together, after one call that does not count.
double median_seconds(const std::function<void()>& body, int repeats = 5, double seconds = 0.1);

/// Bytes a second that the threads read together from memory far beyond the caches.
double read_bandwidth(const kernels::CpuContext& context);

/// Seconds in which the threads together copy `bytes` bytes.
double memcpy_seconds(const kernels::CpuContext& context, int64_t bytes);

/// Bytes of the last-level cache, as Linux says it; 32 MiB if it does not.
int64_t last_level_cache_bytes();

}  // namespace quads::bench
