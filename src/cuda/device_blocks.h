// A model's blocks over rows on the device, forward: what the rollout's steps and the trainer are
// made of. Neither allocates nor waits, so that a captured graph may hold it.
#pragma once

#include "cuda/cuda_model.h"
#include "kernels/cuda/attention/attention_rows.h"
#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/experts/activation_image.h"
#include "kernels/cuda/experts/grouped_gemm.h"
#include "kernels/cuda/quantize/quantize_rows.h"

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

/// The rows that a feed-forward part's matrices take, and where: a slot is a pair of a row and one
/// of its choices, row * choices + choice. Device pointers.
struct DeviceSlots {
  int choices = 1;
  const int32_t* expert_offsets = nullptr;  // [matrices + 1]
  const int32_t* sorted_rows = nullptr;     // [slots] where each is among those sorted by expert
  const kernels::cuda::ImageRow* image_rows = nullptr;         // [slots]
  const kernels::cuda::ImageRow* sorted_image_rows = nullptr;  // by sorted row
  const int32_t* sorted_tokens = nullptr;  // by sorted row; null: sorted row r is row r
  const float* weights = nullptr;          // [slots]
  // When a row is quantised to its slots, what is older than the previous kernel: rows that are
  // sorted have just been, others have just been computed.
  kernels::cuda::OlderInput older = kernels::cuda::OlderInput::kNone;
};

/// What gate_up's product leaves for `down`: gates and ups, or silu(gate) * up, which is all that a
/// forward needs.
enum class Middle : uint8_t { kGatesUps, kActivated };

class DeviceBlocks {
 public:
  /// Scratch for up to max_rows rows of which max_logits_rows are asked for logits, and contexts of
  /// up to max_context positions.
  DeviceBlocks(const CudaModel& model, int64_t max_rows, int64_t max_logits_rows,
               int64_t max_context);

  /// x and y are FP32 [rows, hidden]; y may be x. kv: this layer's [pages][page_elements]. embed
  /// comes first: it also places the rows for matrices that every row takes.
  void embed(const CudaContext& context, const DeviceRows& rows, float* x);
  void attention(const CudaContext& context, int64_t layer, const DeviceRows& rows, Bf16* kv,
                 int64_t pages, const float* x, float* y);
  void ffn(const CudaContext& context, int64_t layer, const DeviceRows& rows, const float* x,
           float* y);
  /// All of that, in place; kv: of all layers.
  void forward(const CudaContext& context, const DeviceRows& rows, Bf16* kv, int64_t pages,
               float* x);
  // The same in parts, for a backward that recomputes the forward: what lies before the attention,
  // the attention, and the input of `out` where that is quantised; the norm and the routing; then
  // of a feed-forward part what lies before `down`, gates and ups kept or not, and its input.
  void attention_inputs(const CudaContext& context, int64_t layer, const DeviceRows& rows, Bf16* kv,
                        const float* x);
  void attend(const CudaContext& context, const DeviceRows& rows, const Bf16* kv, int64_t pages);
  void quantise_attended(const CudaContext& context, int64_t layer, const DeviceRows& rows);
  void route(const CudaContext& context, int64_t layer, const DeviceRows& rows, const float* x);
  void expand(const CudaContext& context, const DeviceFfn& ffn, const DeviceSlots& slots,
              const DeviceRows& rows, Middle middle);
  void quantise_middle(const CudaContext& context, const DeviceFfn& ffn, const DeviceSlots& slots,
                       const DeviceRows& rows, Middle middle);
  /// logits [count, vocab], FP32, of rows[i] of x; valid until the next call.
  const float* logits(const CudaContext& context, const float* x, const int32_t* rows,
                      int64_t count);

  // What the parts leave, valid until the next call.
  const Bf16* normalised() const { return h_.data(); }                  // [rows, hidden]
  const float* qkv() const { return qkv_.data(); }                      // [rows, qkv_width]
  const Bf16* queries() const { return q_.data(); }                     // [rows, q_width]
  const Bf16* attended() const { return attended_.data(); }             // [rows, q_width]
  const float* router_logits() const { return router_logits_.data(); }  // [rows, router_rows]
  const int32_t* ids() const { return ids_.data(); }                    // [rows, top_k] experts
  const float* gate_up() const { return gate_up_.data(); }  // [sorted rows, 2 width], if kept
  DeviceSlots routed(int64_t layer) const;  // of the experts; of a dense layer's one: every row
  DeviceSlots every_row() const;            // with weights of 1
  DeviceSlots shared() const;               // every row, with the shared expert's weights
  /// The images of an input that was quantised last, at its slots' places.
  const Bf16* q1() const { return q1_.data(); }
  const Bf16* q2() const { return q2_.data(); }
  /// Of an FP16 image's rows; null: the site's images are BF16.
  const float* row_scales(const DeviceSite& site) const {
    return site.format == WeightFormat::kNvfp4Fp16 ? row_scales_.data() : nullptr;
  }
  const Bf16* logits_input() const { return logits_h_.data(); }  // [count, hidden], of logits()

  HeadShape shape() const { return shape_; }
  float attention_scale() const;
  int64_t max_rows() const { return max_rows_; }
  int64_t max_logits_rows() const { return max_logits_rows_; }
  /// Lowered to the first row whose activations are not finite
  /// (kernels/cuda/quantize/quantize_rows.h).
  int32_t* first_bad_row() const { return first_bad_row_.data(); }
  int64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  template <class T>
  DeviceArray<T> scratch(int64_t size) {
    scratch_bytes_ += size * static_cast<int64_t>(sizeof(T));
    return DeviceArray<T>(size);
  }
  void multiply(const CudaContext& context, const DeviceExperts& experts, const DeviceSite& site,
                const DeviceSlots& slots, const DeviceRows& rows, float* y,
                kernels::cuda::GemmOutput output = kernels::cuda::GemmOutput::kFp32);
  void quantise_rows(const CudaContext& context, const DeviceSite& site, const Bf16* x,
                     int64_t width, const DeviceSlots& slots, const DeviceRows& rows);
  void norm(const CudaContext& context, const Bf16* weight, const DeviceRows& rows, const float* x);
  /// attention_inputs of rows that are normalised, and attention.
  void project_qkv(const CudaContext& context, int64_t layer, const DeviceRows& rows, Bf16* kv);
  void attention_of_normalised(const CudaContext& context, int64_t layer, const DeviceRows& rows,
                               Bf16* kv, int64_t pages, const float* x, float* y);
  /// y = x + what the last product gave (parts_), weighted; with `next_norm`, the weight of a norm,
  /// also what that gives of y.
  void add_parts(const CudaContext& context, const DeviceSlots& slots, const DeviceRows& rows,
                 const float* x, float* y, const Bf16* next_norm);
  void add_ffn(const CudaContext& context, const DeviceFfn& ffn, const DeviceSlots& slots,
               const DeviceRows& rows, const float* x, float* y, const Bf16* next_norm);
  void ffn_and_norm(const CudaContext& context, int64_t layer, const DeviceRows& rows,
                    const float* x, float* y, const Bf16* next_norm);
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
  DeviceArray<float> weights_, shared_weights_;
  DeviceArray<int32_t> expert_offsets_, sorted_rows_, sorted_tokens_;
  DeviceArray<kernels::cuda::ImageRow> image_rows_, sorted_image_rows_;
  // The same of one expert that every row takes.
  bool has_every_row_ = false;
  DeviceArray<int32_t> zeros_, every_offsets_, every_rows_;
  DeviceArray<kernels::cuda::ImageRow> every_image_rows_;
  DeviceArray<float> ones_;
  DeviceArray<Bf16> q1_, q2_;
  DeviceArray<float> row_scales_;
  DeviceArray<float> gate_up_, parts_;
  DeviceArray<float> logits_x_, logits_;
  DeviceArray<Bf16> logits_h_;
  DeviceArray<int32_t> first_bad_row_;
};

}  // namespace quads::cuda
