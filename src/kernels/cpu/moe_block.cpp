#include "kernels/cpu/moe_block.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/weight_gradient.h"

namespace quads::kernels {
namespace {

constexpr int64_t kRowBlock = 32;     // rows of a routing or combining task
constexpr int64_t kExpertBlock = 64;  // rows of one expert that a task takes through both products

int64_t blocks_of(int64_t rows, int64_t size) { return (rows + size - 1) / size; }

// Slots (row, choice) sorted by expert; within an expert in slot order. slot = row * top_k +
// choice.
struct SlotsByExpert {
  struct Task {
    int64_t expert, begin, end;  // a range of `slots`
  };
  int64_t* slots;    // [rows * top_k]
  int64_t* offsets;  // [experts + 1]
  Task* tasks;       // ranges of at most kExpertBlock slots of one expert
  int64_t num_tasks;
};

SlotsByExpert sort_by_expert(const int32_t* ids, int64_t count, int64_t experts, Arena& arena) {
  SlotsByExpert result;
  result.slots = arena.alloc<int64_t>(count);
  result.offsets = arena.alloc<int64_t>(experts + 1);
  std::fill_n(result.offsets, experts + 1, 0);
  for (int64_t slot = 0; slot < count; ++slot) ++result.offsets[ids[slot] + 1];
  for (int64_t e = 0; e < experts; ++e) result.offsets[e + 1] += result.offsets[e];
  int64_t* next = arena.alloc<int64_t>(experts);
  std::copy_n(result.offsets, experts, next);
  for (int64_t slot = 0; slot < count; ++slot) result.slots[next[ids[slot]]++] = slot;
  result.tasks = arena.alloc<SlotsByExpert::Task>(experts + count / kExpertBlock + 1);
  result.num_tasks = 0;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t b = result.offsets[e]; b < result.offsets[e + 1]; b += kExpertBlock) {
      result.tasks[result.num_tasks++] = {e, b, std::min(b + kExpertBlock, result.offsets[e + 1])};
    }
  }
  return result;
}

// What routing and quantising a batch of rows gives.
struct Routed {
  Bf16* h;         // [rows, hidden] normalised rows (router's input; times out_scale if `plain`)
  Operand input;   // operands of gate_up for all rows
  int32_t* ids;    // [rows, top_k]
  float* weights;  // [rows, top_k]
  float* logits;   // [rows, experts]; null when dense
  float* inv_rms;  // [rows]
};

Routed route_rows(const CpuContext& context, const MoeBlock& block, int64_t rows,
                  const MoeRouting& routing, const MoeStats& stats, const float* x, Arena& arena) {
  const int64_t hidden = block.hidden, top_k = block.top_k;
  const QuantizeSpec& spec = block.gate_up_input;
  const bool quantised = spec.format != ActivationFormat::kBf16 || spec.out_scale != 1.0F;
  const int64_t width2 = residual_width(spec);
  Routed out;
  out.h = arena.alloc<Bf16>(rows * hidden);
  Bf16* q1 = quantised ? arena.alloc<Bf16>(rows * hidden) : out.h;
  Bf16* q2 = width2 ? arena.alloc<Bf16>(rows * width2) : nullptr;
  out.ids = arena.alloc<int32_t>(rows * top_k);
  out.weights = arena.alloc<float>(rows * top_k);
  out.logits = block.router ? arena.alloc<float>(rows * block.experts) : nullptr;
  out.inv_rms = arena.alloc<float>(rows);
  out.input = {
      .q1 = q1, .q2 = q2, .ld1 = hidden, .ld2 = width2, .residual_tiles = spec.residual_tiles};

  context.parallel_for(blocks_of(rows, kRowBlock), [&](int64_t task, int worker) {
    const CpuContext local = context.serial(worker);
    const int64_t begin = task * kRowBlock, count = std::min(kRowBlock, rows - begin);
    Bf16* h = out.h + begin * hidden;
    local.rows().rmsnorm(x + begin * hidden, hidden, count, hidden, block.norm, block.rms_eps, 1.0F,
                         h, hidden, out.inv_rms + begin);
    if (quantised) {
      const uint8_t* counted = stats.gate_up.counted;
      const int64_t bad = local.rows().quantize_rows(
          h, hidden, count, spec, q1 + begin * hidden, hidden, q2 ? q2 + begin * width2 : nullptr,
          width2, stats.gate_up.of_worker(local.global_worker(0)),
          counted ? counted + begin : nullptr);
      require(bad < 0, "feed-forward input: row {} holds a NaN or an infinity", begin + bad);
    }
    int32_t* ids = out.ids + begin * top_k;
    float* weights = out.weights + begin * top_k;
    if (block.router == nullptr) {
      std::fill_n(ids, count * top_k, 0);
      std::fill_n(weights, count * top_k, 1.0F);
    } else {
      float* logits = out.logits + begin * block.experts;
      linear(local, {.q1 = h, .ld1 = hidden}, count, *block.router, logits, block.experts);
      local.rows().route(logits, count, block.experts, top_k, block.normalise_weights,
                         routing.replay ? routing.replay + begin * top_k : nullptr, ids, weights);
    }
    if (routing.record) std::copy_n(ids, count * top_k, routing.record + begin * top_k);
  });
  return out;
}

// The operands of the given slots, gathered into consecutive rows.
Operand gather(const Operand& rows, int64_t k, const int64_t* slots, int64_t count, int64_t top_k,
               Arena& arena) {
  Operand out = rows;
  Bf16* q1 = arena.alloc<Bf16>(count * k);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(rows.q1 + slots[i] / top_k * rows.ld1, k, q1 + i * k);
  }
  out.q1 = q1;
  out.ld1 = k;
  if (rows.q2) {
    Bf16* q2 = arena.alloc<Bf16>(count * rows.ld2);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(rows.q2 + slots[i] / top_k * rows.ld2, rows.ld2, q2 + i * rows.ld2);
    }
    out.q2 = q2;
  }
  return out;
}

// gate_up and SiLU-multiply of a task's rows; returns gu [count, 2 * width] and fills h.
float* expand(const CpuContext& context, const MoeBlock& block, const SlotsByExpert::Task& task,
              const Operand& input, Bf16* h, Arena& arena) {
  const int64_t count = task.end - task.begin;
  float* gu = arena.alloc<float>(count * 2 * block.width);
  linear(context, input, count, block.gate_up[task.expert], gu, 2 * block.width);
  context.rows().silu_mul(gu, 2 * block.width, count, block.width, h, block.width);
  return gu;
}

}  // namespace

void moe_forward(const CpuContext& context, const MoeBlock& block, int64_t rows,
                 const MoeRouting& routing, const MoeStats& stats, const float* x, float* y) {
  const FlushDenormals flush;
  Arena& shared = context.arena();
  const ArenaScope outer(shared);
  const int64_t hidden = block.hidden, top_k = block.top_k;
  const Routed routed = route_rows(context, block, rows, routing, stats, x, shared);
  const SlotsByExpert sorted = sort_by_expert(routed.ids, rows * top_k, block.experts, shared);
  float* parts = shared.alloc<float>(rows * top_k * hidden);  // [slot][hidden]

  const auto run_expert = [&](const CpuContext& local, const SlotsByExpert::Task& task) {
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const int64_t count = task.end - task.begin;
    const int64_t* slots = sorted.slots + task.begin;
    const Operand input = gather(routed.input, hidden, slots, count, top_k, arena);
    Bf16* h = arena.alloc<Bf16>(count * block.width);
    expand(local, block, task, input, h, arena);
    uint8_t* counted = nullptr;
    if (stats.down.sums && stats.down.counted) {
      counted = arena.alloc<uint8_t>(count);
      for (int64_t i = 0; i < count; ++i) counted[i] = stats.down.counted[slots[i] / top_k];
    }
    const Operand operand = quantize(local, block.down_input, h, block.width, count,
                                     stats.down.of_worker(local.global_worker(0)), counted,
                                     "expert's intermediate activation", arena);
    float* out = arena.alloc<float>(count * hidden);
    linear(local, operand, count, block.down[task.expert], out, hidden);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(out + i * hidden, hidden, parts + slots[i] * hidden);
    }
  };
  if (context.workers() > 1 && sorted.num_tasks < 2 * context.workers()) {
    for (int64_t t = 0; t < sorted.num_tasks; ++t) run_expert(context, sorted.tasks[t]);
  } else {
    context.parallel_for(sorted.num_tasks, [&](int64_t t, int worker) {
      run_expert(context.serial(worker), sorted.tasks[t]);
    });
  }

  context.parallel_for(blocks_of(rows, kRowBlock), [&](int64_t task, int worker) {
    Arena& arena = context.arena(worker);
    const ArenaScope scope(arena);
    const float** part = arena.alloc<const float*>(top_k);
    for (int64_t r = task * kRowBlock; r < std::min(rows, (task + 1) * kRowBlock); ++r) {
      for (int64_t s = 0; s < top_k; ++s) part[s] = parts + (r * top_k + s) * hidden;
      context.rows().combine(x + r * hidden, part, routed.weights + r * top_k, top_k, hidden,
                             y + r * hidden);
    }
  });
}

void moe_backward(const CpuContext& context, const MoeBlock& block, const MoeTransposed& transposed,
                  int64_t rows, const MoeRouting& routing, const float* x, const float* dy,
                  const MoeGrads& grads, float* dx) {
  const FlushDenormals flush;
  Arena& shared = context.arena();
  const ArenaScope outer(shared);
  const int64_t hidden = block.hidden, width = block.width, top_k = block.top_k;
  const int64_t slots = rows * top_k;
  const MoeRouting replay_only{.replay = routing.replay, .record = nullptr};
  const Routed routed = route_rows(context, block, rows, replay_only, {}, x, shared);
  const SlotsByExpert sorted = sort_by_expert(routed.ids, slots, block.experts, shared);

  // In the order of `sorted.slots`, so that an expert's rows are consecutive.
  GradientOperand input_operand(block.gate_up_input, slots, shared);
  GradientOperand h_operand(block.down_input, slots, shared);
  Bf16* dgu = shared.alloc<Bf16>(slots * 2 * width);
  Bf16* dout = shared.alloc<Bf16>(slots * hidden);
  // By slot.
  float* dinput = shared.alloc<float>(slots * hidden);
  float* dweights = shared.alloc<float>(slots);

  context.parallel_for(sorted.num_tasks, [&](int64_t t, int worker) {
    const CpuContext local = context.serial(worker);
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const SlotsByExpert::Task& task = sorted.tasks[t];
    const int64_t count = task.end - task.begin;
    const int64_t* slot = sorted.slots + task.begin;

    const Operand input = gather(routed.input, hidden, slot, count, top_k, arena);
    input_operand.store(local, task.begin, count, input);
    Bf16* h = arena.alloc<Bf16>(count * width);
    const float* gu = expand(local, block, task, input, h, arena);
    h_operand.quantize(local, task.begin, count, h, width, arena);

    // dh without the routing weight: its product with h is the weight's gradient.
    Bf16* dy_rows = arena.alloc<Bf16>(count * hidden);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = dy + slot[i] / top_k * hidden;
      local.rows().to_bf16(row, hidden, 1.0F, dy_rows + i * hidden);
      local.rows().to_bf16(row, hidden, routed.weights[slot[i]], dout + (task.begin + i) * hidden);
    }
    float* dh = arena.alloc<float>(count * width);
    linear(local, {.q1 = dy_rows, .ld1 = hidden}, count, transposed.down[task.expert], dh, width);
    const float unscale = 1.0F / h_operand.scale();
    for (int64_t i = 0; i < count; ++i) {
      dweights[slot[i]] =
          unscale * local.rows().dot(dh + i * width, h_operand.row(task.begin + i), width);
      const float weight = routed.weights[slot[i]];
      for (int64_t j = 0; j < width; ++j) dh[i * width + j] *= weight;
    }
    Bf16* dgu_rows = dgu + task.begin * 2 * width;
    local.rows().silu_mul_backward(gu, 2 * width, dh, width, count, width, dgu_rows, 2 * width);
    float* din = arena.alloc<float>(count * hidden);
    linear(local, {.q1 = dgu_rows, .ld1 = 2 * width}, count, transposed.gate_up[task.expert], din,
           hidden);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(din + i * hidden, hidden, dinput + slot[i] * hidden);
    }
  });

  // Sum the choices of a row, then back through the router and the norm.
  const int64_t padded_experts = (block.experts + 31) / 32 * 32;
  Bf16* dlogits = block.router ? shared.alloc<Bf16>(rows * padded_experts) : nullptr;
  const int64_t row_blocks = blocks_of(rows, kRowBlock);
  float* dnorm = shared.alloc<float>(row_blocks * hidden);
  std::fill_n(dnorm, row_blocks * hidden, 0.0F);
  context.parallel_for(row_blocks, [&](int64_t task, int worker) {
    const CpuContext local = context.serial(worker);
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const int64_t begin = task * kRowBlock, count = std::min(kRowBlock, rows - begin);
    float* dh = arena.alloc<float>(count * hidden);
    if (block.router) {
      float* dlogits_f32 = arena.alloc<float>(count * block.experts);
      local.rows().route_backward(routed.logits + begin * block.experts, count, block.experts,
                                  top_k, block.normalise_weights, routed.ids + begin * top_k,
                                  dweights + begin * top_k, dlogits_f32);
      Bf16* padded = dlogits + begin * padded_experts;
      std::fill_n(padded, count * padded_experts, Bf16{0});
      for (int64_t r = 0; r < count; ++r) {
        local.rows().to_bf16(dlogits_f32 + r * block.experts, block.experts, 1.0F,
                             padded + r * padded_experts);
      }
      linear(local, {.q1 = padded, .ld1 = padded_experts}, count, *transposed.router, dh, hidden);
    } else {
      std::fill_n(dh, count * hidden, 0.0F);
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t s = 0; s < top_k; ++s) {
        local.rows().add(dinput + ((begin + r) * top_k + s) * hidden, hidden, dh + r * hidden);
      }
    }
    std::copy_n(dy + begin * hidden, count * hidden, dx + begin * hidden);
    local.rows().rmsnorm_backward(x + begin * hidden, hidden, routed.inv_rms + begin, count, hidden,
                                  block.norm, dh, hidden, dx + begin * hidden, hidden,
                                  dnorm + task * hidden);
  });
  for (int64_t task = 0; task < row_blocks; ++task) {
    context.rows().add(dnorm + task * hidden, hidden, grads.norm);
  }

  std::vector<WeightGradient> products;
  products.reserve(static_cast<size_t>(2 * block.experts + 1));
  const GradientOperand router_input(routed.h, hidden);
  if (block.router) {
    products.push_back(
        {dlogits, padded_experts, &router_input, 0, rows, block.experts, grads.router});
  }
  for (int64_t e = 0; e < block.experts; ++e) {
    const int64_t begin = sorted.offsets[e], count = sorted.offsets[e + 1] - begin;
    products.push_back({dgu + begin * 2 * width, 2 * width, &input_operand, begin, count, 2 * width,
                        grads.gate_up[e]});
    products.push_back(
        {dout + begin * hidden, hidden, &h_operand, begin, count, hidden, grads.down[e]});
  }
  weight_gradients(context, products);
}

}  // namespace quads::kernels
