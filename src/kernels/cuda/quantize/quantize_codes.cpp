// Checks of the plain quantiser's arguments.
#include "kernels/cuda/quantize/quantize_codes.h"

#include <cmath>

#include "base/error.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

void require_sizes(int64_t rows, int64_t k, const int32_t* first_bad_row) {
  require(k > 0 && k % kNvfp4Block == 0 && rows >= 0 && rows <= INT32_MAX,
          "NVFP4 codes of [{}, {}]: k must be a positive multiple of 16, rows at most {}", rows, k,
          INT32_MAX);
  require(first_bad_row != nullptr, "NVFP4 codes: nowhere to report a bad row to");
}

}  // namespace

void quantize_codes(const CudaContext& context, const QuantizeCodes& args) {
  require_sizes(args.rows, args.k, args.first_bad_row);
  require(std::isfinite(args.global_scale) && args.global_scale > 0,
          "NVFP4 codes: global scale {}; it must be positive and finite", args.global_scale);
  if (args.rows > 0) launch_quantize_codes(context, args);
}

void dequantize_codes(const CudaContext& context, const DequantizeCodes& args) {
  require_sizes(args.rows, args.k, args.first_bad_row);
  if (args.rows > 0) launch_dequantize_codes(context, args);
}

}  // namespace quads::kernels::cuda
