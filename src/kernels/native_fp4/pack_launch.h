// What lies between checking the packing kernels' arguments and the kernels.
#pragma once

#include "kernels/native_fp4/pack_cuda.h"

namespace quads::kernels::native_fp4 {

/// `k` is k', `columns` those of the scales, padding included.
struct PackedShape {
  int64_t k, columns;
};

void launch_pack_weights(const CudaContext& context, const PackWeights& args,
                         const PackedShape& shape);
void launch_pack_rows(const CudaContext& context, const PackRows& args, const PackedShape& shape);

}  // namespace quads::kernels::native_fp4
