#include "kernels/cpu/weight_gradient.h"

#include <algorithm>

namespace quads::kernels {

GradientOperand::GradientOperand(const QuantizeSpec& forward, int64_t rows, Arena& arena)
    : spec_(forward), values_(arena.alloc<Bf16>(rows * forward.k)) {}

void GradientOperand::store(const CpuContext& context, int64_t row, int64_t count,
                            const Operand& forward) {
  context.rows().operand_values(forward.q1, forward.ld1, forward.q2, forward.ld2, count, spec_,
                                values_ + row * spec_.k, spec_.k);
}

void GradientOperand::quantize(const CpuContext& context, int64_t row, int64_t count, const Bf16* x,
                               int64_t ldx, Arena& arena) {
  const ArenaScope scope(arena);
  store(context, row, count,
        kernels::quantize(context, spec_, x, ldx, count, nullptr, nullptr, "backward", arena));
}

void weight_gradients(const CpuContext& context, std::span<const WeightGradient> products) {
  constexpr int64_t kStrip = 64;  // rows of dw a task
  const auto padded = [](const WeightGradient& p) { return (p.n + 15) / 16 * 16; };
  const auto strips = [&](const WeightGradient& p) { return (padded(p) + kStrip - 1) / kStrip; };
  const ArenaScope scope(context.arena());
  int64_t* first_task = context.arena().alloc<int64_t>(std::ssize(products) + 1);
  first_task[0] = 0;
  for (int64_t i = 0; i < std::ssize(products); ++i) {
    first_task[i + 1] = first_task[i] + (products[i].rows > 0 ? strips(products[i]) : 0);
  }
  context.parallel_for(first_task[products.size()], [&](int64_t task, int) {
    const int64_t index =
        std::upper_bound(first_task, first_task + products.size(), task) - first_task - 1;
    const WeightGradient& product = products[index];
    const GradientOperand& x = *product.x;
    const int64_t n_begin = (task - first_task[index]) * kStrip;
    GemmDwArgs args;
    args.dy = product.dy + n_begin;
    args.lddy = product.lddy;
    args.ldx = x.k();
    args.m = product.rows;
    args.n = std::min(kStrip, padded(product) - n_begin);
    args.k = x.k();
    args.scale = 1.0F / x.scale();
    args.dw = product.dw + n_begin * x.k();
    args.lddw = x.k();
    args.x = x.row(product.x_row);
    context.gemm().accumulate_dw(args);
  });
}

}  // namespace quads::kernels
