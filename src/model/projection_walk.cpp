#include "model/projection_walk.h"

#include <algorithm>

#include "model/cpu_blocks.h"

namespace quads {
namespace {

using kernels::AttentionBlock;
using kernels::AttentionRows;
using kernels::CpuContext;
using kernels::MoeBlock;
using kernels::Operand;
using kernels::PackedMatrix;
using kernels::QuantizeSpec;

// One linear layer of a model; expert number `experts` is the shared one.
struct Linear {
  const QuantizeSpec* input;
  const PackedMatrix* weight;
};

Linear linear_at(const PackedModel& model, int64_t layer, Site site, int64_t expert) {
  switch (site) {
    case Site::kAttentionIn:
      return {&model.attention(layer).qkv.input, &model.attention(layer).qkv.weight};
    case Site::kAttentionOut:
      return {&model.attention(layer).out.input, &model.attention(layer).out.weight};
    case Site::kFfnIn:
      return {expert == model.ffn(layer).experts ? &model.ffn(layer).shared_gate_up_input
                                                 : &model.ffn(layer).gate_up_input,
              &model.ffn(layer).gate_up[expert]};
    case Site::kFfnMid:
      return {&model.ffn(layer).down_input, &model.ffn(layer).down[expert]};
    case Site::kSharedMid:
      break;
  }
  return {&model.ffn(layer).shared_down_input, &model.ffn(layer).down[expert]};
}

class Walk {
 public:
  Walk(const CpuContext& context, const PackedModel& model, const ProjectionFilter& wanted,
       const ProjectionVisitor& visitor)
      : context_(context),
        model_(model),
        wanted_(wanted),
        visitor_(visitor),
        blocks_(context, model) {}

  void run(const RowBatch& batch) {
    std::vector<float> x(static_cast<size_t>(batch.rows * blocks_.hidden()));
    blocks_.embed(batch, x.data());
    for (int64_t layer = 0; layer < model_.num_layers(); ++layer) {
      add_attention(layer, batch, x);
      blocks_.attention_forward(layer, batch, x.data(), x.data());
      add_ffn(layer, batch.rows, x);
      blocks_.ffn_forward(layer, batch, x.data(), x.data());
    }
  }

 private:
  // h = RMSNorm(x) as BF16.
  std::vector<Bf16> normalised(const std::vector<float>& x, int64_t rows, const Bf16* weight,
                               float eps) const {
    const int64_t hidden = blocks_.hidden();
    std::vector<Bf16> h(x.size());
    context_.rows().rmsnorm(x.data(), hidden, rows, hidden, weight, eps, 1.0F, h.data(), hidden,
                            nullptr);
    return h;
  }

  // Shows one projection on rows x, and returns its output.
  std::vector<float> visit(int64_t layer, Site site, int64_t expert, const Bf16* x, int64_t rows) {
    const Projection projection{layer, site, expert, x, rows};
    std::vector<float> y = multiply(context_, model_, projection);
    if (wanted_(layer, site)) visitor_(projection, y);
    return y;
  }

  void add_attention(int64_t layer, const RowBatch& batch, const std::vector<float>& x) {
    if (!wanted_(layer, Site::kAttentionIn) && !wanted_(layer, Site::kAttentionOut)) return;
    const AttentionBlock& block = model_.attention(layer);
    const std::vector<Bf16> h = normalised(x, batch.rows, block.norm, block.rms_eps);
    std::vector<float> qkv = visit(layer, Site::kAttentionIn, 0, h.data(), batch.rows);
    const std::vector<Bf16> attended = attend(block, batch.attention, batch.rows, std::move(qkv));
    visit(layer, Site::kAttentionOut, 0, attended.data(), batch.rows);
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
    if (!wanted_(layer, Site::kFfnIn) && !wanted_(layer, Site::kFfnMid)) return;
    const MoeBlock& block = model_.ffn(layer);
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
    if (block.has_shared() && wanted_(layer, Site::kSharedMid)) {
      add_expert(layer, block.experts, h.data(), rows, block.shared_width, Site::kSharedMid);
    }
  }

  void add_expert(int64_t layer, int64_t expert, const Bf16* inputs, int64_t count, int64_t width,
                  Site middle) {
    const std::vector<float> gate_up = visit(layer, Site::kFfnIn, expert, inputs, count);
    std::vector<Bf16> mid(static_cast<size_t>(count * width));
    context_.rows().silu_mul(gate_up.data(), 2 * width, count, width, mid.data(), width);
    visit(layer, middle, expert, mid.data(), count);
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

  CpuContext context_;
  const PackedModel& model_;
  const ProjectionFilter& wanted_;
  const ProjectionVisitor& visitor_;
  CpuBlocks blocks_;
};

}  // namespace

std::vector<float> multiply(const CpuContext& context, const PackedModel& model,
                            const Projection& p) {
  const Linear linear = linear_at(model, p.layer, p.site, p.expert);
  Arena& arena = context.arena();
  const ArenaScope scope(arena);
  const int64_t k = linear.weight->k, n = linear.weight->n;
  const Operand operand = kernels::quantize(context, *linear.input, p.x, k, p.rows, nullptr,
                                            nullptr, "projection", arena);
  std::vector<float> y(static_cast<size_t>(p.rows * n));
  kernels::linear(context, operand, p.rows, *linear.weight, y.data(), n);
  return y;
}

int64_t input_width(const PackedModel& model, const Projection& p) {
  return linear_at(model, p.layer, p.site, p.expert).weight->k;
}

void walk_projections(const CpuContext& context, const PackedModel& model, const RowBatch& batch,
                      const ProjectionFilter& wanted, const ProjectionVisitor& visitor) {
  Walk(context, model, wanted, visitor).run(batch);
}

}  // namespace quads
