#include "ops/packed_weight.h"

#include <ATen/ops/empty.h>

#include "numerics/nvfp4.h"
#include "ops/parallel.h"
#include "ops/tensor_checks.h"

namespace quads::ops {

using kernels::PackedMatrix;
using kernels::WeightFormat;

namespace {

constexpr int64_t kStrip = 128;  // rows of a task; FP8's block

int64_t strips_of(int64_t n) { return (n + kStrip - 1) / kStrip; }

int64_t round_up_64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

void unpack_strips(const PackedMatrix* matrices, int64_t count, Bf16* out) {
  const int64_t n = matrices[0].n, k = matrices[0].k, strips = strips_of(n);
  parallel_tasks(count * strips, [&](const kernels::CpuContext&, int64_t task) {
    const PackedMatrix& matrix = matrices[task / strips];
    const int64_t begin = task % strips * kStrip;
    PackedMatrix strip = matrix;
    strip.n = std::min(kStrip, n - begin);
    strip.tiles += kernels::packed_tile_bytes(matrix.format, begin, k);
    strip.scales += kernels::packed_scale_bytes(matrix.format, begin, k);
    kernels::unpack(strip, nullptr, out + (task / strips * n + begin) * k, k);
  });
}

}  // namespace

PackedWeight::PackedWeight(const at::Tensor& w, WeightFormat format, std::string_view where) {
  const int64_t experts = w.size(0), n = w.size(1), k = w.size(2);
  tiles_ = at::empty({experts, round_up_64(kernels::packed_tile_bytes(format, n, k))}, at::kByte);
  scales_ = at::empty({experts, round_up_64(kernels::packed_scale_bytes(format, n, k))}, at::kByte);
  matrices_.resize(static_cast<size_t>(experts));
  const Bf16* values = bf16_data(w);

  parallel_tasks(experts, [&](const kernels::CpuContext& context, int64_t e) {
    const kernels::AmaxResult amax = context.gemm().amax(values + e * n * k, n * k);
    require(amax.non_finite < 0, "{} is not finite at expert {}, row {}, column {}", where, e,
            amax.non_finite / k, amax.non_finite % k);
    // Rounding may raise a value by 1/16: it must stay within BF16's range.
    require(format == WeightFormat::kBf16 || amax.amax < 0x1.ep127F,
            "{} has amax {} at expert {}: too large for quantised values in BF16", where, amax.amax,
            e);
    PackedMatrix& matrix = matrices_[static_cast<size_t>(e)];
    matrix.format = format;
    matrix.n = n;
    matrix.k = k;
    matrix.tiles = tiles_.mutable_data_ptr<uint8_t>() + e * tiles_.size(1);
    matrix.scales = scales_.mutable_data_ptr<uint8_t>() + e * scales_.size(1);
    matrix.alpha = format == WeightFormat::kNvfp4 ? global_scale_pow2(amax.amax) : 1.0F;
  });
  const int64_t strips = strips_of(n);
  parallel_tasks(experts * strips, [&](const kernels::CpuContext& context, int64_t task) {
    const int64_t e = task / strips, begin = task % strips * kStrip;
    kernels::PackArgs args{};
    args.w = values + e * n * k;
    args.ldw = k;
    args.out = &matrices_[static_cast<size_t>(e)];
    args.global_scale = args.out->alpha;
    args.n_begin = begin;
    args.n_end = std::min(n, begin + kStrip);
    context.gemm().pack(args);
  });
}

at::Tensor PackedWeight::dequantized() const {
  const auto experts = std::ssize(matrices_);
  at::Tensor out = at::empty({experts, matrices_[0].n, matrices_[0].k}, at::kBFloat16);
  unpack_strips(matrices_.data(), experts, mutable_bf16_data(out));
  return out;
}

at::Tensor unpack(const PackedMatrix& matrix) {
  at::Tensor out = at::empty({matrix.n, matrix.k}, at::kBFloat16);
  unpack_strips(&matrix, 1, mutable_bf16_data(out));
  return out;
}

}  // namespace quads::ops
