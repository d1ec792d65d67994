// The matrix products on AMX tiles.
#include "kernels/cpu/gemm_amx.inl.h"
