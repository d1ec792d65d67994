// The CPU instruction sets and the tables of kernels compiled for each.
#pragma once

#include <string_view>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/gemm_kernels.h"
#include "kernels/cpu/row_kernels.h"

namespace quads::kernels {

/// In rising order of speed. All give the same bits; kAmx uses AVX-512 outside the matrix products.
enum class Isa { kPortable, kAvx2, kAvx512, kAmx };

std::string_view isa_name(Isa isa);  // "portable", "avx2", "avx512", "amx"
/// Error on an unknown name, listing the known ones.
Isa parse_isa(std::string_view name);
/// Whether this machine runs it (AMX: and the kernel granted the tile state).
bool isa_available(Isa isa);
/// The fastest available.
Isa best_isa();

/// Single-threaded kernels on raw pointers. They expect FlushDenormals to be in force.
struct CpuKernels {
  Isa isa;
  GemmKernels gemm;
  RowKernels rows;
  AttentionKernels attention;
};

/// Error if the machine lacks `isa`.
const CpuKernels& cpu_kernels(Isa isa);

}  // namespace quads::kernels
