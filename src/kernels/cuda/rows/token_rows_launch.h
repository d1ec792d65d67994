// What lies between checking the arguments of token rows and their kernels.
#pragma once

#include "kernels/cuda/rows/token_rows.h"

namespace quads::kernels::cuda {

void launch_embed_rows(const CudaContext& context, const EmbedRows& args);
void launch_norm_rows(const CudaContext& context, const NormRows& args);
void launch_combine_rows(const CudaContext& context, const CombineRows& args);
void launch_add_bias(const CudaContext& context, const AddBias& args);

}  // namespace quads::kernels::cuda
