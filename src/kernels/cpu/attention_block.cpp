#include "kernels/cpu/attention_block.h"

#include <algorithm>

#include "kernels/cpu/row_blocks.h"
#include "kernels/cpu/weight_gradient.h"

namespace quads::kernels {
namespace {

const uint8_t* counted_rows(const ResidualStats& stats, int64_t begin) {
  return stats.counted ? stats.counted + begin : nullptr;
}

// h = RMSNorm(x) of rows begin..end, as the operand of the qkv product.
Operand norm_operand(const CpuContext& context, const AttentionBlock& block, const float* x,
                     int64_t begin, int64_t end, const AttentionStats& stats, float* inv_rms,
                     Arena& arena) {
  const int64_t rows = end - begin;
  const QuantizeSpec& spec = block.qkv.input;
  const bool plain = spec.format == ActivationFormat::kBf16 && spec.block_position == nullptr;
  Bf16* h = arena.alloc<Bf16>(rows * block.hidden);
  context.rows().rmsnorm(x + begin * block.hidden, block.hidden, rows, block.hidden, block.norm,
                         block.rms_eps, plain ? spec.out_scale : 1.0F, h, block.hidden, inv_rms);
  if (plain) return {.q1 = h, .ld1 = block.hidden};
  return quantize(context, spec, h, block.hidden, rows,
                  stats.qkv.of_worker(context.global_worker(0)), counted_rows(stats.qkv, begin),
                  "attention input", arena);
}

// The qkv product and its bias: qkv [rows, qkv_width].
void multiply_qkv(const CpuContext& context, const AttentionBlock& block, const Operand& h,
                  int64_t rows, float* qkv) {
  const int64_t width = block.qkv_width();
  linear(context, h, rows, block.qkv.weight, qkv, width);
  for (int64_t r = 0; r < rows; ++r) add_qkv_bias(block, qkv + r * width);
}

// Rotates and stores what the qkv product gave for rows begin..end: queries to q, keys and values
// to the pages. `qkv` has row 0 = begin.
void rotate_and_store(const CpuContext& context, const AttentionBlock& block,
                      const AttentionRows& rows, int64_t begin, int64_t end, const float* qkv,
                      Bf16* q, Arena& arena) {
  const AttentionShape& shape = block.shape;
  const int64_t half = shape.head_dim / 2;
  Bf16* key = arena.alloc<Bf16>(block.kv_width());
  Bf16* value = arena.alloc<Bf16>(block.kv_width());
  for (int64_t r = begin; r < end; ++r) {
    const float* row = qkv + (r - begin) * block.qkv_width();
    const int64_t position = rows.positions[r];
    const float* cos = rows.cos + position * half;
    const float* sin = rows.sin + position * half;
    context.rows().qk_norm_rope(row, shape.heads, shape.head_dim, block.q_norm,
                                block.q_norm_heads(), block.rms_eps, cos, sin,
                                q + r * block.q_width());
    context.rows().qk_norm_rope(row + block.q_width(), shape.kv_heads, shape.head_dim, block.k_norm,
                                block.k_norm_heads(), block.rms_eps, cos, sin, key);
    context.rows().to_bf16(row + block.q_width() + block.kv_width(), block.kv_width(), 1.0F, value);
    const int64_t page = rows.page_ids[r][position / kPageSize];
    store_kv(shape, key, value, position % kPageSize, rows.kv + page * rows.page_stride);
  }
}

// Attention of row r: out [q_width] FP32.
void attend_row(const CpuContext& context, const AttentionBlock& block, const AttentionRows& rows,
                int64_t r, const Bf16* q, float* out, Arena& arena) {
  const ArenaScope scope(arena);
  const int64_t length = rows.positions[r] + 1;
  const int64_t count = (length + kPageSize - 1) / kPageSize;
  const Bf16** pages = arena.alloc<const Bf16*>(count);
  for (int64_t p = 0; p < count; ++p) {
    pages[p] = rows.kv + rows.page_ids[r][p] * rows.page_stride;
  }
  context.attention().attend(block.shape, q + r * block.q_width(), pages, length, arena, out);
}

// The attention of rows begin..end as BF16 (row 0 = begin).
Bf16* attend_rows(const CpuContext& context, const AttentionBlock& block, const AttentionRows& rows,
                  int64_t begin, int64_t end, const Bf16* q, Arena& arena) {
  const int64_t width = block.q_width();
  Bf16* attended = arena.alloc<Bf16>((end - begin) * width);
  context.parallel_for(end - begin, [&](int64_t i, int worker) {
    Arena& scratch = context.arena(worker);
    const ArenaScope scope(scratch);
    float* out = scratch.alloc<float>(width);
    attend_row(context, block, rows, begin + i, q, out, scratch);
    context.rows().to_bf16(out, width, 1.0F, attended + i * width);
  });
  return attended;
}

}  // namespace

void add_qkv_bias(const AttentionBlock& block, float* qkv) {
  if (block.qkv_bias == nullptr) return;
  for (int64_t i = 0; i < block.qkv_width(); ++i) qkv[i] += to_float(block.qkv_bias[i]);
}

void attention_forward(const CpuContext& context, const AttentionBlock& block,
                       const AttentionRows& rows, const AttentionStats& stats, const float* x,
                       float* y) {
  const ArenaScope outer(context.arena());
  Bf16* q = context.arena().alloc<Bf16>(rows.rows * block.q_width());
  for_row_blocks(
      context, rows.rows, 1, [&](const CpuContext& local, int64_t, int64_t begin, int64_t end) {
        Arena& arena = local.arena();
        const ArenaScope scope(arena);
        const Operand h = norm_operand(local, block, x, begin, end, stats, nullptr, arena);
        float* qkv = arena.alloc<float>((end - begin) * block.qkv_width());
        multiply_qkv(local, block, h, end - begin, qkv);
        rotate_and_store(local, block, rows, begin, end, qkv, q, arena);
      });
  for_row_blocks(
      context, rows.rows, 1, [&](const CpuContext& local, int64_t, int64_t begin, int64_t end) {
        Arena& arena = local.arena();
        const ArenaScope scope(arena);
        const int64_t count = end - begin;
        const Bf16* attended = attend_rows(local, block, rows, begin, end, q, arena);
        const Operand operand = quantize(local, block.out.input, attended, block.q_width(), count,
                                         stats.out.of_worker(local.global_worker(0)),
                                         counted_rows(stats.out, begin), "attention output", arena);
        float* projected = arena.alloc<float>(count * block.hidden);
        linear(local, operand, count, block.out.weight, projected, block.hidden);
        if (y != x)
          std::copy_n(x + begin * block.hidden, count * block.hidden, y + begin * block.hidden);
        local.rows().add(projected, count * block.hidden, y + begin * block.hidden);
      });
}

void attention_backward(const CpuContext& context, const AttentionBlock& block,
                        const AttentionTransposed& transposed, const AttentionRows& rows,
                        const int64_t* cu_seqlens, int64_t sequences, const float* x,
                        const float* dy, const AttentionGrads& grads, float* dx) {
  const ArenaScope outer(context.arena());
  Arena& shared = context.arena();
  const int64_t total = rows.rows;
  const int64_t hidden = block.hidden, q_width = block.q_width(), kv_width = block.kv_width(),
                qkv_width = block.qkv_width();
  const int64_t half = block.shape.head_dim / 2;
  const AttentionStats no_stats;

  // What the weight gradients need of every row, kept in BF16.
  GradientOperand h_operand(block.qkv.input, total, shared);
  GradientOperand o_operand(block.out.input, total, shared);
  Bf16* dqkv = shared.alloc<Bf16>(total * qkv_width);
  Bf16* dy_bf16 = shared.alloc<Bf16>(total * hidden);
  Bf16* q = shared.alloc<Bf16>(total * q_width);
  float* qkv = shared.alloc<float>(total * qkv_width);
  float* inv_rms = shared.alloc<float>(total);

  // Recompute up to the keys and values.
  const int64_t blocks = (total + kRowBlock - 1) / kRowBlock;
  const auto row_range = [&](int64_t task) {
    return std::pair(task * kRowBlock, std::min(total, (task + 1) * kRowBlock));
  };
  context.parallel_for(blocks, [&](int64_t task, int worker) {
    const CpuContext local = context.serial(worker);
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const auto [begin, end] = row_range(task);
    const Operand h = norm_operand(local, block, x, begin, end, no_stats, inv_rms + begin, arena);
    multiply_qkv(local, block, h, end - begin, qkv + begin * qkv_width);
    rotate_and_store(local, block, rows, begin, end, qkv + begin * qkv_width, q, arena);
    h_operand.store(local, begin, end - begin, h);
    local.rows().to_bf16(dy + begin * hidden, (end - begin) * hidden, 1.0F,
                         dy_bf16 + begin * hidden);
  });

  // Through the output product and the attention, a sequence at a time. The gradients of vectors
  // (the norms' weights, the biases) are summed per sequence, then over sequences in order.
  const int64_t head_dim = block.shape.head_dim;
  const int64_t q_norm_width = block.q_norm ? block.q_norm_width() : 0;
  const int64_t k_norm_width = block.k_norm ? block.k_norm_width() : 0;
  const int64_t bias_width = block.qkv_bias ? qkv_width : 0;
  const int64_t vectors = q_norm_width + k_norm_width + bias_width;
  float* partials = shared.alloc<float>(sequences * vectors);
  std::fill_n(partials, sequences * vectors, 0.0F);
  context.parallel_for(sequences, [&](int64_t s, int worker) {
    const CpuContext local = context.serial(worker);
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const int64_t begin = cu_seqlens[s], n = cu_seqlens[s + 1] - begin;
    if (n == 0) return;
    const Bf16* attended = attend_rows(local, block, rows, begin, begin + n, q, arena);
    o_operand.quantize(local, begin, n, attended, q_width, arena);
    float* dout = arena.alloc<float>(n * q_width);
    linear(local, {.q1 = dy_bf16 + begin * hidden, .ld1 = hidden}, n, transposed.out, dout,
           q_width);
    const int64_t pages = (n + kPageSize - 1) / kPageSize;
    const Bf16** page = arena.alloc<const Bf16*>(pages);
    for (int64_t p = 0; p < pages; ++p) {
      page[p] = rows.kv + rows.page_ids[begin][p] * rows.page_stride;
    }
    float* dq = arena.alloc<float>(n * q_width);
    float* dk = arena.alloc<float>(n * kv_width);
    float* dv = arena.alloc<float>(n * kv_width);
    local.attention().attend_backward(block.shape, q + begin * q_width, page, n, dout, arena, dq,
                                      dk, dv);
    float* rotated = arena.alloc<float>(q_width + kv_width);
    float* dq_norm = partials + s * vectors;
    float* dk_norm = dq_norm + q_norm_width;
    float* dbias = dk_norm + k_norm_width;
    for (int64_t i = 0; i < n; ++i) {
      const float* row = qkv + (begin + i) * qkv_width;
      const float* cos = rows.cos + i * half;
      const float* sin = rows.sin + i * half;
      local.rows().qk_norm_rope_backward(
          row, block.shape.heads, head_dim, block.q_norm, block.q_norm_heads(), block.rms_eps, cos,
          sin, dq + i * q_width, rotated, block.q_norm ? dq_norm : nullptr);
      local.rows().qk_norm_rope_backward(row + q_width, block.shape.kv_heads, head_dim,
                                         block.k_norm, block.k_norm_heads(), block.rms_eps, cos,
                                         sin, dk + i * kv_width, rotated + q_width,
                                         block.k_norm ? dk_norm : nullptr);
      if (block.qkv_bias) {
        local.rows().add(rotated, q_width + kv_width, dbias);
        local.rows().add(dv + i * kv_width, kv_width, dbias + q_width + kv_width);
      }
      Bf16* out = dqkv + (begin + i) * qkv_width;
      local.rows().to_bf16(rotated, q_width + kv_width, 1.0F, out);
      local.rows().to_bf16(dv + i * kv_width, kv_width, 1.0F, out + q_width + kv_width);
    }
  });
  for (int64_t s = 0; s < sequences; ++s) {
    const float* partial = partials + s * vectors;
    context.rows().add(partial, q_norm_width, grads.q_norm);
    context.rows().add(partial + q_norm_width, k_norm_width, grads.k_norm);
    context.rows().add(partial + q_norm_width + k_norm_width, bias_width, grads.qkv_bias);
  }

  // Through the qkv product and the norm.
  float* dnorm = shared.alloc<float>(blocks * hidden);
  std::fill_n(dnorm, blocks * hidden, 0.0F);
  context.parallel_for(blocks, [&](int64_t task, int worker) {
    const CpuContext local = context.serial(worker);
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const auto [begin, end] = row_range(task);
    const int64_t count = end - begin;
    float* dh = arena.alloc<float>(count * hidden);
    linear(local, {.q1 = dqkv + begin * qkv_width, .ld1 = qkv_width}, count, transposed.qkv, dh,
           hidden);
    std::copy_n(dy + begin * hidden, count * hidden, dx + begin * hidden);
    local.rows().rmsnorm_backward(x + begin * hidden, hidden, inv_rms + begin, count, hidden,
                                  block.norm, dh, hidden, dx + begin * hidden, hidden,
                                  dnorm + task * hidden);
  });
  for (int64_t task = 0; task < blocks; ++task) {
    context.rows().add(dnorm + task * hidden, hidden, grads.norm);
  }

  const WeightGradient products[] = {
      {dqkv, qkv_width, &h_operand, 0, total, qkv_width, grads.qkv},
      {dy_bf16, hidden, &o_operand, 0, total, hidden, grads.out},
  };
  weight_gradients(context, products);
}

}  // namespace quads::kernels
