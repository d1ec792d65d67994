#include "bench/requests.h"

namespace quads::bench {

std::vector<Request> random_requests(int64_t count, int64_t length, int64_t vocab) {
  std::vector<Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    RandomSequence random(1, RandomStream::kTask, static_cast<uint64_t>(i));
    Request& request = requests.emplace_back();
    request.prompt_index = i;
    for (int64_t p = 0; p < length; ++p) {
      request.prompt.push_back(static_cast<int32_t>(random.below(static_cast<uint32_t>(vocab))));
    }
  }
  return requests;
}

}  // namespace quads::bench
