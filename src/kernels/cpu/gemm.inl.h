// The matrix-product kernels of one instruction set, for the including file's QUADS_ISA.
#pragma once

#include "kernels/cpu/gemm_dw.inl.h"
#include "kernels/cpu/gemm_forward.inl.h"
#include "kernels/cpu/gemm_pack.inl.h"
#include "kernels/cpu/isa_tables.h"

namespace quads::kernels::QUADS_ISA {

GemmKernels gemm_kernels() { return {gemm, accumulate_dw, pack, amax}; }

}  // namespace quads::kernels::QUADS_ISA
