// The kernels compiled for avx512.
#define QUADS_ISA avx512
#include "kernels/cpu/attention.inl.h"
#include "kernels/cpu/gemm.inl.h"
#include "kernels/cpu/rows.inl.h"
