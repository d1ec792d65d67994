// ATen's blocks on a GPU: cuBLAS, flash attention over packed sequences, grouped products.
#pragma once

#include "aten/aten_device.h"
#include "model/device_operands.h"

namespace quads {

/// `operands` must outlive the device; everything runs on its stream. ATen's allocator, which
/// belongs to the process, may hold operands.memory() bytes from here on: more is an error.
std::unique_ptr<AtenDevice> make_aten_cuda(const DeviceOperands& operands);

}  // namespace quads
