// What lies between checking the arguments of QKV rows and their kernel.
#pragma once

#include "kernels/cuda/attention/qkv_rows.h"

namespace quads::kernels::cuda {

void launch_qkv_rows(const CudaContext& context, const QkvRows& args);

}  // namespace quads::kernels::cuda
