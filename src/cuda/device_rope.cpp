#include "cuda/device_rope.h"

#include "kernels/rope.h"
#include "model/rope.h"

namespace quads::cuda {

DeviceRope::DeviceRope(const ModelConfig& config, int64_t max_positions, cudaStream_t stream)
    : max_positions_(max_positions),
      cos_(max_positions * config.head_dim / 2),
      sin_(max_positions * config.head_dim / 2) {
  kernels::RopeTable rope = make_rope_table(config.rope, config.head_dim);
  const float *cos = rope.cos(max_positions), *sin = rope.sin(max_positions);
  cos_.upload({cos, cos + cos_.size()}, stream);
  sin_.upload({sin, sin + sin_.size()}, stream);
  check_cuda(cudaStreamSynchronize(stream), "copying angles to the device");
}

}  // namespace quads::cuda
