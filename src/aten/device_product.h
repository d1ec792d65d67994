// ATen's products on a GPU, for the time that they take.
#pragma once

#include "aten/aten_engine.h"

namespace quads {

/// As make_aten_cuda_product (aten_engine.h).
std::unique_ptr<DeviceProduct> make_device_product(const DeviceProductOperands& operands);

}  // namespace quads
