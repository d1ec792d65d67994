// The one writer of KV pages: keys transposed, so that the lanes of a score are positions.
#include <cstring>

#include "kernels/cpu/attention_kernels.h"

namespace quads::kernels {

void store_kv(const AttentionShape& shape, const Bf16* key, const Bf16* value, int64_t slot,
              Bf16* page) {
  const int64_t head_dim = shape.head_dim;
  for (int64_t h = 0; h < shape.kv_heads; ++h) {
    Bf16* keys = page + h * 2 * kPageSize * head_dim;
    Bf16* values = keys + kPageSize * head_dim;
    for (int64_t d = 0; d < head_dim; ++d) keys[d * kPageSize + slot] = key[h * head_dim + d];
    std::memcpy(values + slot * head_dim, value + h * head_dim,
                static_cast<size_t>(head_dim) * sizeof(Bf16));
  }
}

}  // namespace quads::kernels
