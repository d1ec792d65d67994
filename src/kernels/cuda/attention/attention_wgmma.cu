// Attention of runs of rows by wgmma (sm_90a only): two warpgroups of 64 slots. Heads up to 128.
#include "kernels/cuda/attention/attention_rows.cuh"
#include "kernels/cuda/wgmma_shared.cuh"

namespace quads::kernels::cuda {
namespace {

/// Values of positions behind the last one: the product takes them times 0, which a NaN survives.
template <class C>
__device__ __forceinline__ void clear_values(uint32_t values, int first) {
  for (int i = first * C::kPanels * 8 + static_cast<int>(threadIdx.x);
       i < kAttentionTile * C::kPanels * 8; i += C::kWarps * 32) {
    const int position = i / (C::kPanels * 8);
    const int chunk = i % (C::kPanels * 8);
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(
                     values + chunk / 8 * C::kPanelBytes + position * 128 + chunk % 8 * 16),
                 "r"(0)
                 : "memory");
  }
  // Before the tensor cores read it, and before the copy engine overwrites it.
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, %0;" ::"n"(C::kWarps * 32) : "memory");
}

}  // namespace

template <class C>
__device__ __forceinline__ void multiply_wgmma(Slots<C>& slots, const AttentionArgs& args,
                                               const AttentionUnit& unit, uint32_t stage,
                                               int tile) {
  const uint32_t values = stage + C::kPanels * C::kPanelBytes;
  const int used = unit.last - tile * kAttentionTile + 1;
  if (used < kAttentionTile) clear_values<C>(values, used);
  const int warpgroup = static_cast<int>(threadIdx.x) >> 7;
  if (warpgroup * 64 / args.group >= unit.rows) return;  // none of its slots has a row
  float s[8][4] = {};
  uint32_t p[8][2];
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < C::kPanels * 4; ++step) {
    wgmma<64>(&s[0][0], slots.q[step],
              box_descriptor(stage + step / 4 * C::kPanelBytes) + step % 4 * 2);
  }
  wgmma_commit();
  wgmma_wait_all();
  slots.soften(tile, args.scale, s, p);
  wgmma_fence();
#pragma unroll
  for (int page = 0; page < kTilePages; ++page) {
    const uint32_t a[4] = {p[2 * page][0], p[2 * page][1], p[2 * page + 1][0], p[2 * page + 1][1]};
    wgmma_columns<C::kPanels * 64>(&slots.o[0][0], a,
                                   column_descriptor(values + page * 16 * 128, C::kPanelBytes));
  }
  wgmma_commit();
  wgmma_wait_all();
}

void launch_attention_wgmma(const CudaContext& context, const AttentionRows& rows,
                            const AttentionArgs& args) {
  launch_any_attend<AttendKind::kRunsWgmma>(context, rows, args);
}

}  // namespace quads::kernels::cuda
