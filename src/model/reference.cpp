#include "model/reference.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/rope.h"

namespace quads {
namespace {

/// Row-major FP32.
struct Matrix {
  Matrix(int64_t rows, int64_t cols)
      : rows(rows), cols(cols), values(static_cast<size_t>(rows * cols)) {}
  float* row(int64_t r) { return values.data() + r * cols; }
  const float* row(int64_t r) const { return values.data() + r * cols; }
  int64_t rows, cols;
  std::vector<float> values;
};

float rms_norm_scale(const float* x, int64_t d, double eps) {
  double squares = 0.0;
  for (int64_t i = 0; i < d; ++i) squares += double{x[i]} * x[i];
  return static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(d) + eps));
}

void rms_norm(const float* x, int64_t d, const Bf16* weight, double eps, float* out) {
  const float scale = rms_norm_scale(x, d, eps);
  for (int64_t i = 0; i < d; ++i) out[i] = x[i] * scale * to_float(weight[i]);
}

Matrix rms_norm(const Matrix& x, const Bf16* weight, double eps) {
  Matrix out(x.rows, x.cols);
  for (int64_t r = 0; r < x.rows; ++r) rms_norm(x.row(r), x.cols, weight, eps, out.row(r));
  return out;
}

/// y = W x for one row, W [n, k].
void linear(const float* x, int64_t k, const Bf16* weight, int64_t n, float* y) {
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0.0;
    for (int64_t i = 0; i < k; ++i) sum += double{x[i]} * to_float(weight[j * k + i]);
    y[j] = static_cast<float>(sum);
  }
}

Matrix linear(const Matrix& x, const Bf16* weight, int64_t n) {
  Matrix y(x.rows, n);
  for (int64_t r = 0; r < x.rows; ++r) linear(x.row(r), x.cols, weight, n, y.row(r));
  return y;
}

/// exp(z - max) / sum, in place.
void softmax(std::span<float> z) {
  const float largest = *std::ranges::max_element(z);
  double sum = 0.0;
  for (float& v : z) {
    v = std::exp(v - largest);
    sum += v;
  }
  for (float& v : z) v = static_cast<float>(v / sum);
}

/// Rotates the halves of one head.
void rotate(float* head, int64_t head_dim, const float* cos, const float* sin) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half];
    head[i] = a * cos[i] - b * sin[i];
    head[i + half] = b * cos[i] + a * sin[i];
  }
}

void add_bias(Matrix& x, const Bf16* bias) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t i = 0; i < x.cols; ++i) x.row(r)[i] += to_float(bias[i]);
  }
}

/// out [head_dim] of one query over the first `context` rows of keys and values, which start at
/// column `at`.
void attend(const float* query, const Matrix& keys, const Matrix& values, int64_t at,
            int64_t head_dim, int64_t context, float* out) {
  std::vector<float> p(static_cast<size_t>(context));
  for (int64_t j = 0; j < context; ++j) {
    double score = 0.0;
    for (int64_t d = 0; d < head_dim; ++d) score += double{query[d]} * keys.row(j)[at + d];
    p[static_cast<size_t>(j)] =
        static_cast<float>(score / std::sqrt(static_cast<double>(head_dim)));
  }
  softmax(p);
  for (int64_t d = 0; d < head_dim; ++d) {
    double sum = 0.0;
    for (int64_t j = 0; j < context; ++j) {
      sum += double{p[static_cast<size_t>(j)]} * values.row(j)[at + d];
    }
    out[d] = static_cast<float>(sum);
  }
}

class Reference {
 public:
  explicit Reference(const Parameters& parameters)
      : parameters_(parameters),
        config_(parameters.config()),
        layout_(parameters.layout()),
        rope_(make_rope_table(config_.rope, config_.head_dim)) {}

  Matrix embed(std::span<const int32_t> tokens) const {
    Matrix x(std::ssize(tokens), config_.hidden_size);
    const Bf16* table = parameters_.of(layout_.embedding);
    for (int64_t r = 0; r < x.rows; ++r) {
      const int32_t token = tokens[static_cast<size_t>(r)];
      require(token >= 0 && token < config_.vocab_size, "token {} is outside the vocabulary of {}",
              token, config_.vocab_size);
      for (int64_t i = 0; i < x.cols; ++i) x.row(r)[i] = to_float(table[token * x.cols + i]);
    }
    return x;
  }

  void add_attention(const ParameterLayout::Layer& layer, Matrix& x) {
    const int64_t heads = config_.num_attention_heads, kv_heads = config_.num_key_value_heads;
    const int64_t head_dim = config_.head_dim;
    const int64_t q_width = heads * head_dim, kv_width = kv_heads * head_dim;
    const Bf16* qkv = parameters_.of(layer.qkv);
    const Matrix h = rms_norm(x, parameters_.of(layer.input_norm), config_.rms_norm_eps);
    Matrix q = linear(h, qkv, q_width);
    Matrix k = linear(h, qkv + q_width * h.cols, kv_width);
    Matrix v = linear(h, qkv + (q_width + kv_width) * h.cols, kv_width);
    if (const Bf16* bias = parameters_.of(layer.qkv_bias)) {
      add_bias(q, bias);
      add_bias(k, bias + q_width);
      add_bias(v, bias + q_width + kv_width);
    }
    norm_and_rotate(q, parameters_.of(layer.q_norm));
    norm_and_rotate(k, parameters_.of(layer.k_norm));
    Matrix attended(x.rows, q_width);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t i = 0; i < heads; ++i) {
        attend(q.row(r) + i * head_dim, k, v, i / (heads / kv_heads) * head_dim, head_dim, r + 1,
               attended.row(r) + i * head_dim);
      }
    }
    const Matrix out = linear(attended, parameters_.of(layer.o), x.cols);
    for (size_t i = 0; i < x.values.size(); ++i) x.values[i] += out.values[i];
  }

  void add_feed_forward(const ParameterLayout::Layer& layer, bool sparse, Matrix& x) const {
    const Matrix h = rms_norm(x, parameters_.of(layer.post_norm), config_.rms_norm_eps);
    for (int64_t r = 0; r < x.rows; ++r) {
      if (sparse) {
        for (const auto& [expert, weight] : route(layer, h.row(r))) {
          add_expert(layer.gate_up[expert], layer.down[expert], config_.moe_intermediate_size,
                     weight, h.row(r), x.row(r));
        }
        if (config_.shared_expert_intermediate_size > 0) {
          add_expert(layer.gate_up.back(), layer.down.back(),
                     config_.shared_expert_intermediate_size, shared_weight(layer, h.row(r)),
                     h.row(r), x.row(r));
        }
      } else {
        add_expert(layer.gate_up[0], layer.down[0], config_.intermediate_size, 1.0F, h.row(r),
                   x.row(r));
      }
    }
  }

  Matrix logits(const Matrix& x) const {
    const Matrix h = rms_norm(x, parameters_.of(layout_.final_norm), config_.rms_norm_eps);
    return linear(h, parameters_.of(layout_.head), config_.vocab_size);
  }

 private:
  /// Queries or keys of all positions; the norm, if there is one, is over each head or all.
  void norm_and_rotate(Matrix& x, const Bf16* norm) {
    const int64_t head_dim = config_.head_dim, half = head_dim / 2;
    const int64_t width = config_.qk_norm() == QkNorm::kProjection ? x.cols : head_dim;
    const float* cos = rope_.cos(x.rows);
    const float* sin = rope_.sin(x.rows);
    for (int64_t r = 0; r < x.rows; ++r) {
      float* row = x.row(r);
      for (int64_t i = 0; norm && i < x.cols; i += width) {
        rms_norm(row + i, width, norm, config_.rms_norm_eps, row + i);
      }
      for (int64_t i = 0; i < x.cols; i += head_dim) {
        rotate(row + i, head_dim, cos + r * half, sin + r * half);
      }
    }
  }

  /// sigmoid(gate . h); the gate is the router's last row.
  float shared_weight(const ParameterLayout::Layer& layer, const float* h) const {
    const int64_t hidden = config_.hidden_size;
    float logit = 0.0F;
    linear(h, hidden, parameters_.of(layer.router) + config_.num_experts * hidden, 1, &logit);
    return 1.0F / (1.0F + std::exp(-logit));
  }

  struct Choice {
    size_t expert;
    float weight;
  };

  /// The num_experts_per_tok most probable experts, ties to the lower index.
  std::vector<Choice> route(const ParameterLayout::Layer& layer, const float* h) const {
    std::vector<float> p(static_cast<size_t>(config_.num_experts));
    linear(h, config_.hidden_size, parameters_.of(layer.router), config_.num_experts, p.data());
    softmax(p);
    std::vector<Choice> choices;
    for (size_t e = 0; e < p.size(); ++e) choices.push_back({e, p[e]});
    std::ranges::stable_sort(choices, std::ranges::greater(), &Choice::weight);
    choices.resize(static_cast<size_t>(config_.num_experts_per_tok));
    if (config_.norm_topk_prob) {
      float sum = 0.0F;
      for (const Choice& c : choices) sum += c.weight;
      for (Choice& c : choices) c.weight /= sum;
    }
    return choices;
  }

  /// y += weight * down(silu(gate h) * up h).
  void add_expert(int64_t gate_up, int64_t down, int64_t width, float weight, const float* h,
                  float* y) const {
    const int64_t hidden = config_.hidden_size;
    std::vector<float> gu(static_cast<size_t>(2 * width)), out(static_cast<size_t>(hidden));
    linear(h, hidden, parameters_.of(gate_up), 2 * width, gu.data());
    for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
      gu[i] = gu[i] / (1.0F + std::exp(-gu[i])) * gu[i + static_cast<size_t>(width)];
    }
    linear(gu.data(), width, parameters_.of(down), hidden, out.data());
    for (int64_t i = 0; i < hidden; ++i) y[i] += weight * out[static_cast<size_t>(i)];
  }

  const Parameters& parameters_;
  const ModelConfig& config_;
  const ParameterLayout& layout_;
  kernels::RopeTable rope_;
};

}  // namespace

std::vector<float> reference_logits(const Parameters& parameters, std::span<const int32_t> tokens) {
  Reference model(parameters);
  Matrix x = model.embed(tokens);
  const std::vector<ParameterLayout::Layer>& layers = parameters.layout().layers;
  for (size_t l = 0; l < layers.size(); ++l) {
    model.add_attention(layers[l], x);
    model.add_feed_forward(layers[l], parameters.config().is_sparse(static_cast<int64_t>(l)), x);
  }
  return model.logits(x).values;
}

}  // namespace quads
