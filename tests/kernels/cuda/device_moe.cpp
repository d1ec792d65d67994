// Experts on the device.
#include "kernels/cuda/device_moe.h"

#include <algorithm>
#include <bit>
#include <climits>

#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/experts/fragment_weights.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kGuardRows = 4;

std::vector<uint8_t> pack_all(const std::vector<Nvfp4Matrix>& weights,
                              const Compensation& compensation, const FragmentForm& form) {
  const int64_t bytes = fragment_bytes(weights[0].rows, weights[0].k);
  std::vector<uint8_t> packed(bytes * weights.size());
  for (size_t e = 0; e < weights.size(); ++e) {
    pack_fragments(weights[e], compensation.positions, std::span(packed).subspan(e * bytes, bytes),
                   form);
  }
  return packed;
}

std::vector<float> scales_of(const std::vector<Nvfp4Matrix>& weights) {
  std::vector<float> scales;
  for (const Nvfp4Matrix& w : weights) scales.push_back(w.global_scale);
  return scales;
}

template <class T>
std::unique_ptr<DeviceArray<T>> array_of(size_t size) {
  return std::make_unique<DeviceArray<T>>(size);
}

}  // namespace

DeviceMoe::DeviceMoe(const std::vector<Nvfp4Matrix>& weights, Compensation compensation,
                     const FragmentForm& form)
    : compensation_(std::move(compensation)),
      format_(form.format),
      experts_(static_cast<int>(weights.size())),
      n_(weights[0].rows),
      k_(weights[0].k),
      weights_(pack_all(weights, compensation_, form)),
      global_scales_(scales_of(weights)),
      positions_(compensation_.positions),
      channels_(compensation_.channels),
      bad_(1) {}

int DeviceMoe::residual_stages() const {
  if (format_ == WeightFormat::kNvfp4Fp16) return 0;
  return stages_of(compensation_.residual_blocks * kNvfp4Block);
}

void DeviceMoe::load(const Routing& routing, const std::vector<Bf16>& x) {
  tokens_ = static_cast<int64_t>(x.size()) / k_;
  rows_ = routing.rows();
  copies_ = tokens_ == 0 ? 1 : static_cast<int>(routing.sorted_rows.size() / tokens_);
  offsets_ = std::make_unique<DeviceArray<int32_t>>(routing.offsets);
  image_rows_ = std::make_unique<DeviceArray<ImageRow>>(places_of_choices(routing));
  x_ = std::make_unique<DeviceArray<Bf16>>(x);
  const int64_t padded =
      padded_rows_bound(static_cast<int64_t>(routing.sorted_rows.size()), experts_);
  q1_ = array_of<uint16_t>(padded * stages_of(k_) * kStageK);
  q2_ = array_of<uint16_t>(padded * residual_stages() * kStageK);
  row_scales_ = array_of<float>(format_ == WeightFormat::kNvfp4Fp16 ? padded : 0);
  y_ = array_of<uint32_t>((rows_ + kGuardRows) * n_);
  q1_->fill_bytes(0xFF);
  q2_->fill_bytes(0xFF);
  row_scales_->fill_bytes(0xFF);
  poison_y();
  bad_.upload({INT_MAX});
}

void DeviceMoe::quantize(const CudaContext& context) {
  QuantizeRows args;
  args.format = format_;
  args.x = x_->data();
  args.ldx = k_;
  args.rows = tokens_;
  args.k = k_;
  args.image_rows = image_rows_->data();
  args.copies = copies_;
  args.block_position = compensation_.positions.empty() ? nullptr : positions_.data();
  args.residual_blocks = compensation_.residual_blocks;
  args.channel_mask = compensation_.channels.empty() ? nullptr : channels_.data();
  args.scale_floor = compensation_.scale_floor;
  args.q1 = reinterpret_cast<Bf16*>(q1_->data());
  args.q2 = reinterpret_cast<Bf16*>(q2_->data());
  args.row_scales = row_scales_->data();
  args.first_bad_row = bad_.data();
  quantize_rows(context, args);
}

GroupedGemm DeviceMoe::gemm(GemmOutput output) {
  GroupedGemm gemm;
  gemm.experts = experts_;
  gemm.n = n_;
  gemm.k = k_;
  gemm.format = format_;
  gemm.weights = weights_.data();
  gemm.global_scales = global_scales_.data();
  gemm.expert_offsets = offsets_->data();
  gemm.q1 = reinterpret_cast<const Bf16*>(q1_->data());
  gemm.q2 = reinterpret_cast<const Bf16*>(q2_->data());
  gemm.row_scales = row_scales_->data();
  gemm.residual_stages = residual_stages();
  gemm.y = y_->data();
  gemm.output = output;
  gemm.rows_bound = static_cast<int64_t>(image_rows_->size());
  return gemm;
}

std::vector<uint32_t> DeviceMoe::y_bits(GemmOutput output) const {
  const std::vector<uint32_t> words = y_->download();
  const bool rounded = output == GemmOutput::kSilu;
  const int64_t count = rows_ * (rounded ? n_ / 2 : n_);
  std::vector<uint32_t> bits(count);
  for (int64_t i = 0; i < count; ++i) {
    bits[i] = rounded ? words[i / 2] >> (i % 2 * 16) & 0xFFFFU : words[i];
  }
  const int64_t used = rounded ? count / 2 : count;
  const bool clean = std::all_of(words.begin() + used, words.end(),
                                 [](uint32_t word) { return word == 0xFFFFFFFFU; });
  EXPECT_TRUE(clean) << "something was written behind y";
  return bits;
}

std::vector<uint32_t> DeviceMoe::multiply(GemmTile tile, GemmOutput output) {
  poison_y();
  grouped_gemm(make_context(nullptr), gemm(output), tile);
  finish(tile_name(tile));
  return y_bits(output);
}

std::vector<uint32_t> silu_mul_bits(const std::vector<uint32_t>& gates_ups, int64_t rows,
                                    int64_t width) {
  std::vector<float> values;
  for (const uint32_t bits : gates_ups) values.push_back(std::bit_cast<float>(bits));
  std::vector<Bf16> h(static_cast<size_t>(rows * width));
  const FlushDenormals flush;
  cpu_kernels(best_isa()).rows.silu_mul(values.data(), 2 * width, rows, width, h.data(), width);
  std::vector<uint32_t> bits;
  for (const Bf16 x : h) bits.push_back(x.bits);
  return bits;
}

std::vector<Bf16> token_rows(const std::vector<int64_t>& tokens, int64_t k) {
  std::vector<Bf16> x;
  x.reserve(tokens.size() * k);
  for (const int64_t token : tokens) {
    const std::vector<Bf16> row = token_row(token, k);
    x.insert(x.end(), row.begin(), row.end());
  }
  return x;
}

std::vector<Nvfp4Matrix> random_experts(int count, int64_t n, int64_t k, uint64_t seed) {
  std::vector<Nvfp4Matrix> experts;
  for (int e = 0; e < count; ++e) experts.push_back(random_weight(n, k, seed + e));
  return experts;
}

}  // namespace quads::kernels::cuda
