#include "kernels/cuda/attention/kv_pages_check.h"

#include <climits>

#include "base/error.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kMaxHeads = 1024;
constexpr int kMaxGroup = 16;
constexpr int64_t kMaxRows = INT_MAX / 16;

}  // namespace

void check_heads(const HeadShape& shape, const char* what) {
  require(shape.kv_heads >= 1 && shape.heads >= shape.kv_heads && shape.heads <= kMaxHeads &&
              shape.heads % shape.kv_heads == 0 && shape.heads / shape.kv_heads <= kMaxGroup,
          "{}: {} heads over {} KV heads; 1..{} of the one for each of the other", what,
          shape.heads, shape.kv_heads, kMaxGroup);
  require(shape.head_dim >= 32 && shape.head_dim <= kMaxHeadDim && shape.head_dim % 16 == 0,
          "{}: heads of {}; a multiple of 16, 32..{}", what, shape.head_dim, kMaxHeadDim);
}

void check_places(const RowPlaces& places, const char* what) {
  require(places.rows >= 0 && places.rows <= kMaxRows, "{}: {} rows; 0..{}", what, places.rows,
          kMaxRows);
  require(places.max_pages >= 1 && places.max_pages <= INT_MAX / 32,
          "{}: tables of {} pages a sequence; 1..{}", what, places.max_pages, INT_MAX / 32);
}

}  // namespace quads::kernels::cuda
