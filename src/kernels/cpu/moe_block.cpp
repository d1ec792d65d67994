#include "kernels/cpu/moe_block.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/cpu/weight_gradient.h"
#include "numerics/math.h"

namespace quads::kernels {
namespace {

constexpr int64_t kRowBlock = 32;     // rows of a routing or combining task
constexpr int64_t kExpertBlock = 64;  // rows of one expert that a task takes through both products

int64_t blocks_of(int64_t rows, int64_t size) { return (rows + size - 1) / size; }

// A slot is a pair of a row and an expert that takes it: slot = row * top_k + choice for the
// router's choices, behind them slot = rows * top_k + row for the shared expert, whose number is
// `experts`. Here they are sorted by expert; within an expert in slot order.
struct SlotsByExpert {
  struct Task {
    int64_t expert, begin, end;  // a range of `slots`
  };
  int64_t* slots;
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
  Bf16* h;               // [rows, hidden] normalised rows, the router's input
  Operand input;         // operands of gate_up for all rows
  Operand shared_input;  // the same for the shared expert
  int32_t* ids;          // [slots] the expert of each slot
  float* weights;        // [slots]
  float* logits;         // [rows, router_rows()]; null when dense
  float* inv_rms;        // [rows]
};

int64_t row_of(const MoeBlock& block, int64_t rows, int64_t slot) {
  const int64_t routed = rows * block.top_k;
  return slot < routed ? slot / block.top_k : slot - routed;
}

int64_t slots_of(const MoeBlock& block, int64_t rows) {
  return rows * (block.top_k + (block.has_shared() ? 1 : 0));
}

float sigmoid(float x) {
  const float t = exp_f32(-std::abs(x));
  return (x >= 0.0F ? 1.0F : t) / (1.0F + t);
}

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
  out.ids = arena.alloc<int32_t>(slots_of(block, rows));
  out.weights = arena.alloc<float>(slots_of(block, rows));
  const int64_t ldl = block.router_rows();
  out.logits = block.router ? arena.alloc<float>(rows * ldl) : nullptr;
  out.inv_rms = arena.alloc<float>(rows);
  out.input = {
      .q1 = q1, .q2 = q2, .ld1 = hidden, .ld2 = width2, .residual_tiles = spec.residual_tiles};
  const bool shared_plain = block.shared_gate_up_input.format == ActivationFormat::kBf16 &&
                            block.shared_gate_up_input.out_scale == 1.0F;
  out.shared_input = shared_plain ? Operand{.q1 = out.h, .ld1 = hidden} : out.input;

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
      float* logits = out.logits + begin * ldl;
      linear(local, {.q1 = h, .ld1 = hidden}, count, *block.router, logits, ldl);
      local.rows().route(logits, ldl, count, block.experts, top_k, block.normalise_weights,
                         routing.replay ? routing.replay + begin * top_k : nullptr, ids, weights);
      if (block.has_shared()) {
        const int64_t slot = rows * top_k + begin;
        std::fill_n(out.ids + slot, count, static_cast<int32_t>(block.experts));
        for (int64_t r = 0; r < count; ++r) {
          out.weights[slot + r] = sigmoid(logits[r * ldl + block.experts]);
        }
      }
    }
    if (routing.record) std::copy_n(ids, count * top_k, routing.record + begin * top_k);
  });
  return out;
}

// The given rows of an operand, one after another.
Operand gather(const Operand& all, int64_t k, const int64_t* rows, int64_t count, Arena& arena) {
  Operand out = all;
  Bf16* q1 = arena.alloc<Bf16>(count * k);
  for (int64_t i = 0; i < count; ++i) std::copy_n(all.q1 + rows[i] * all.ld1, k, q1 + i * k);
  out.q1 = q1;
  out.ld1 = k;
  if (all.q2) {
    Bf16* q2 = arena.alloc<Bf16>(count * all.ld2);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(all.q2 + rows[i] * all.ld2, all.ld2, q2 + i * all.ld2);
    }
    out.q2 = q2;
  }
  return out;
}

// What a task multiplies: some slots of one expert.
struct TaskRows {
  int64_t expert, count;
  int64_t width;         // of this expert
  const int64_t* slots;  // [count]
  const int64_t* rows;   // [count] rows of the batch
  Operand input;         // of gate_up
};

TaskRows task_rows(const MoeBlock& block, int64_t rows, const Routed& routed,
                   const SlotsByExpert& sorted, const SlotsByExpert::Task& task, Arena& arena) {
  const bool shared = task.expert == block.experts;
  TaskRows out;
  out.expert = task.expert;
  out.count = task.end - task.begin;
  out.width = shared ? block.shared_width : block.width;
  out.slots = sorted.slots + task.begin;
  int64_t* of_slots = arena.alloc<int64_t>(out.count);
  for (int64_t i = 0; i < out.count; ++i) of_slots[i] = row_of(block, rows, out.slots[i]);
  out.rows = of_slots;
  if (shared) {  // its rows lie one after another already
    out.input = routed.shared_input;
    out.input.q1 += of_slots[0] * out.input.ld1;
    if (out.input.q2) out.input.q2 += of_slots[0] * out.input.ld2;
  } else {
    out.input = gather(routed.input, block.hidden, of_slots, out.count, arena);
  }
  return out;
}

// gate_up and SiLU-multiply of a task's rows; returns gu [count, 2 * width] and fills h.
float* expand(const CpuContext& context, const MoeBlock& block, const TaskRows& task, Bf16* h,
              Arena& arena) {
  const int64_t width = task.width;
  float* gu = arena.alloc<float>(task.count * 2 * width);
  linear(context, task.input, task.count, block.gate_up[task.expert], gu, 2 * width);
  context.rows().silu_mul(gu, 2 * width, task.count, width, h, width);
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
  const int64_t slots = slots_of(block, rows);
  const SlotsByExpert sorted = sort_by_expert(routed.ids, slots, block.router_rows(), shared);
  float* parts = shared.alloc<float>(slots * hidden);  // [slot][hidden]

  const auto run_expert = [&](const CpuContext& local, const SlotsByExpert::Task& range) {
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const TaskRows task = task_rows(block, rows, routed, sorted, range, arena);
    const bool is_shared = task.expert == block.experts;
    const ResidualStats& sums = is_shared ? stats.shared_down : stats.down;
    Bf16* h = arena.alloc<Bf16>(task.count * task.width);
    expand(local, block, task, h, arena);
    uint8_t* counted = nullptr;
    if (sums.sums && sums.counted) {
      counted = arena.alloc<uint8_t>(task.count);
      for (int64_t i = 0; i < task.count; ++i) counted[i] = sums.counted[task.rows[i]];
    }
    const Operand operand = quantize(
        local, is_shared ? block.shared_down_input : block.down_input, h, task.width, task.count,
        sums.of_worker(local.global_worker(0)), counted, "expert's intermediate activation", arena);
    float* out = arena.alloc<float>(task.count * hidden);
    linear(local, operand, task.count, block.down[task.expert], out, hidden);
    for (int64_t i = 0; i < task.count; ++i) {
      std::copy_n(out + i * hidden, hidden, parts + task.slots[i] * hidden);
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
      float* out = y + r * hidden;
      context.rows().combine(x + r * hidden, part, routed.weights + r * top_k, top_k, hidden, out);
      if (block.has_shared()) {
        const int64_t slot = rows * top_k + r;
        const float* last = parts + slot * hidden;
        context.rows().combine(out, &last, routed.weights + slot, 1, hidden, out);
      }
    }
  });
}

void moe_backward(const CpuContext& context, const MoeBlock& block, const MoeTransposed& transposed,
                  int64_t rows, const MoeRouting& routing, const float* x, const float* dy,
                  const MoeGrads& grads, float* dx) {
  const FlushDenormals flush;
  Arena& shared = context.arena();
  const ArenaScope outer(shared);
  const int64_t hidden = block.hidden, top_k = block.top_k;
  const int64_t routed_slots = rows * top_k, slots = slots_of(block, rows);
  const int64_t shared_rows = slots - routed_slots;
  const MoeRouting replay_only{.replay = routing.replay, .record = nullptr};
  const Routed routed = route_rows(context, block, rows, replay_only, {}, x, shared);
  const SlotsByExpert sorted = sort_by_expert(routed.ids, slots, block.router_rows(), shared);

  // In the order of `sorted.slots`, so that an expert's rows are consecutive. The shared expert's
  // come last and, having a width of their own, have arrays of their own.
  GradientOperand routed_inputs(block.gate_up_input, routed_slots, shared);
  GradientOperand routed_h(block.down_input, routed_slots, shared);
  GradientOperand shared_inputs(block.shared_gate_up_input, shared_rows, shared);
  GradientOperand shared_h(block.shared_down_input, shared_rows, shared);
  Bf16* routed_dgu = shared.alloc<Bf16>(routed_slots * 2 * block.width);
  Bf16* shared_dgu = shared.alloc<Bf16>(shared_rows * 2 * block.shared_width);
  Bf16* dout = shared.alloc<Bf16>(slots * hidden);
  // By slot.
  float* dinput = shared.alloc<float>(slots * hidden);
  float* dweights = shared.alloc<float>(slots);

  context.parallel_for(sorted.num_tasks, [&](int64_t t, int worker) {
    const CpuContext local = context.serial(worker);
    Arena& arena = local.arena();
    const ArenaScope scope(arena);
    const SlotsByExpert::Task& range = sorted.tasks[t];
    const TaskRows task = task_rows(block, rows, routed, sorted, range, arena);
    const bool is_shared = task.expert == block.experts;
    const int64_t count = task.count, width = task.width;
    const int64_t begin = is_shared ? range.begin - routed_slots : range.begin;
    GradientOperand& input_operand = is_shared ? shared_inputs : routed_inputs;
    GradientOperand& h_operand = is_shared ? shared_h : routed_h;
    Bf16* dgu = (is_shared ? shared_dgu : routed_dgu) + begin * 2 * width;

    input_operand.store(local, begin, count, task.input);
    Bf16* h = arena.alloc<Bf16>(count * width);
    const float* gu = expand(local, block, task, h, arena);
    h_operand.quantize(local, begin, count, h, width, arena);

    // dh without the routing weight: its product with h is the weight's gradient.
    Bf16* dy_rows = arena.alloc<Bf16>(count * hidden);
    for (int64_t i = 0; i < count; ++i) {
      const float* row = dy + task.rows[i] * hidden;
      local.rows().to_bf16(row, hidden, 1.0F, dy_rows + i * hidden);
      local.rows().to_bf16(row, hidden, routed.weights[task.slots[i]],
                           dout + (range.begin + i) * hidden);
    }
    float* dh = arena.alloc<float>(count * width);
    linear(local, {.q1 = dy_rows, .ld1 = hidden}, count, transposed.down[task.expert], dh, width);
    const float unscale = 1.0F / h_operand.scale();
    for (int64_t i = 0; i < count; ++i) {
      dweights[task.slots[i]] =
          unscale * local.rows().dot(dh + i * width, h_operand.row(begin + i), width);
      const float weight = routed.weights[task.slots[i]];
      for (int64_t j = 0; j < width; ++j) dh[i * width + j] *= weight;
    }
    local.rows().silu_mul_backward(gu, 2 * width, dh, width, count, width, dgu, 2 * width);
    float* din = arena.alloc<float>(count * hidden);
    linear(local, {.q1 = dgu, .ld1 = 2 * width}, count, transposed.gate_up[task.expert], din,
           hidden);
    for (int64_t i = 0; i < count; ++i) {
      std::copy_n(din + i * hidden, hidden, dinput + task.slots[i] * hidden);
    }
  });

  // Sum the choices of a row, then back through the router and the norm.
  const int64_t ldl = block.router_rows(), padded_ldl = (ldl + 31) / 32 * 32;
  Bf16* dlogits = block.router ? shared.alloc<Bf16>(rows * padded_ldl) : nullptr;
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
      float* dlogits_f32 = arena.alloc<float>(count * ldl);
      local.rows().route_backward(routed.logits + begin * ldl, ldl, count, block.experts, top_k,
                                  block.normalise_weights, routed.ids + begin * top_k,
                                  dweights + begin * top_k, dlogits_f32);
      if (block.has_shared()) {
        for (int64_t r = 0; r < count; ++r) {
          const int64_t slot = routed_slots + begin + r;
          const float gate = routed.weights[slot];
          dlogits_f32[r * ldl + block.experts] = dweights[slot] * gate * (1.0F - gate);
        }
      }
      Bf16* padded = dlogits + begin * padded_ldl;
      std::fill_n(padded, count * padded_ldl, Bf16{0});
      for (int64_t r = 0; r < count; ++r) {
        local.rows().to_bf16(dlogits_f32 + r * ldl, ldl, 1.0F, padded + r * padded_ldl);
      }
      linear(local, {.q1 = padded, .ld1 = padded_ldl}, count, *transposed.router, dh, hidden);
    } else {
      std::fill_n(dh, count * hidden, 0.0F);
    }
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t s = 0; s < top_k; ++s) {
        local.rows().add(dinput + ((begin + r) * top_k + s) * hidden, hidden, dh + r * hidden);
      }
      if (block.has_shared()) {
        local.rows().add(dinput + (routed_slots + begin + r) * hidden, hidden, dh + r * hidden);
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
  products.reserve(static_cast<size_t>(2 * ldl + 1));
  const GradientOperand router_input(routed.h, hidden);
  if (block.router) {
    products.push_back({dlogits, padded_ldl, &router_input, 0, rows, ldl, grads.router});
  }
  const auto add_products = [&](int64_t expert, int64_t begin, int64_t count, int64_t width,
                                const Bf16* dgu, const GradientOperand& inputs,
                                const GradientOperand& h, int64_t row) {
    products.push_back(
        {dgu + row * 2 * width, 2 * width, &inputs, row, count, 2 * width, grads.gate_up[expert]});
    products.push_back({dout + begin * hidden, hidden, &h, row, count, hidden, grads.down[expert]});
  };
  for (int64_t e = 0; e < block.experts; ++e) {
    const int64_t begin = sorted.offsets[e], count = sorted.offsets[e + 1] - begin;
    add_products(e, begin, count, block.width, routed_dgu, routed_inputs, routed_h, begin);
  }
  if (block.has_shared()) {
    add_products(block.experts, routed_slots, rows, block.shared_width, shared_dgu, shared_inputs,
                 shared_h, 0);
  }
  weight_gradients(context, products);
}

}  // namespace quads::kernels
