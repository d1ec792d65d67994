// Places of sorted rows in an image.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/quantize_launch.h"
#include "kernels/cuda/units.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void place(const __grid_constant__ PlaceRows args) {
  __shared__ ExpertTable table;
  wait_for_previous_kernel();
  let_next_kernel_start();
  fill_expert_table(args.expert_offsets, args.experts, kImageGroup, &table);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.rows) return;
  const int64_t sorted = args.sorted_rows == nullptr ? i : args.sorted_rows[i];
  ImageRow row{0, 0, -1, 0};
  if (sorted >= 0 && sorted < table.rows[args.experts]) {
    // The last of the experts that begin here is the one that is not empty.
    const int e = find_expert(table.rows, args.experts, static_cast<int>(sorted));
    row.base = table.padded[e];
    row.padded_rows = table.padded[e + 1] - table.padded[e];
    row.index = static_cast<int>(sorted) - table.rows[e];
  }
  args.image_rows[i] = row;
}

}  // namespace

void launch_place_rows(const CudaContext& context, const PlaceRows& args) {
  launch(context, "placing rows", place, static_cast<int>((args.rows + kThreads - 1) / kThreads),
         kThreads, 0, args);
}

}  // namespace quads::kernels::cuda
