// Weight syncs: packing a model's parameters, beside a copy of as many bytes.
#pragma once

#include <string>
#include <vector>

#include "bench/result.h"
#include "bench/shapes.h"
#include "kernels/cpu/context.h"
#include "model/residual_sums.h"

namespace quads::bench {

/// Figures: ms, read_mb (BF16 parameters), written_mb (packed matrices), memcpy_ms (a copy that
/// moves as many bytes, in and out), x_memcpy.
Result bench_sync(kernels::CpuRuntime& runtime, const std::string& shape,
                  const std::vector<BenchPrecision>& precisions);

/// Masks of the first half of the channels of every site: of the usual size.
RacMasks half_masks(const QuantisedSites& sites);

/// A row's figures: seconds of the sync, bytes that it must read and write, seconds of the copy.
std::vector<std::pair<std::string, double>> sync_figures(double seconds, int64_t read,
                                                         int64_t written, double copy);

}  // namespace quads::bench
