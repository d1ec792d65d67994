// Tensor maps, by the driver's function, which the CUDA runtime finds: no library is linked for it.
#include "kernels/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include "base/error.h"
#include "kernels/cuda/context.h"

namespace quads::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  constexpr unsigned kSince = 12000;  // CUDA 12.0
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince,
                                              cudaEnableDefault, &found),
             "finding cuTensorMapEncodeTiled");
  require(found == cudaDriverEntryPointSuccess, "CUDA: the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const Bf16* data, int64_t rows, int64_t columns, int box_rows,
                       int64_t pitch) {
  static const Encode encode = find_encode();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(pitch == 0 ? columns : pitch) *
                                sizeof(Bf16)};
  const cuuint32_t box[] = {kBoxColumns, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(data), sizes, strides,
             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(
      result == CUDA_SUCCESS,
      "CUDA: no tensor map of [{}, {}] at {}: the driver says {}; it takes 16-byte alignment and "
      "columns in multiples of 8",
      rows, columns, static_cast<const void*>(data), static_cast<int>(result));
  return map;
}

}  // namespace quads::kernels::cuda
