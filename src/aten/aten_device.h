// What ATen's blocks do otherwise on a CPU than on a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/blocks.h"
#include "model/parameters.h"
#include "model/sites.h"

namespace quads {

/// Some whole sequences of a batch, at one layer. Pointers are the host's.
struct SequenceRows {
  int64_t begin, rows;                  // rows of the batch
  std::span<const int64_t> cu_seqlens;  // [sequences + 1], offsets of the batch
  const int64_t* positions;             // [rows]
  const float* cos;  // [positions][head_dim / 2]; null where a device has its own
  const float* sin;
  const int32_t* replay_routing;  // [rows, top_k] or null
  int32_t* record_routing;        // the same
};

/// Gives the weights of a block: norms and biases FP32, matrices [rows, cols] in what linear takes.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual at::Tensor of(int64_t parameter) const = 0;
  /// Experts' matrices of one shape, [matrices, rows, cols]; a GPU's only.
  virtual at::Tensor of(std::span<const int64_t> experts) const = 0;
};

class AtenDevice {
 public:
  virtual ~AtenDevice() = default;
  virtual const QuantisedSites& sites() const = 0;
  virtual const ParameterLayout& layout() const = 0;
  /// The weights themselves, without gradients.
  virtual const WeightSource& weights() const = 0;
  /// Takes over the model's present values.
  virtual void refresh() = 0;

  /// compute(i) for i in [0, count), perhaps at once; finish(i) in rising order, after compute(i).
  /// All that is computed with tensors is within this, which queues it where the device wants it
  /// and words its errors.
  virtual void run(int64_t count, const std::function<void(int64_t)>& compute,
                   const std::function<void(int64_t)>& finish) const = 0;
  void run(const std::function<void()>& compute) const {
    run(
        1, [&](int64_t) { compute(); }, [](int64_t) {});
  }
  /// Checks and takes a batch: what follows, until the next, is of the same.
  virtual void take(const RowBatch& batch) = 0;
  /// Sequences are cut to parts of at least so many rows, and targets to at most as many as have
  /// this number of logits, and this number of rows.
  virtual int64_t part_rows() const = 0;
  virtual int64_t logits() const = 0;

  /// FP32 values, undefined.
  virtual at::Tensor empty(int64_t elements) const = 0;
  /// The device's memory as a tensor of FP32.
  virtual at::Tensor wrap(const float* x, at::IntArrayRef sizes) const = 0;
  virtual at::Tensor wrap(float* x, at::IntArrayRef sizes, at::IntArrayRef strides) const = 0;
  /// The host's values on the device; indices are int64 there.
  virtual at::Tensor upload(const float* x, int64_t n) const = 0;
  virtual at::Tensor upload(const int64_t* x, int64_t n) const = 0;
  virtual at::Tensor upload(const int32_t* x, int64_t n) const = 0;

  /// x [m, k] w^T [n, k] of BF16 values, rounded to BF16.
  virtual at::Tensor linear(const at::Tensor& x, const at::Tensor& w) const = 0;
  /// BF16 rows x [rows, width] as `format` rounds them; no gradients.
  virtual at::Tensor fake_quantize(const at::Tensor& x, Format format,
                                   std::string_view where) const = 0;
  /// silu(gate) * up, BF16, of [rows, width] each.
  virtual at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up) const = 0;
  /// cos and sin [rows, 1, head_dim / 2] of a part.
  virtual std::pair<at::Tensor, at::Tensor> angles(const SequenceRows& part) const = 0;
  /// Causal attention within each sequence; q [rows, heads, head_dim], k and v [rows, kv_heads,
  /// head_dim], the result as q; BF16.
  virtual at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const SequenceRows& part, float scale) const = 0;
  /// The experts to use instead of the router's choice: [rows, top_k].
  virtual at::Tensor replayed(const SequenceRows& part, int64_t top_k) const = 0;
  /// linear() of rows sorted by expert: expert e's are those in front of ends[e] (int32) that no
  /// earlier one has.
  virtual at::Tensor multiply_experts(const at::Tensor& x, const at::Tensor& ends,
                                      std::span<const int64_t> parameters,
                                      const WeightSource& weight) const = 0;
  /// sums[index[i]] += rows[i], in an order that is the same every time.
  virtual void add_rows(const at::Tensor& sums, const at::Tensor& index,
                        const at::Tensor& rows) const = 0;
};

}  // namespace quads
