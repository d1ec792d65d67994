#include "kernels/cpu/linear.h"

#include <algorithm>

#include "base/error.h"

namespace quads::kernels {

Operand quantize(const CpuContext& context, const QuantizeSpec& spec, const Bf16* x, int64_t ldx,
                 int64_t rows, int64_t* stats, const uint8_t* counted, std::string_view where,
                 Arena& arena) {
  Operand operand;
  if (spec.format == ActivationFormat::kBf16 && spec.out_scale == 1.0F) {
    operand.q1 = x;
    operand.ld1 = ldx;
    return operand;
  }
  Bf16* q1 = arena.alloc<Bf16>(rows * spec.k);
  const int64_t width2 = residual_width(spec);
  Bf16* q2 = width2 ? arena.alloc<Bf16>(rows * width2) : nullptr;
  const int64_t bad =
      context.rows().quantize_rows(x, ldx, rows, spec, q1, spec.k, q2, width2, stats, counted);
  require(bad < 0, "{}: row {} of the activations holds a NaN or an infinity", where, bad);
  operand.q1 = q1;
  operand.q2 = q2;
  operand.ld1 = spec.k;
  operand.ld2 = width2;
  operand.residual_tiles = spec.residual_tiles;
  return operand;
}

void linear(const CpuContext& context, const Operand& operand, int64_t rows,
            const PackedMatrix& weight, float* y, int64_t ldy) {
  if (rows == 0) return;
  constexpr int64_t kRowBlock = 64;
  const int64_t workers = context.workers();
  const auto run = [&](int64_t row, int64_t count, int64_t n_begin, int64_t n_end) {
    GemmArgs args;
    args.weight = &weight;
    args.x = operand.q1 + row * operand.ld1;
    args.ldx = operand.ld1;
    args.x2 = operand.q2 ? operand.q2 + row * operand.ld2 : nullptr;
    args.ldx2 = operand.ld2;
    args.residual_tiles = operand.residual_tiles;
    args.y = y + row * ldy + n_begin;
    args.ldy = ldy;
    args.m = count;
    args.n_begin = n_begin;
    args.n_end = n_end;
    context.gemm().gemm(args);
  };
  if (workers == 1) {
    context.parallel_for(1, [&](int64_t, int) { run(0, rows, 0, weight.n); });
    return;
  }
  const int64_t row_blocks = (rows + kRowBlock - 1) / kRowBlock;
  // Columns in strips of at least 64, about four a worker, so that the last ones even out.
  const int64_t strips_wanted = std::max<int64_t>(1, 4 * workers / row_blocks);
  const int64_t strip =
      std::max<int64_t>(64, ((weight.n + strips_wanted - 1) / strips_wanted + 63) / 64 * 64);
  const int64_t strips = (weight.n + strip - 1) / strip;
  context.parallel_for(row_blocks * strips, [&](int64_t task, int) {
    const int64_t row = task / strips * kRowBlock;
    const int64_t n_begin = task % strips * strip;
    run(row, std::min(kRowBlock, rows - row), n_begin, std::min(n_begin + strip, weight.n));
  });
}

}  // namespace quads::kernels
