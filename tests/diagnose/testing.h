// Prompts for the small model of the tests of this folder.
#pragma once

#include "rollout/requests.h"
#include "small_moe.h"

namespace quads {

inline std::vector<Request> small_requests(int64_t count, int32_t n_samples) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    Request& request = requests.emplace_back();
    request.prompt_index = i;
    request.n_samples = n_samples;
    for (int64_t p = 0; p < 3 + i; ++p) {
      request.prompt.push_back(static_cast<int32_t>((7 * i + 5 * p) % 32));
    }
  }
  return requests;
}

}  // namespace quads
