// Checks of head shapes and rows' places that the kernels over KV pages share.
#pragma once

#include "kernels/cuda/attention/kv_pages.h"

namespace quads::kernels::cuda {

/// Error naming `what` on shapes out of range.
void check_heads(const HeadShape& shape, const char* what);
void check_places(const RowPlaces& places, const char* what);

}  // namespace quads::kernels::cuda
