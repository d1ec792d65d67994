// Checks of a backward's products.
#include "kernels/cuda/gradients/gradient_gemm.h"

#include <climits>

#include "base/error.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/gradients/gradient_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kMaxRows = INT_MAX / 16;
constexpr int64_t kMaxColumns = 64 * 65535;  // tiles are counted in 16 bits

void check_rows(const ExpertRows& experts, const char* what) {
  require(experts.experts >= 1 && experts.experts <= kMaxExperts, "{}: {} experts; 1..{}", what,
          experts.experts, kMaxExperts);
  require(experts.offsets != nullptr || experts.experts == 1, "{}: {} experts without offsets",
          what, experts.experts);
  require(experts.rows >= 0 && experts.rows <= kMaxRows, "{}: {} rows; 0..{}", what, experts.rows,
          kMaxRows);
}

void check_eights(int64_t value, const char* name, const char* what) {
  require(value >= 8 && value % 8 == 0 && value <= kMaxColumns,
          "{}: {} = {}; it must be a multiple of 8, at most {}", what, name, value, kMaxColumns);
}

/// Whether wgmma takes a product of `tiles` tiles. Matrices of one expert are always `dense`.
bool by_wgmma(const CudaContext& context, GradientKernel kernel, bool dense, int64_t tiles,
              const char* what) {
  constexpr int kHopper = 90;
  const bool possible = context.capability == kHopper && dense;
  require(kernel != GradientKernel::kWgmma || possible,
          "{}: wgmma takes Hopper, and weights one behind the other", what);
  if (kernel != GradientKernel::kChosen) return kernel == GradientKernel::kWgmma;
  return possible && tiles >= context.multiprocessors;
}

int64_t tiles_of(int64_t rows, int64_t columns) {
  return (rows + 127) / 128 * ((columns + 127) / 128);
}

const uint16_t* bits(const Bf16* x) { return reinterpret_cast<const uint16_t*>(x); }

}  // namespace

void input_gradient(const CudaContext& context, const InputGradient& args) {
  constexpr const char* kWhat = "input's gradient";
  check_rows(args.experts, kWhat);
  check_eights(args.n, "n", kWhat);
  check_eights(args.k, "k", kWhat);
  require(args.lddy >= args.k && args.lddy % 8 == 0 && args.stride % 8 == 0,
          "{}: rows {} apart, weights {}; multiples of 8", kWhat, args.lddy, args.stride);
  if (args.experts.rows == 0) return;
  const bool dense = args.experts.experts == 1 || args.stride == args.n * args.k;
  const bool wgmma =
      by_wgmma(context, args.kernel, dense, tiles_of(args.experts.rows, args.n), kWhat);
  const auto launch = wgmma ? launch_input_gradient_wgmma : launch_input_gradient;
  launch(context, {.a = bits(args.dy),
                   .lda = args.lddy,
                   .b = bits(args.weight),
                   .b_stride = args.stride,
                   .c = args.dx,
                   .c_stride = 0,
                   .m = static_cast<int>(args.experts.rows),
                   .n = static_cast<int>(args.n),
                   .k = static_cast<int>(args.k),
                   .experts = args.experts.experts,
                   .offsets = args.experts.offsets});
}

void weight_gradient(const CudaContext& context, const WeightGradient& args) {
  constexpr const char* kWhat = "weight's gradient";
  check_rows(args.experts, kWhat);
  check_eights(args.n, "n", kWhat);
  check_eights(args.m, "m", kWhat);
  require(args.lddy >= args.m && args.lddy % 8 == 0 && args.stride % 8 == 0,
          "{}: rows {} apart, weights {}; multiples of 8", kWhat, args.lddy, args.stride);
  if (args.experts.rows == 0) return;
  const int64_t tiles = tiles_of(args.m, args.n) * args.experts.experts;
  const bool wgmma = by_wgmma(context, args.kernel, true, tiles, kWhat);
  const auto launch = wgmma ? launch_weight_gradient_wgmma : launch_weight_gradient;
  launch(context, {.a = bits(args.dy),
                   .lda = args.lddy,
                   .b = bits(args.x),
                   .b_stride = 0,
                   .c = args.dw,
                   .c_stride = args.stride,
                   .m = static_cast<int>(args.m),
                   .n = static_cast<int>(args.n),
                   .k = static_cast<int>(args.experts.rows),
                   .experts = args.experts.experts,
                   .offsets = args.experts.offsets});
}

}  // namespace quads::kernels::cuda
