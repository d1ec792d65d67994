// Prompts for benchmarks.
#pragma once

#include <cstdint>
#include <vector>

#include "rollout/requests.h"

namespace quads::bench {

/// `count` prompts of `length` random tokens, one sample each.
std::vector<Request> random_requests(int64_t count, int64_t length, int64_t vocab);

}  // namespace quads::bench
