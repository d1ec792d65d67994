// Attention of runs of rows (prefill, scoring, training), which share the keys that they read.
#include "kernels/cuda/attention/attention_rows.cuh"

namespace quads::kernels::cuda {

void launch_attention_runs(const CudaContext& context, const AttentionRows& rows,
                           const AttentionArgs& args) {
  launch_any_attend<AttendKind::kRuns>(context, rows, args);
}

}  // namespace quads::kernels::cuda
