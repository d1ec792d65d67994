#include "bench/expert_layer.h"

#include <algorithm>
#include <climits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/fill_random.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "kernels/cuda/quantize/quantize_weights.h"
#include "kernels/cuda/rows/token_rows.h"

namespace quads::bench {
namespace {

namespace k = kernels::cuda;
using cuda::check_cuda;
using cuda::DeviceArray;
using k::WeightFormat;

void finish(const char* what) { check_cuda(cudaStreamSynchronize(nullptr), what); }

template <class T>
DeviceArray<T> uploaded(const std::vector<T>& values) {
  DeviceArray<T> array(std::ssize(values));
  array.upload(values, nullptr);
  finish("copying to the device");
  return array;
}

void fill(const DeviceArray<Bf16>& values, float deviation) {
  k::fill_random(k::make_context(nullptr), {.values = values.data(),
                                            .count = values.size(),
                                            .valid = values.size(),
                                            .deviation = deviation});
}

// Where masks move the blocks of K to: anywhere.
std::vector<int32_t> shuffled(int64_t blocks) {
  std::vector<int32_t> positions(static_cast<size_t>(blocks));
  std::iota(positions.begin(), positions.end(), 0);
  RandomSequence random(1, RandomStream::kShuffle, 0);
  for (int64_t i = blocks - 1; i > 0; --i) {
    std::swap(positions[i], positions[random.below(static_cast<uint32_t>(i + 1))]);
  }
  return positions;
}

// Of a router without preferences.
std::vector<float> random_logits(int64_t count) {
  std::vector<float> logits(static_cast<size_t>(count));
  RandomSequence random(1, RandomStream::kTask, 0);
  for (float& z : logits) z = random.uniform();
  return logits;
}

int64_t slots_of(const ExpertShape& shape, int64_t tokens) {
  const int64_t slots = tokens * shape.top_k;
  require(slots <= k::kMaxSlots, "{} tokens of {} experts each: at most {} tokens", tokens,
          shape.top_k, k::kMaxSlots / shape.top_k);
  return slots;
}

int64_t image_size(const ExpertShape& shape, int64_t slots) {
  return k::image_elements(slots, shape.experts, k::stages_of(std::max(shape.hidden, shape.width)));
}

}  // namespace

MatrixShape matrix_of(const ExpertShape& shape, Projection projection) {
  return projection == Projection::kGateUp ? MatrixShape{2 * shape.width, shape.hidden}
                                           : MatrixShape{shape.hidden, shape.width};
}

DeviceArray<Bf16> random_experts(const ExpertShape& shape, Projection projection) {
  constexpr float kDeviation = 0.02F;  // as models are initialised
  DeviceArray<Bf16> weights(shape.experts * matrix_of(shape, projection).size());
  fill(weights, kDeviation);
  finish("making weights");
  return weights;
}

int weight_copies(int64_t bytes) {
  int device = 0, cache = 0;
  check_cuda(cudaGetDevice(&device), "finding a device");
  check_cuda(cudaDeviceGetAttribute(&cache, cudaDevAttrL2CacheSize, device),
             "reading the size of the L2 cache");
  return static_cast<int>(std::clamp<int64_t>(int64_t{6} * cache / bytes, 3, 12));
}

ExpertLayer::Weights ExpertLayer::make_weights(Projection projection,
                                               const DeviceArray<int32_t>& positions) const {
  const k::CudaContext context = k::make_context(nullptr);
  Weights w;
  w.shape = matrix_of(shape_, projection);
  w.bytes = shape_.experts * k::fragment_bytes(w.shape.n, w.shape.k, format_);
  w.copies = weight_copies(w.bytes);
  w.fragments = DeviceArray<uint8_t>(w.copies * w.bytes);
  w.global_scales = DeviceArray<float>(shape_.experts);
  w.global_scales.clear(context.stream);
  const DeviceArray<Bf16> values = random_experts(shape_, projection);
  const DeviceArray<uint32_t> amax(shape_.experts), scratch(shape_.experts);
  k::quantize_weights(context, {.format = format_,
                                .matrices = shape_.experts,
                                .w = values.data(),
                                .stride = w.shape.size(),
                                .n = w.shape.n,
                                .k = w.shape.k,
                                .block_position = k::is_nvfp4(format_) ? positions.data() : nullptr,
                                .paired = projection == Projection::kGateUp,
                                .fragments = w.fragments.data(),
                                .global_scales = w.global_scales.data(),
                                .amax_bits = amax.data(),
                                .scratch = scratch.data()});
  for (int i = 1; i < w.copies; ++i) {
    check_cuda(cudaMemcpyAsync(w.fragments.data() + i * w.bytes, w.fragments.data(),
                               static_cast<size_t>(w.bytes), cudaMemcpyDeviceToDevice, nullptr),
               "copying weights");
  }
  finish("quantising weights");
  return w;
}

ExpertLayer::ExpertLayer(const ExpertShape& shape, WeightFormat format, int64_t max_tokens)
    : shape_(shape),
      format_(format),
      hidden_positions_(uploaded(shuffled(shape.hidden / 16))),
      width_positions_(uploaded(shuffled(shape.width / 16))),
      gate_up_(make_weights(Projection::kGateUp, hidden_positions_)),
      down_(make_weights(Projection::kDown, width_positions_)),
      x_(max_tokens * shape.hidden),
      logits_(uploaded(random_logits(max_tokens * shape.experts))),
      choice_weights_(slots_of(shape, max_tokens)),
      expanded_(choice_weights_.size() * shape.width),
      parts_(choice_weights_.size() * shape.hidden),
      y_(max_tokens * shape.hidden),
      ids_(choice_weights_.size()),
      offsets_(shape.experts + 1),
      sorted_rows_(choice_weights_.size()),
      sorted_tokens_(choice_weights_.size()),
      image_rows_(choice_weights_.size()),
      sorted_image_rows_(choice_weights_.size()),
      q1_(image_size(shape, choice_weights_.size())),
      q2_(format == WeightFormat::kNvfp4 ? q1_.size() : 0),
      row_scales_(k::padded_rows_bound(choice_weights_.size(), shape.experts)),
      residual_sums_(uploaded(std::vector<int64_t>(std::max(shape.hidden, shape.width)))),
      first_bad_row_(uploaded(std::vector<int32_t>{INT_MAX})) {
  fill(x_, 1.0F);
  y_.clear(nullptr);
  finish("making activations");
}

int ExpertLayer::residual_blocks(Projection projection) const {
  return static_cast<int>(matrix_of(shape_, projection).k / 16 * percent_ / 100);
}

void ExpertLayer::prepare(int64_t tokens, int percent) {
  tokens_ = tokens;
  percent_ = percent;
  all(k::make_context(nullptr), 0);
  std::vector<int32_t> offsets(static_cast<size_t>(offsets_.size()));
  check_cuda(cudaMemcpy(offsets.data(), offsets_.data(), offsets_.bytes(), cudaMemcpyDeviceToHost),
             "a layer");
  used_experts_ = 0;
  for (int e = 0; e < shape_.experts; ++e) used_experts_ += offsets[e + 1] > offsets[e];
}

void ExpertLayer::route(const CudaContext& context) {
  k::route_rows(context, {.logits = logits_.data(),
                          .ldl = shape_.experts,
                          .rows = tokens_,
                          .experts = shape_.experts,
                          .top_k = shape_.top_k,
                          .normalise = true,
                          .ids = ids_.data(),
                          .weights = choice_weights_.data()});
}

void ExpertLayer::sort(const CudaContext& context) {
  k::sort_slots(context, {.ids = ids_.data(),
                          .slots = tokens_ * shape_.top_k,
                          .experts = shape_.experts,
                          .top_k = shape_.top_k,
                          .expert_offsets = offsets_.data(),
                          .sorted_rows = sorted_rows_.data(),
                          .image_rows = image_rows_.data(),
                          .sorted_image_rows = sorted_image_rows_.data(),
                          .sorted_tokens = sorted_tokens_.data()});
}

void ExpertLayer::quantize(const CudaContext& context, Projection projection) {
  const bool nvfp4 = k::is_nvfp4(format_);
  k::QuantizeRows args;
  args.format = format_;
  if (projection == Projection::kGateUp) {
    args.x = x_.data();
    args.ldx = args.k = shape_.hidden;
    args.rows = tokens_;
    args.image_rows = image_rows_.data();
    args.copies = shape_.top_k;
    args.older = k::OlderInput::kRows;
    args.block_position = nvfp4 ? hidden_positions_.data() : nullptr;
  } else {
    args.x = expanded_.data();
    args.ldx = args.k = shape_.width;
    args.rows = tokens_ * shape_.top_k;
    args.image_rows = sorted_image_rows_.data();
    args.older = k::OlderInput::kPlaces;
    args.block_position = nvfp4 ? width_positions_.data() : nullptr;
  }
  args.residual_blocks = residual_blocks(projection);
  args.scale_floor = format_ == WeightFormat::kNvfp4Fp16;
  args.residual_sums = count_residuals_ ? residual_sums_.data() : nullptr;
  args.q1 = q1_.data();
  args.q2 = q2_.data();
  args.row_scales = row_scales_.data();
  args.first_bad_row = first_bad_row_.data();
  k::quantize_rows(context, args);
}

k::GroupedGemm ExpertLayer::gemm(Projection projection, int copy) const {
  const bool first = projection == Projection::kGateUp;
  const Weights& w = first ? gate_up_ : down_;
  k::GroupedGemm gemm;
  gemm.experts = shape_.experts;
  gemm.n = w.shape.n;
  gemm.k = w.shape.k;
  gemm.format = format_;
  gemm.weights = w.fragments.data() + copy % w.copies * w.bytes;
  gemm.global_scales = w.global_scales.data();
  gemm.expert_offsets = offsets_.data();
  gemm.q1 = q1_.data();
  gemm.q2 = q2_.data();
  gemm.row_scales = row_scales_.data();
  const bool two_passes = format_ == WeightFormat::kNvfp4;
  gemm.residual_stages = two_passes ? k::stages_of(residual_blocks(projection) * 16) : 0;
  gemm.y = parts_.data();
  if (first) {
    gemm.y = expanded_.data();
    gemm.output = k::GemmOutput::kSilu;
  }
  gemm.rows_bound = tokens_ * shape_.top_k;
  return gemm;
}

void ExpertLayer::multiply(const CudaContext& context, Projection projection, int copy) {
  k::grouped_gemm(context, gemm(projection, copy));
}

void ExpertLayer::combine(const CudaContext& context) {
  k::combine_rows(context, {.x = y_.data(),
                            .parts = parts_.data(),
                            .sorted_rows = sorted_rows_.data(),
                            .weights = choice_weights_.data(),
                            .rows = tokens_,
                            .d = shape_.hidden,
                            .top_k = shape_.top_k,
                            .y = y_.data()});
}

void ExpertLayer::all(const CudaContext& context, int copy) {
  route(context);
  sort(context);
  quantize(context, Projection::kGateUp);
  multiply(context, Projection::kGateUp, copy);
  quantize(context, Projection::kDown);
  multiply(context, Projection::kDown, copy);
  combine(context);
}

}  // namespace quads::bench
