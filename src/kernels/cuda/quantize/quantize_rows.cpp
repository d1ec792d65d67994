// Checks of the quantiser's arguments, and the shape of its blocks.
#include "kernels/cuda/quantize/quantize_rows.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/quantize/quantize_launch.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kMaxRows = INT32_MAX / 16;
constexpr int kStatisticsBlocks = 2;  // a multiprocessor
constexpr int kStatisticsBytes = 64;  // a thread: 16 sums

}  // namespace

void quantize_rows(const CudaContext& context, const QuantizeRows& args) {
  const int64_t k = args.k;
  require(k >= kNvfp4Block && k % kNvfp4Block == 0 && k <= kMaxQuantizedK,
          "quantising rows of {} values: a multiple of 16, at most {}", k, kMaxQuantizedK);
  require(args.ldx % 8 == 0, "quantising rows: a stride of {}; it must be a multiple of 8",
          args.ldx);
  require(args.residual_blocks >= 0 && args.residual_blocks <= k / kNvfp4Block,
          "quantising rows: {} compensated blocks of {}", args.residual_blocks, k / kNvfp4Block);
  require(is_nvfp4(args.format) || (args.residual_blocks == 0 && args.block_position == nullptr &&
                                    args.residual_sums == nullptr),
          "quantising rows: compensation and its statistics are for NVFP4");
  require(args.rows >= 0 && args.rows <= kMaxRows && args.copies >= 1 && args.copies <= kMaxCopies,
          "quantising rows: {} rows, {} copies of each; copies are 1..{}", args.rows, args.copies,
          kMaxCopies);
  require((args.x == nullptr) != (args.gate_up == nullptr) || args.rows == 0,
          "quantising rows: either x or gate_up");
  const bool fp16 = args.format == WeightFormat::kNvfp4Fp16;
  require(!fp16 || (args.scale_floor && (args.row_scales != nullptr || args.rows == 0)),
          "quantising rows to FP16: it takes the floor of residual scales and row_scales");
  require(args.first_bad_row != nullptr, "quantising rows: nowhere to report a bad row to");
  if (args.rows == 0) return;
  QuantizeShape shape;
  shape.stages = stages_of(k);
  shape.residual_stages = fp16 ? 0 : stages_of(args.residual_blocks * kNvfp4Block);
  shape.row_threads = shape.stages * 8;
  // Few rows are spread over the device; many share blocks, whole warps. Statistics are gathered
  // over a block's rows and added once: blocks are larger and fewer.
  const bool sums = args.residual_sums != nullptr;
  const bool few = args.rows <= 2 * context.multiprocessors;
  const int fitting = std::max((sums ? 512 : 256) / shape.row_threads, 1);
  shape.block_rows = few ? 1 : fitting >= 4 ? fitting / 4 * 4 : fitting;
  shape.groups = static_cast<int>((args.rows + shape.block_rows - 1) / shape.block_rows);
  shape.blocks =
      sums ? std::min(shape.groups, kStatisticsBlocks * context.multiprocessors) : shape.groups;
  const int row_bytes = (shape.stages + shape.residual_stages) * 256 +
                        args.copies * static_cast<int>(sizeof(ImageRow)) +
                        (sums ? shape.row_threads * kStatisticsBytes : 0);
  shape.shared_bytes = shape.block_rows * row_bytes;
  require(shape.shared_bytes <= context.shared_bytes,
          "quantising rows of {} values takes {} bytes of shared memory; the device has {}", k,
          shape.shared_bytes, context.shared_bytes);
  if (is_nvfp4(args.format)) {
    launch_quantize_nvfp4(context, args, shape);
  } else {
    launch_quantize_plain(context, args, shape);
  }
}

}  // namespace quads::kernels::cuda
