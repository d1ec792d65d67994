#include "diagnose/projection_error.h"

#include <algorithm>
#include <cmath>

#include "diagnose/trainer_logprobs.h"
#include "model/projection_walk.h"

namespace quads {
namespace {

constexpr const char* kProjections[kSites] = {"qkv", "out", "gate_up", "down", "shared_down"};

// Sums of squares of one projection.
struct Accumulator {
  double reference = 0;
  std::vector<double> difference;  // one a candidate
};

class Measurement {
 public:
  Measurement(const kernels::CpuContext& context, PackedModel& reference,
              std::span<const PackedModel* const> candidates)
      : context_(context),
        reference_(reference),
        candidates_(candidates),
        sums_(static_cast<size_t>(reference.num_layers() * kSites)) {
    for (Accumulator& sum : sums_) sum.difference.assign(candidates.size(), 0.0);
  }

  void add(const RowBatch& batch) {
    walk_projections(
        context_, reference_, batch,
        [this](int64_t layer, Site site) { return measured(layer, site); },
        [this](const Projection& p, const std::vector<float>& y) { compare(p, y); });
  }

  std::vector<ProjectionError> result() const {
    std::vector<ProjectionError> errors;
    for (int64_t layer = 0; layer < reference_.num_layers(); ++layer) {
      for (int site = 0; site < kSites; ++site) {
        if (!measured(layer, static_cast<Site>(site))) continue;
        const Accumulator& sum = sums_[static_cast<size_t>(layer * kSites + site)];
        ProjectionError& error = errors.emplace_back();
        error.layer = layer;
        error.projection = kProjections[site];
        for (double difference : sum.difference) {
          error.relative.push_back(sum.reference > 0 ? std::sqrt(difference / sum.reference) : 0);
        }
      }
    }
    return errors;
  }

 private:
  bool measured(int64_t layer, Site site) const {
    return std::ranges::any_of(candidates_,
                               [&](const PackedModel* m) { return m->quantised(layer, site); });
  }

  void compare(const Projection& projection, const std::vector<float>& y) {
    Accumulator& sum = sums_[static_cast<size_t>(projection.layer * kSites +
                                                 static_cast<int64_t>(projection.site))];
    for (float v : y) sum.reference += double{v} * v;
    for (size_t c = 0; c < candidates_.size(); ++c) {
      const std::vector<float> q = multiply(context_, *candidates_[c], projection);
      for (size_t i = 0; i < y.size(); ++i) {
        const double d = double{q[i]} - y[i];
        sum.difference[c] += d * d;
      }
    }
  }

  void add_attention(int64_t layer, const RowBatch& batch, const std::vector<float>& x) {
    if (!measured(layer, Site::kAttentionIn) && !measured(layer, Site::kAttentionOut)) return;
    const AttentionBlock& block = reference_.attention(layer);
    const std::vector<Bf16> h = normalised(x, batch.rows, block.norm, block.rms_eps);
    std::vector<float> qkv = compare(layer, Site::kAttentionIn, 0, h.data(), batch.rows);
    const std::vector<Bf16> attended = attend(block, batch.attention, batch.rows, std::move(qkv));
    compare(layer, Site::kAttentionOut, 0, attended.data(), batch.rows);
  }

  // The attention block between its two products; overwrites the batch's KV scratch.
  std::vector<Bf16> attend(const AttentionBlock& block, const AttentionRows& rows, int64_t count,
                           std::vector<float> qkv) const {
    const kernels::AttentionShape& shape = block.shape;
    const int64_t half = shape.head_dim / 2, width = block.q_width();
    std::vector<Bf16> q(static_cast<size_t>(count * width)), attended(q.size());
    std::vector<Bf16> key(static_cast<size_t>(block.kv_width())), value(key.size());
    const auto page = [&](int64_t row, int64_t p) {
      return rows.kv + rows.page_ids[row][p] * rows.page_stride;
    };
    for (int64_t r = 0; r < count; ++r) {
      float* row = qkv.data() + r * block.qkv_width();
      kernels::add_qkv_bias(block, row);
      const int64_t position = rows.positions[r];
      const float* cos = rows.cos + position * half;
      const float* sin = rows.sin + position * half;
      context_.rows().qk_norm_rope(row, shape.heads, shape.head_dim, block.q_norm,
                                   block.q_norm_heads(), block.rms_eps, cos, sin,
                                   q.data() + r * width);
      context_.rows().qk_norm_rope(row + width, shape.kv_heads, shape.head_dim, block.k_norm,
                                   block.k_norm_heads(), block.rms_eps, cos, sin, key.data());
      context_.rows().to_bf16(row + width + block.kv_width(), block.kv_width(), 1.0F, value.data());
      kernels::store_kv(shape, key.data(), value.data(), position % kernels::kPageSize,
                        page(r, position / kernels::kPageSize));
    }
    std::vector<float> out(static_cast<size_t>(width));
    std::vector<const Bf16*> pages;
    for (int64_t r = 0; r < count; ++r) {
      const int64_t length = rows.positions[r] + 1;
      pages.clear();
      for (int64_t p = 0; p * kernels::kPageSize < length; ++p) pages.push_back(page(r, p));
      const ArenaScope scope(context_.arena());
      context_.attention().attend(shape, q.data() + r * width, pages.data(), length,
                                  context_.arena(), out.data());
      context_.rows().to_bf16(out.data(), width, 1.0F, attended.data() + r * width);
    }
    return attended;
  }

  void add_ffn(int64_t layer, int64_t rows, const std::vector<float>& x) {
    if (!measured(layer, Site::kFfnIn) && !measured(layer, Site::kFfnMid)) return;
    const MoeBlock& block = reference_.ffn(layer);
    const std::vector<Bf16> h = normalised(x, rows, block.norm, block.rms_eps);
    const std::vector<int32_t> ids = route(block, h, rows);
    for (int64_t expert = 0; expert < block.experts; ++expert) {
      std::vector<Bf16> inputs;
      for (int64_t r = 0; r < rows; ++r) {
        const auto begin = ids.begin() + r * block.top_k;
        if (std::find(begin, begin + block.top_k, expert) == begin + block.top_k) continue;
        inputs.insert(inputs.end(), h.begin() + r * block.hidden,
                      h.begin() + (r + 1) * block.hidden);
      }
      const int64_t count = std::ssize(inputs) / block.hidden;
      if (count > 0) add_expert(layer, expert, inputs.data(), count, block.width, Site::kFfnMid);
    }
    if (measured(layer, Site::kSharedMid)) {
      add_expert(layer, block.experts, h.data(), rows, block.shared_width, Site::kSharedMid);
    }
  }

  void add_expert(int64_t layer, int64_t expert, const Bf16* inputs, int64_t count, int64_t width,
                  Site middle) {
    const std::vector<float> gate_up = compare(layer, Site::kFfnIn, expert, inputs, count);
    std::vector<Bf16> mid(static_cast<size_t>(count * width));
    context_.rows().silu_mul(gate_up.data(), 2 * width, count, width, mid.data(), width);
    compare(layer, middle, expert, mid.data(), count);
  }

  std::vector<int32_t> route(const MoeBlock& block, const std::vector<Bf16>& h,
                             int64_t rows) const {
    std::vector<int32_t> ids(static_cast<size_t>(rows * block.top_k), 0);
    if (block.router == nullptr) return ids;
    const int64_t ldl = block.router_rows();
    std::vector<float> logits(static_cast<size_t>(rows * ldl));
    std::vector<float> weights(ids.size());
    kernels::linear(context_, {.q1 = h.data(), .ld1 = block.hidden}, rows, *block.router,
                    logits.data(), ldl);
    context_.rows().route(logits.data(), ldl, rows, block.experts, block.top_k,
                          block.normalise_weights, nullptr, ids.data(), weights.data());
    return ids;
  }

  kernels::CpuContext context_;
  PackedModel& reference_;
  std::span<const PackedModel* const> candidates_;
  std::vector<Accumulator> sums_;  // [layers * kSites]
};

}  // namespace

std::vector<ProjectionError> projection_errors(const kernels::CpuContext& context,
                                               PackedModel& reference,
                                               std::span<const PackedModel* const> candidates,
                                               std::span<const Sample> samples) {
  constexpr int64_t kMaxRows = 1024;
  const kernels::FlushDenormals flush;
  std::vector<std::vector<int32_t>> tokens;
  const std::vector<TrainSequence> sequences = train_sequences(samples, tokens);
  Measurement measurement(context, reference, candidates);
  SequenceBatch batch(reference);
  for (const auto& [begin, end] : pack(sequences, kMaxRows)) {
    batch.assign(
        std::span(sequences).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        1.0F);
    measurement.add(batch.rows());
  }
  return measurement.result();
}

}  // namespace quads
