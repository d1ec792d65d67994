// The kernels compiled for avx2.
#define QUADS_ISA avx2
#include "kernels/cpu/attention.inl.h"
#include "kernels/cpu/gemm.inl.h"
#include "kernels/cpu/rows.inl.h"
