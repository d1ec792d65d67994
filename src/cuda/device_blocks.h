// A model's blocks over rows on the device, forward: what the rollout's steps and the trainer are
// made of. Neither allocates nor waits, so that a captured graph may hold it.
#pragma once

#include "cuda/cuda_model.h"
#include "kernels/cuda/activation_image.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/quantize_rows.h"

namespace quads::cuda {

using kernels::cuda::AttentionTile;
using kernels::cuda::HeadShape;
using kernels::cuda::RowPlaces;

/// Rows of a batch; device pointers.
struct DeviceRows {
  const int32_t* tokens = nullptr;  // [rows], each in the vocabulary
  RowPlaces places;                 // rows, positions, page table
  int64_t max_context = 0;          // a bound of positions + 1
  AttentionTile tile = AttentionTile::kRow;
  const uint8_t* counted = nullptr;  // [rows] whose residuals count; null: none are gathered
  // [layers][rows][top_k], of sparse layers; null: not
  int32_t* record_routing = nullptr;
  const int32_t* replay_routing = nullptr;  // experts to use instead of the router's choice
};

class DeviceBlocks {
 public:
  /// Scratch for up to max_rows rows of which max_logits_rows are asked for logits, and contexts of
  /// up to max_context positions.
  DeviceBlocks(const CudaModel& model, int64_t max_rows, int64_t max_logits_rows,
               int64_t max_context);

  /// x and y are FP32 [rows, hidden]; y may be x. kv: this layer's [pages][page_elements].
  void embed(const CudaContext& context, const DeviceRows& rows, float* x);
  void attention(const CudaContext& context, int64_t layer, const DeviceRows& rows, Bf16* kv,
                 int64_t pages, const float* x, float* y);
  void ffn(const CudaContext& context, int64_t layer, const DeviceRows& rows, const float* x,
           float* y);
  // The same in parts, for a backward that recomputes the forward: what lies before the attention,
  // and the attention; what lies before the experts' SiLU, and the quantised input of `down`.
  void attention_inputs(const CudaContext& context, int64_t layer, const DeviceRows& rows, Bf16* kv,
                        const float* x);
  void attend(const CudaContext& context, const DeviceRows& rows, const Bf16* kv, int64_t pages);
  void expand(const CudaContext& context, int64_t layer, const DeviceRows& rows, const float* x);
  void quantise_middle(const CudaContext& context, int64_t layer, const DeviceRows& rows);
  /// logits [count, vocab], FP32, of rows[i] of x; valid until the next call.
  const float* logits(const CudaContext& context, const float* x, const int32_t* rows,
                      int64_t count);

  // What the parts leave, valid until the next call.
  const Bf16* normalised() const { return h_.data(); }                  // [rows, hidden]
  const float* qkv() const { return qkv_.data(); }                      // [rows, qkv_width]
  const Bf16* queries() const { return q_.data(); }                     // [rows, q_width]
  const Bf16* attended() const { return attended_.data(); }             // [rows, q_width]
  const float* router_logits() const { return router_logits_.data(); }  // [rows, experts]
  /// Of every slot, row * top_k + choice: its expert, its weight, its place among sorted rows.
  const int32_t* ids() const { return ids_.data(); }
  const float* weights(int64_t layer) const {
    return model_.layer(layer).router != nullptr ? weights_.data() : dense_weights_.data();
  }
  const int32_t* sorted_rows() const { return sorted_rows_.data(); }
  const int32_t* expert_offsets() const { return expert_offsets_.data(); }
  const float* gate_up() const { return gate_up_.data(); }  // [sorted rows, 2 width]
  /// The images of a quantised input (expand: of gate_up, quantise_middle: of down), by sorted row.
  const kernels::cuda::ImageRow* sorted_image_rows() const { return sorted_image_rows_.data(); }
  const Bf16* q1() const { return q1_.data(); }
  const Bf16* q2() const { return q2_.data(); }
  const Bf16* logits_input() const { return logits_h_.data(); }  // [count, hidden], of logits()

  HeadShape shape() const { return shape_; }
  float attention_scale() const;
  int64_t max_rows() const { return max_rows_; }
  int64_t max_logits_rows() const { return max_logits_rows_; }
  /// Lowered to the first row whose activations are not finite (kernels/cuda/quantize_rows.h).
  int32_t* first_bad_row() const { return first_bad_row_.data(); }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  template <class T>
  DeviceArray<T> scratch(int64_t size) {
    scratch_bytes_ += size * static_cast<int64_t>(sizeof(T));
    return DeviceArray<T>(size);
  }
  void experts(const CudaContext& context, const DeviceExperts& experts, const DeviceSite& site,
               int64_t slots, float* y);
  kernels::cuda::QuantizeRows quantised(const DeviceSite& site, int64_t width,
                                        const DeviceRows& rows) const;

  const CudaModel& model_;
  HeadShape shape_;
  int64_t max_rows_, max_logits_rows_;
  int64_t max_slots_ = 0, max_experts_ = 1;
  int64_t scratch_bytes_ = 0;
  DeviceArray<Bf16> h_;  // normalised rows, or what attention gives
  DeviceArray<float> qkv_;
  DeviceArray<Bf16> q_, attended_;
  DeviceArray<uint8_t> attention_scratch_;
  DeviceArray<float> router_logits_;
  DeviceArray<int32_t> ids_;
  DeviceArray<float> weights_;
  DeviceArray<int32_t> dense_ids_;  // 0: the one expert of a dense layer
  DeviceArray<float> dense_weights_;
  DeviceArray<int32_t> expert_offsets_, sorted_rows_, sorted_tokens_;
  DeviceArray<kernels::cuda::ImageRow> image_rows_, sorted_image_rows_;
  DeviceArray<Bf16> q1_, q2_;
  DeviceArray<float> gate_up_, parts_;
  DeviceArray<float> logits_x_, logits_;
  DeviceArray<Bf16> logits_h_;
  DeviceArray<int32_t> first_bad_row_;
};

}  // namespace quads::cuda
