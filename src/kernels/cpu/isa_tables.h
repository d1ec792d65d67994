// The tables that the per-instruction-set files define. Call them only on machines that have the
// set: even copying a table may use its vectors.
#pragma once

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/row_kernels.h"

namespace quads::kernels {

namespace portable {
GemmKernels gemm_kernels();
RowKernels row_kernels();
AttentionKernels attention_kernels();
}  // namespace portable
namespace avx2 {
GemmKernels gemm_kernels();
RowKernels row_kernels();
AttentionKernels attention_kernels();
}  // namespace avx2
namespace avx512 {
GemmKernels gemm_kernels();
RowKernels row_kernels();
AttentionKernels attention_kernels();
}  // namespace avx512
namespace amx {
GemmKernels gemm_kernels();
}  // namespace amx

}  // namespace quads::kernels
