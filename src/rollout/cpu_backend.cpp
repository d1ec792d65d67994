#include "rollout/cpu_backend.h"

#include <algorithm>

namespace quads {
namespace {

// Below this many rows a thread costs more than it brings.
constexpr int64_t kMinRowsPerThread = 16;
// Weights up to this size stay in the caches, so that threads may each read all of them.
constexpr int64_t kSmallModelBytes = int64_t{32} << 20;
// Logits held at a time.
constexpr int64_t kLogits = int64_t{1} << 22;

}  // namespace

int64_t CpuBackend::page_bytes() const {
  return model_.num_layers() * page_elements() * static_cast<int64_t>(sizeof(Bf16));
}

void CpuBackend::allocate_pages(int64_t pages) {
  pages_ = pages;
  pool_ = AlignedBuffer<Bf16>(model_.num_layers() * layer_stride());
}

void CpuBackend::copy_page(int32_t from, int32_t to) {
  for (int64_t layer = 0; layer < model_.num_layers(); ++layer) {
    std::copy_n(page(layer, from), page_elements(), page(layer, to));
  }
}

void CpuBackend::cut(const StepBatch& batch, int64_t num_parts) {
  parts_.clear();
  const int64_t rows = batch.rows();
  Part part{};
  const auto close = [&](int64_t row, int64_t logits_row, int64_t target) {
    part.row_end = row;
    part.logits_row_end = logits_row;
    part.target_end = target;
    parts_.push_back(part);
    part = {row, 0, logits_row, 0, target, 0};
  };
  for (const StepBatch::Run& run : batch.runs) {
    const int64_t wanted = rows * (std::ssize(parts_) + 1) / num_parts;
    if (run.row >= wanted && run.row > part.row) close(run.row, run.logits_row, run.target);
  }
  close(rows, std::ssize(batch.logits_rows), std::ssize(batch.target_rows));
}

void CpuBackend::run(StepBatch& batch, const StepOptions& options) {
  const int64_t rows = batch.rows(), hidden = model_.config().hidden_size;
  if (x_.size() < rows * hidden) x_ = AlignedBuffer<float>(rows * hidden);
  if (options.record_routing) {
    routing_.assign(static_cast<size_t>(rows * routing_width()), -1);
  }
  cos_ = model_.cos(options.max_context);
  sin_ = model_.sin(options.max_context);

  const bool by_rows = schedule_ == Schedule::kByRows ||
                       (schedule_ == Schedule::kAuto && model_.packed_bytes() <= kSmallModelBytes);
  const kernels::CpuContext context = runtime_.context();
  if (by_rows) {
    cut(batch, std::clamp<int64_t>(rows / kMinRowsPerThread, 1, runtime_.num_threads()));
    context.parallel_for(std::ssize(parts_), [&](int64_t part, int worker) {
      run_part(context.serial(worker), batch, parts_[static_cast<size_t>(part)], options);
    });
  } else {
    cut(batch, 1);
    run_part(context, batch, parts_[0], options);
  }
}

void CpuBackend::run_part(const kernels::CpuContext& context, StepBatch& batch, const Part& part,
                          const StepOptions& options) {
  RowBatch rows;
  rows.rows = part.row_end - part.row;
  rows.tokens = batch.tokens.data() + part.row;
  rows.attention.rows = rows.rows;
  rows.attention.positions = batch.positions.data() + part.row;
  rows.attention.page_ids = batch.page_ids.data() + part.row;
  rows.attention.kv = pool_.data();
  rows.attention.page_stride = page_elements();
  rows.attention.cos = cos_;
  rows.attention.sin = sin_;
  rows.kv_layer_stride = layer_stride();
  rows.residual_sums = options.residual_sums;
  rows.counted = batch.counted.data() + part.row;
  if (options.record_routing) {
    rows.record_routing = routing_.data() + part.row * routing_width();
  }

  CpuBlocks blocks(context, model_);
  forward_layers(blocks, rows, x_.data() + part.row * model_.config().hidden_size, nullptr);
  draw_tokens(context, batch, part, options);
  if (part.target < part.target_end) {
    const Targets targets{part.target_end - part.target, batch.target_rows.data() + part.target,
                          batch.target_tokens.data() + part.target,
                          logprob_inv_temperature(options.sampling.temperature)};
    blocks.head_forward(targets, x_.data(), batch.rows(),
                        batch.target_logprobs.data() + part.target, nullptr);
  }
}

void CpuBackend::draw_tokens(const kernels::CpuContext& context, StepBatch& batch, const Part& part,
                             const StepOptions& options) {
  const int64_t vocab = model_.config().vocab_size;
  const int64_t group = std::max<int64_t>(64, kLogits / vocab);
  const float inv_temperature = logprob_inv_temperature(options.sampling.temperature);
  for (int64_t begin = part.logits_row; begin < part.logits_row_end; begin += group) {
    const int64_t count = std::min(group, part.logits_row_end - begin);
    Arena& arena = context.arena();
    const ArenaScope scope(arena);
    float* logits = arena.alloc<float>(count * vocab);
    kernels::head_logits(context, model_.head(), x_.data(), batch.logits_rows.data() + begin, count,
                         logits);
    context.parallel_for(count, [&](int64_t i, int worker) {
      const auto index = static_cast<size_t>(begin + i);
      const float* z = logits + i * vocab;
      const int64_t end = index + 1 < batch.first_draw.size() ? batch.first_draw[index + 1]
                                                              : std::ssize(batch.draws);
      // The operations of kernels::head_forward, so that a trainer's value is the same bits.
      const float lse = context.rows().log_sum_exp(z, vocab, inv_temperature);
      for (int64_t d = batch.first_draw[index]; d < end; ++d) {
        Draw& draw = batch.draws[static_cast<size_t>(d)];
        const float uniform =
            sampling_uniform(options.seed, draw.prompt_index, draw.sample_index, draw.position);
        draw.token =
            context.rows().sample(z, vocab, options.sampling, uniform, context.arena(worker));
        draw.logprob = z[draw.token] * inv_temperature - lse;
      }
    });
  }
}

void CpuBackend::copy_routing(int64_t row, int32_t* out) const {
  const auto part = std::ranges::find_if(parts_, [&](const Part& p) { return row < p.row_end; });
  const int64_t rows = part->row_end - part->row, top_k = model_.config().num_experts_per_tok;
  const int32_t* first = routing_.data() + part->row * routing_width();
  for (int64_t layer = 0; layer < model_.num_layers(); ++layer) {
    std::copy_n(first + (layer * rows + row - part->row) * top_k, top_k, out + layer * top_k);
  }
}

}  // namespace quads
