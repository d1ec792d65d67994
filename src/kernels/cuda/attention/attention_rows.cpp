// Checks of attention's arguments, and its scratch.
#include "kernels/cuda/attention/attention_rows.h"

#include <climits>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/cuda/attention/attention_launch.h"
#include "kernels/cuda/attention/kv_pages_check.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kHopper = 90;
constexpr int kMaxWgmmaHeadDim = 128;

int64_t splits_of(int64_t max_context) {
  return (max_context + kAttentionSplit - 1) / kAttentionSplit;
}

}  // namespace

void check_shared_bytes(const CudaContext& context, int bytes, int head_dim) {
  require(bytes <= context.shared_bytes,
          "attention with heads of {}: {} bytes of shared memory a block; the device has {}",
          head_dim, bytes, context.shared_bytes);
}

int64_t attention_scratch_bytes(const HeadShape& shape, int64_t rows, int64_t max_context,
                                AttentionTile tile) {
  if (tile != AttentionTile::kRow || max_context <= kAttentionSplit) return 0;
  return rows * splits_of(max_context) * shape.heads * (shape.head_dim + 2) *
         static_cast<int64_t>(sizeof(float));
}

void attention_rows(const CudaContext& context, const AttentionRows& rows, AttentionTile tile) {
  const HeadShape& shape = rows.shape;
  const RowPlaces& places = rows.places;
  check_heads(shape, "attention");
  check_places(places, "attention");
  require(rows.scale > 0.0F && std::isfinite(rows.scale), "attention: scale {}", rows.scale);
  require(rows.max_context >= 1 && rows.max_context <= places.max_pages * 16,
          "attention: contexts up to {} in tables of {} pages of 16", rows.max_context,
          places.max_pages);
  require(rows.pages >= 1 && rows.pages <= INT_MAX / 32 / shape.kv_heads,
          "attention: {} pages of {} KV heads; 1..{}", rows.pages, shape.kv_heads,
          INT_MAX / 32 / shape.kv_heads);
  const int64_t splits = splits_of(rows.max_context);
  require(places.rows * shape.kv_heads <= INT_MAX / splits,
          "attention: {} rows are too many for {} KV heads and contexts up to {}", places.rows,
          shape.kv_heads, rows.max_context);
  require(rows.scratch != nullptr ||
              attention_scratch_bytes(shape, places.rows, rows.max_context, tile) == 0,
          "attention: no scratch for contexts up to {}", rows.max_context);
  if (places.rows == 0) return;
  AttentionArgs args;
  args.places = places;
  args.q = reinterpret_cast<const uint16_t*>(rows.q);
  args.out = reinterpret_cast<uint16_t*>(rows.out);
  args.partial_sums = static_cast<float*>(rows.scratch);
  args.partial_stats =
      reinterpret_cast<float2*>(args.partial_sums + places.rows * splits * shape.q_width());
  args.heads = shape.heads;
  args.kv_heads = shape.kv_heads;
  args.group = shape.heads / shape.kv_heads;
  args.head_dim = shape.head_dim;
  args.splits = static_cast<int>(splits);
  args.scale = static_cast<float>(rows.scale * std::numbers::log2e);
  if (tile == AttentionTile::kRow) return launch_attention_row(context, rows, args);
  if (tile == AttentionTile::kRuns && context.capability == kHopper &&
      shape.head_dim <= kMaxWgmmaHeadDim) {
    return launch_attention_wgmma(context, rows, args);
  }
  launch_attention_runs(context, rows, args);
}

}  // namespace quads::kernels::cuda
