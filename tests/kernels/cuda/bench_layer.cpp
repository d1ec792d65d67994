// The experts of one layer on a device.
#include "kernels/cuda/bench_layer.h"

#include <climits>

#include "base/random.h"
#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/moe_problem.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "kernels/cuda/rows/token_rows.h"
#include "numerics/nvfp4.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kMaxSlotsOfBench = kBenchMaxTokens * kBenchTopK;
constexpr int kDistinctTokens = 512;

void pack(int64_t n, int64_t k, WeightFormat format, const std::vector<int32_t>& positions,
          bool paired, int seed, std::span<uint8_t> out) {
  switch (format) {
    case WeightFormat::kNvfp4:
    case WeightFormat::kNvfp4Fp16:
      return pack_fragments(random_weight(n, k, seed), positions, out, {format, paired});
    case WeightFormat::kFp8:
      return pack_fp8_fragments(random_fp8_weight(n, k, seed), out);
    case WeightFormat::kBf16: {
      const Nvfp4Matrix w = random_weight(n, k, seed);
      return pack_bf16_fragments(as_bf16(dequantise_nvfp4(w, "w")), n, k, out);
    }
  }
}

}  // namespace

BenchWeights::BenchWeights(int64_t n, int64_t k, WeightFormat format,
                           const std::vector<int32_t>& positions, bool paired) {
  const int64_t bytes = fragment_bytes(n, k, format);
  std::vector<uint8_t> two(2 * bytes);
  for (int e = 0; e < 2; ++e) {
    pack(n, k, format, positions, paired, e, std::span(two).subspan(e * bytes, bytes));
  }
  const DeviceArray<uint8_t> packed(two);
  for (auto& set : sets_) {
    set = std::make_unique<DeviceArray<uint8_t>>(kBenchExperts * bytes);
    for (int e = 0; e < kBenchExperts; e += 2) {
      set->copy_from(packed, e * bytes);
    }
  }
}

BenchLayer::BenchLayer(WeightFormat format)
    : format_(format),
      hidden_positions_(shuffled_positions(kBenchHidden / 16, 1)),
      width_positions_(shuffled_positions(kBenchWidth / 16, 2)),
      device_hidden_positions_(hidden_positions_),
      device_width_positions_(width_positions_),
      gate_up_(2 * kBenchWidth, kBenchHidden, format, hidden_positions_, is_nvfp4(format)),
      down_(kBenchHidden, kBenchWidth, format, width_positions_, false),
      global_scales_(std::vector<float>(kBenchExperts, 0x1p-9F)),
      x_(kBenchMaxTokens * kBenchHidden),
      logits_(kBenchMaxTokens * kBenchExperts),
      choice_weights_(kMaxSlotsOfBench),
      gate_up_y_(kMaxSlotsOfBench * 2 * kBenchWidth),
      parts_(kMaxSlotsOfBench * kBenchHidden),
      y_(std::vector<float>(kBenchMaxTokens * kBenchHidden, 0.5F)),
      ids_(kMaxSlotsOfBench),
      offsets_(kBenchExperts + 1),
      sorted_rows_(kMaxSlotsOfBench),
      sorted_tokens_(kMaxSlotsOfBench),
      image_rows_(kMaxSlotsOfBench),
      sorted_image_rows_(kMaxSlotsOfBench),
      q1_(image_elements(kMaxSlotsOfBench, kBenchExperts, stages_of(kBenchHidden))),
      q2_(q1_.size()),
      row_scales_(padded_rows_bound(kMaxSlotsOfBench, kBenchExperts)),
      residual_sums_(std::vector<int64_t>(kBenchHidden)),
      bad_(std::vector<int32_t>{INT_MAX}) {
  std::vector<Bf16> x;
  std::vector<float> logits;
  for (int token = 0; token < kBenchMaxTokens; ++token) {
    if (token < kDistinctTokens) {
      const std::vector<Bf16> row = token_row(token, kBenchHidden);
      x.insert(x.end(), row.begin(), row.end());
    } else {
      x.insert(x.end(), x.end() - kDistinctTokens * kBenchHidden,
               x.end() - (kDistinctTokens - 1) * kBenchHidden);
    }
    RandomSequence random(1, RandomStream::kTask, token);
    std::vector<float> row(kBenchExperts);
    for (float& z : row) z = random.uniform();
    for (int j = 0; j < kBenchTopK; ++j) {
      row[hashed_expert(token, j, kBenchExperts)] += 2.0F;
    }
    logits.insert(logits.end(), row.begin(), row.end());
  }
  x_.upload(x);
  logits_.upload(logits);
}

int BenchLayer::blocks_of(Projection projection) const {
  const int64_t k = projection == Projection::kGateUp ? kBenchHidden : kBenchWidth;
  return static_cast<int>(k / 16 * percent_ / 100);
}

void BenchLayer::prepare(int tokens, int percent) {
  tokens_ = tokens;
  percent_ = percent;
  all(make_context(nullptr), 0);
  finish("a layer");
  const std::vector<int32_t> offsets = offsets_.download();
  used_experts_ = 0;
  for (int e = 0; e < kBenchExperts; ++e) used_experts_ += offsets[e + 1] > offsets[e];
}

void BenchLayer::route(const CudaContext& context) {
  RouteRows args;
  args.logits = logits_.data();
  args.ldl = args.experts = kBenchExperts;
  args.rows = tokens_;
  args.top_k = kBenchTopK;
  args.normalise = true;
  args.ids = ids_.data();
  args.weights = choice_weights_.data();
  route_rows(context, args);
}

void BenchLayer::sort(const CudaContext& context) {
  SortSlots args;
  args.ids = ids_.data();
  args.slots = tokens_ * kBenchTopK;
  args.experts = kBenchExperts;
  args.top_k = kBenchTopK;
  args.expert_offsets = offsets_.data();
  args.sorted_rows = sorted_rows_.data();
  args.image_rows = image_rows_.data();
  args.sorted_image_rows = sorted_image_rows_.data();
  args.sorted_tokens = sorted_tokens_.data();
  sort_slots(context, args);
}

void BenchLayer::quantize(const CudaContext& context, Projection projection) {
  const bool nvfp4 = is_nvfp4(format_);
  QuantizeRows args;
  args.format = format_;
  if (projection == Projection::kGateUp) {
    args.x = x_.data();
    args.ldx = args.k = kBenchHidden;
    args.rows = tokens_;
    args.image_rows = image_rows_.data();
    args.copies = kBenchTopK;
    args.block_position = nvfp4 ? device_hidden_positions_.data() : nullptr;
  } else {
    if (activates()) {
      args.x = reinterpret_cast<const Bf16*>(gate_up_y_.data());
      args.ldx = kBenchWidth;
    } else {
      args.gate_up = gate_up_y_.data();
      args.ldx = 2 * kBenchWidth;
    }
    args.k = kBenchWidth;
    args.rows = tokens_ * kBenchTopK;
    args.image_rows = sorted_image_rows_.data();
    args.block_position = nvfp4 ? device_width_positions_.data() : nullptr;
  }
  args.residual_blocks = blocks_of(projection);
  args.scale_floor = format_ == WeightFormat::kNvfp4Fp16;
  args.row_scales = row_scales_.data();
  args.residual_sums = statistics_ ? residual_sums_.data() : nullptr;
  args.q1 = reinterpret_cast<Bf16*>(q1_.data());
  args.q2 = reinterpret_cast<Bf16*>(q2_.data());
  args.first_bad_row = bad_.data();
  quantize_rows(context, args);
}

GroupedGemm BenchLayer::gemm(Projection projection, int set) {
  const bool first = projection == Projection::kGateUp;
  GroupedGemm gemm;
  gemm.experts = kBenchExperts;
  gemm.n = first ? 2 * kBenchWidth : kBenchHidden;
  gemm.k = first ? kBenchHidden : kBenchWidth;
  gemm.format = format_;
  gemm.weights = (first ? gate_up_ : down_).set(set);
  gemm.global_scales = global_scales_.data();
  gemm.expert_offsets = offsets_.data();
  gemm.q1 = reinterpret_cast<const Bf16*>(q1_.data());
  gemm.q2 = reinterpret_cast<const Bf16*>(q2_.data());
  gemm.row_scales = row_scales_.data();
  const bool two_passes = format_ == WeightFormat::kNvfp4;
  gemm.residual_stages = two_passes ? stages_of(blocks_of(projection) * 16) : 0;
  gemm.y = first ? gate_up_y_.data() : parts_.data();
  if (first && is_nvfp4(format_)) {
    gemm.output = activates() ? GemmOutput::kSilu : GemmOutput::kGatesUps;
  }
  gemm.rows_bound = tokens_ * kBenchTopK;
  return gemm;
}

void BenchLayer::multiply(const CudaContext& context, Projection projection, int set,
                          GemmTile tile) {
  grouped_gemm(context, gemm(projection, set), tile);
}
void BenchLayer::multiply(const CudaContext& context, Projection projection, int set) {
  grouped_gemm(context, gemm(projection, set));
}

void BenchLayer::combine(const CudaContext& context) {
  CombineRows args;
  args.x = args.y = y_.data();
  args.parts = parts_.data();
  args.sorted_rows = sorted_rows_.data();
  args.weights = choice_weights_.data();
  args.rows = tokens_;
  args.d = kBenchHidden;
  args.top_k = kBenchTopK;
  combine_rows(context, args);
}

void BenchLayer::all(const CudaContext& context, int set) {
  route(context);
  sort(context);
  quantize(context, Projection::kGateUp);
  multiply(context, Projection::kGateUp, set);
  quantize(context, Projection::kDown);
  multiply(context, Projection::kDown, set);
  combine(context);
}

}  // namespace quads::kernels::cuda
