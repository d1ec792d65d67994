// Attention of a row and a split at a time (decoding), and the merging of splits.
#include "kernels/cuda/attention/attention_rows.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kMergeThreads = 256;

/// A thread takes four dimensions of a head of a row; `blocks` blocks a row.
__global__ void __launch_bounds__(kMergeThreads)
    merge_splits(const __grid_constant__ AttentionArgs args, int blocks) {
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int row = static_cast<int>(blockIdx.x) / blocks;
  if (row >= attention_rows_of(args.places)) return;
  const int last = args.places.positions[row];
  if (last < kAttentionSplit) return;  // one split: its kernel wrote the result
  const int splits = last / static_cast<int>(kAttentionSplit) + 1;
  const int quads = args.head_dim / 4;
  const int i = static_cast<int>(blockIdx.x) % blocks * kMergeThreads + threadIdx.x;
  if (i >= args.heads * quads) return;
  const int64_t first = static_cast<int64_t>(row) * args.splits * args.heads + i / quads;
  const auto* sums = reinterpret_cast<const float4*>(args.partial_sums) + first * quads + i % quads;
  const float2* stats = args.partial_stats + first;
  float4 o = *sums;
  RowStats total = {stats->x, stats->y};
#pragma unroll 4
  for (int split = 1; split < splits; ++split) {
    const float2 more = stats[split * args.heads];
    const float4 other = sums[split * args.heads * quads];
    const SplitMerge merge(&total, {more.x, more.y});
    o.x = merge(o.x, other.x);
    o.y = merge(o.y, other.y);
    o.z = merge(o.z, other.z);
    o.w = merge(o.w, other.w);
  }
  const float inverse_l = __fdiv_rn(1.0F, total.l);
  const uint2 out = {scaled_pair(o.x, o.y, inverse_l), scaled_pair(o.z, o.w, inverse_l)};
  reinterpret_cast<uint2*>(args.out)[static_cast<int64_t>(row) * args.heads * quads + i] = out;
}

}  // namespace

void launch_attention_row(const CudaContext& context, const AttentionRows& rows,
                          const AttentionArgs& args) {
  launch_any_attend<AttendKind::kRow>(context, rows, args);
  if (args.splits == 1) return;
  const int blocks = (args.heads * args.head_dim / 4 + kMergeThreads - 1) / kMergeThreads;
  launch(context, "merging attention", merge_splits, static_cast<int>(args.places.rows) * blocks,
         kMergeThreads, 0, args, blocks);
}

}  // namespace quads::kernels::cuda
