// Cutting a batch into blocks of rows that one task takes through a chain of small kernels.
#pragma once

#include <algorithm>

#include "kernels/cpu/context.h"

namespace quads::kernels {

/// Rows of a block: its intermediates stay in the first two cache levels.
inline constexpr int64_t kRowBlock = 32;

/// Calls body(context, block, begin, end) for every block of rows: in serial contexts, spread over
/// the threads, when there are `blocks_per_worker` blocks for each of them; else one after another,
/// with the products inside split over the threads.
template <class Body>
void for_row_blocks(const CpuContext& context, int64_t rows, int64_t blocks_per_worker, Body body) {
  const int64_t blocks = (rows + kRowBlock - 1) / kRowBlock;
  const auto run = [&](const CpuContext& local, int64_t block) {
    body(local, block, block * kRowBlock, std::min(rows, (block + 1) * kRowBlock));
  };
  if (context.workers() > 1 && blocks < blocks_per_worker * context.workers()) {
    const FlushDenormals flush;
    for (int64_t block = 0; block < blocks; ++block) run(context, block);
  } else {
    context.parallel_for(blocks,
                         [&](int64_t block, int worker) { run(context.serial(worker), block); });
  }
}

}  // namespace quads::kernels
