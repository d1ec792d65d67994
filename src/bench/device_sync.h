// Weight syncs on a GPU: quantising a model's parameters, beside a copy of as many bytes.
#pragma once

#include "bench/sync.h"

namespace quads::bench {

/// Figures as bench_sync's, of parameters that live on the device as the flat array: a sync must
/// read them once in BF16 and write the model's weights once; memcpy_ms is a copy within the device
/// that moves as many bytes; first_ms: the first sync, which finds no global scales. Random
/// weights, made in place. Error without a device, and if model and parameters do not fit.
Result bench_device_sync(const std::string& shape, const std::vector<BenchPrecision>& precisions);

}  // namespace quads::bench
