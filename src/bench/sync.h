// Weight syncs: packing a model's parameters, beside a copy of as many bytes.
#pragma once

#include <string>
#include <vector>

#include "bench/result.h"
#include "kernels/cpu/context.h"
#include "model/precision.h"

namespace quads::bench {

/// Figures: ms, read_mb (BF16 parameters), written_mb (packed matrices), memcpy_ms (a copy that
/// moves as many bytes, in and out), x_memcpy.
Result bench_sync(kernels::CpuRuntime& runtime, const std::string& shape,
                  const std::vector<Precision>& precisions);

}  // namespace quads::bench
