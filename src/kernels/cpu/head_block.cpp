#include "kernels/cpu/head_block.h"

#include <algorithm>

#include "kernels/cpu/row_blocks.h"
#include "kernels/cpu/weight_gradient.h"

namespace quads::kernels {
namespace {

// Normalised rows rows[0..count) of x, BF16; inv_rms and the gathered FP32 rows on request.
Bf16* normalise(const CpuContext& context, const HeadBlock& block, const float* x,
                const int64_t* rows, int64_t count, float* gathered, float* inv_rms, Arena& arena) {
  Bf16* h = arena.alloc<Bf16>(count * block.hidden);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = x + rows[i] * block.hidden;
    context.rows().rmsnorm(row, block.hidden, 1, block.hidden, block.norm, block.rms_eps, 1.0F,
                           h + i * block.hidden, block.hidden, inv_rms ? inv_rms + i : nullptr);
    if (gathered) std::copy_n(row, block.hidden, gathered + i * block.hidden);
  }
  return h;
}

}  // namespace

void head_logits(const CpuContext& context, const HeadBlock& block, const float* x,
                 const int64_t* rows, int64_t count, float* logits) {
  for_row_blocks(
      context, count, 2, [&](const CpuContext& local, int64_t, int64_t begin, int64_t end) {
        Arena& arena = local.arena();
        const ArenaScope scope(arena);
        const Bf16* h =
            normalise(local, block, x, rows + begin, end - begin, nullptr, nullptr, arena);
        linear(local, {.q1 = h, .ld1 = block.hidden}, end - begin, block.weight,
               logits + begin * block.vocab, block.vocab);
      });
}

void head_forward(const CpuContext& context, const HeadBlock& block, const float* x,
                  const int64_t* rows, const int32_t* targets, int64_t count, float inv_temperature,
                  float* logp, float* entropy) {
  for_row_blocks(
      context, count, 2, [&](const CpuContext& local, int64_t, int64_t begin, int64_t end) {
        Arena& arena = local.arena();
        const ArenaScope scope(arena);
        const Bf16* h =
            normalise(local, block, x, rows + begin, end - begin, nullptr, nullptr, arena);
        float* logits = arena.alloc<float>((end - begin) * block.vocab);
        linear(local, {.q1 = h, .ld1 = block.hidden}, end - begin, block.weight, logits,
               block.vocab);
        local.parallel_for(end - begin, [&](int64_t i, int) {
          const float* z = logits + i * block.vocab;
          const float lse = local.rows().log_sum_exp(z, block.vocab, inv_temperature);
          logp[begin + i] = z[targets[begin + i]] * inv_temperature - lse;
          if (entropy) {
            entropy[begin + i] = local.rows().entropy(z, block.vocab, inv_temperature, lse);
          }
        });
      });
}

void head_backward(const CpuContext& context, const HeadBlock& block,
                   const PackedMatrix& transposed, const float* x, const int64_t* rows,
                   const int32_t* targets, int64_t count, float inv_temperature, const float* dlogp,
                   float* dnorm, float* dweight, float* dx) {
  const int64_t hidden = block.hidden, padded = transposed.k;
  // A group of rows at a time, so that the gradients of the logits stay small for any vocabulary.
  // Multiples of the rows that accumulate_dw sums at a time: the groups change no bit.
  constexpr int64_t kUnit = 256, kGradients = int64_t{1} << 21;
  const int64_t largest = std::max<int64_t>(1, kGradients / padded / kUnit) * kUnit;
  for (int64_t first = 0; first < count; first += largest) {
    const int64_t group = std::min(largest, count - first);
    Arena& shared = context.arena();
    const ArenaScope outer(shared);
    Bf16* dlogits = shared.alloc<Bf16>(group * padded);
    GradientOperand h_operand({.k = hidden}, group, shared);
    const int64_t blocks = (group + kRowBlock - 1) / kRowBlock;
    float* norm_partials = shared.alloc<float>(blocks * hidden);
    std::fill_n(norm_partials, blocks * hidden, 0.0F);
    for_row_blocks(
        context, group, 2, [&](const CpuContext& local, int64_t b, int64_t begin, int64_t end) {
          Arena& arena = local.arena();
          const ArenaScope scope(arena);
          const int64_t n = end - begin;
          const int64_t* row = rows + first + begin;
          float* gathered = arena.alloc<float>(n * hidden);
          float* inv_rms = arena.alloc<float>(n);
          const Bf16* h = normalise(local, block, x, row, n, gathered, inv_rms, arena);
          h_operand.store(local, begin, n, {.q1 = h, .ld1 = hidden});
          float* logits = arena.alloc<float>(n * block.vocab);
          linear(local, {.q1 = h, .ld1 = hidden}, n, block.weight, logits, block.vocab);
          Bf16* dz = dlogits + begin * padded;
          std::fill_n(dz, n * padded, Bf16{0});
          local.parallel_for(n, [&](int64_t i, int) {
            const float* z = logits + i * block.vocab;
            const float lse = local.rows().log_sum_exp(z, block.vocab, inv_temperature);
            local.rows().log_softmax_backward(z, block.vocab, inv_temperature, lse,
                                              targets[first + begin + i], dlogp[first + begin + i],
                                              dz + i * padded);
          });
          float* dh = arena.alloc<float>(n * hidden);
          linear(local, {.q1 = dz, .ld1 = padded}, n, transposed, dh, hidden);
          float* drow = arena.alloc<float>(n * hidden);
          std::fill_n(drow, n * hidden, 0.0F);
          local.rows().rmsnorm_backward(gathered, hidden, inv_rms, n, hidden, block.norm, dh,
                                        hidden, drow, hidden, norm_partials + b * hidden);
          for (int64_t i = 0; i < n; ++i)
            std::copy_n(drow + i * hidden, hidden, dx + row[i] * hidden);
        });
    for (int64_t b = 0; b < blocks; ++b) {
      context.rows().add(norm_partials + b * hidden, hidden, dnorm);
    }
    const WeightGradient product{dlogits, padded, &h_operand, 0, group, block.vocab, dweight};
    weight_gradients(context, {&product, 1});
  }
}

}  // namespace quads::kernels
