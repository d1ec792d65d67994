// The kernels compiled for portable.
#define QUADS_ISA portable
#include "kernels/cpu/attention.inl.h"
#include "kernels/cpu/gemm.inl.h"
#include "kernels/cpu/rows.inl.h"
