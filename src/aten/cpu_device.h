// ATen's blocks on the CPU: the context's threads each take some sequences.
#pragma once

#include "aten/aten_device.h"
#include "model/packed_model.h"

namespace quads {

/// `model` gives the values: what its kernels multiply with, dequantised. It must outlive the
/// device and be refreshed.
std::unique_ptr<AtenDevice> make_aten_cpu(const kernels::CpuContext& context,
                                          const PackedModel& model);

}  // namespace quads
