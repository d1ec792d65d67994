#include "model/blocks.h"

namespace quads {

float* Blocks::activations(int64_t elements) {
  if (activations_.size() < elements) activations_ = AlignedBuffer<float>(elements);
  return activations_.data();
}

void forward_layers(Blocks& blocks, const RowBatch& batch, float* x, float* const* saved) {
  const auto entrance = [&](int64_t block) { return saved ? saved[block] : x; };
  blocks.embed(batch, entrance(0));
  for (int64_t layer = 0; layer < blocks.num_layers(); ++layer) {
    const int64_t block = 2 * layer;
    blocks.attention_forward(layer, batch, entrance(block), entrance(block + 1));
    blocks.ffn_forward(layer, batch, entrance(block + 1), entrance(block + 2));
  }
}

}  // namespace quads
