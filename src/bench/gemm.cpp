#include "bench/gemm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "aten/aten_engine.h"
#include "base/aligned_buffer.h"
#include "base/error.h"
#include "base/random.h"
#include "bench/machine.h"
#include "kernels/cpu/linear.h"

namespace quads::bench {
namespace {

using kernels::CpuContext;
using kernels::Operand;
using kernels::PackedMatrix;
using kernels::WeightFormat;

struct Kind {
  const char* name;
  WeightFormat format;
  double compensated;  // share of K
};

constexpr Kind kKinds[] = {{"nvfp4", WeightFormat::kNvfp4, 0},
                           {"nvfp4-rac50", WeightFormat::kNvfp4, .5},
                           {"nvfp4-rac100", WeightFormat::kNvfp4, 1},
                           {"fp8", WeightFormat::kFp8, 0},
                           {"bf16", WeightFormat::kBf16, 0}};

// Random bytes, each masked with `mask`.
void fill_bytes(uint8_t* bytes, int64_t count, uint8_t mask) {
  uint64_t state = 0x9E3779B97F4A7C15U;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    bytes[i] = static_cast<uint8_t>(state >> 56) & mask;
  }
}

// BF16 values in [-1, 1); the same ones again after a while.
void fill_bf16(Bf16* values, int64_t count) {
  constexpr int64_t kPeriod = (1 << 16) + 1;
  RandomSequence random(1, RandomStream::kInit, 1);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = i < kPeriod ? to_bf16(random.uniform() * 2 - 1) : values[i - kPeriod];
  }
}

// `count` weights with random values, laid out as the kernels read them.
class Weights {
 public:
  Weights(WeightFormat format, int64_t n, int64_t k, int64_t count)
      : tile_bytes_(kernels::packed_tile_bytes(format, n, k)),
        scale_bytes_(kernels::packed_scale_bytes(format, n, k)),
        tiles_(tile_bytes_ * count),
        scales_(scale_bytes_ * count) {
    switch (format) {
      case WeightFormat::kNvfp4:
        fill_bytes(tiles_.data(), tiles_.size(), 0xFF);
        std::fill_n(scales_.data(), scales_.size(), uint8_t{0x38});  // 1 in E4M3
        break;
      case WeightFormat::kFp8:
        fill_bytes(tiles_.data(), tiles_.size(), 0xBF);  // below 2: never a NaN
        break;
      case WeightFormat::kBf16:
        fill_bf16(reinterpret_cast<Bf16*>(tiles_.data()), tiles_.size() / 2);
        break;
    }
    for (int64_t i = 0; i < count; ++i) {
      PackedMatrix& matrix = matrices_.emplace_back();
      matrix.format = format;
      matrix.n = n;
      matrix.k = k;
      matrix.tiles = tiles_.data() + i * tile_bytes_;
      matrix.scales = scale_bytes_ > 0 ? scales_.data() + i * scale_bytes_ : nullptr;
    }
  }
  const std::vector<PackedMatrix>& matrices() const { return matrices_; }
  int64_t bytes_each() const { return tile_bytes_ + scale_bytes_; }

 private:
  int64_t tile_bytes_, scale_bytes_;
  AlignedBuffer<uint8_t> tiles_, scales_;
  std::vector<PackedMatrix> matrices_;
};

// How many weights of `bytes` the caches cannot hold.
int64_t rotation(int64_t bytes) {
  const int64_t wanted =
      std::clamp<int64_t>(3 * last_level_cache_bytes(), int64_t{128} << 20, int64_t{768} << 20);
  return std::max<int64_t>(2, wanted / bytes);
}

struct Activations {
  AlignedBuffer<Bf16> q1, q2;
  Activations(int64_t rows, int64_t k) : q1(rows * k), q2(rows * k) {
    fill_bf16(q1.data(), q1.size());
    fill_bf16(q2.data(), q2.size());
  }
  Operand operand(int64_t k, double compensated) const {
    const int64_t all = k / 32;
    const int64_t tiles = std::lround(compensated * static_cast<double>(all));
    return {.q1 = q1.data(),
            .q2 = tiles > 0 ? q2.data() : nullptr,
            .ld1 = k,
            .ld2 = tiles > 0 ? k : 0,
            .residual_tiles = tiles};
  }
};

double aten_seconds(const GemmShape& shape, int64_t m, const Bf16* x, int64_t count) {
  AlignedBuffer<Bf16> weights(shape.n * shape.k * count);
  fill_bf16(weights.data(), weights.size());
  std::vector<std::unique_ptr<LinearLayer>> layers;
  for (int64_t i = 0; i < count; ++i) {
    layers.push_back(
        aten_engine().make_linear(weights.data() + i * shape.n * shape.k, shape.n, shape.k, x, m));
  }
  size_t next = 0;
  return median_seconds([&] { layers[next++ % layers.size()]->run(); });
}

double our_seconds(const CpuContext& context, const Weights& weights, const Operand& operand,
                   int64_t m) {
  AlignedBuffer<float> y(m * weights.matrices()[0].n);
  size_t next = 0;
  return median_seconds([&] {
    const PackedMatrix& matrix = weights.matrices()[next++ % weights.matrices().size()];
    kernels::linear(context, operand, m, matrix, y.data(), matrix.n);
  });
}

}  // namespace

Result bench_gemm(kernels::CpuRuntime& runtime, const std::vector<GemmShape>& shapes,
                  const std::vector<int64_t>& rows) {
  const CpuContext context = runtime.context();
  const double bandwidth = read_bandwidth(context);
  Result result;
  result.name = "gemm";
  result.notes =
      "y [M, N] = x [M, K] W^T. gflops counts 2 M N K; x_aten: how many times as fast as ATen's "
      "BF16 linear; of_bandwidth: weight bytes read, as a share of what the memory gives.";
  result.machine = {{"threads", runtime.num_threads()}, {"read_gb_s", bandwidth / 1e9}};
  aten_engine().set_num_threads(runtime.num_threads());
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  for (const GemmShape& shape : shapes) {
    for (int64_t m : rows) {
      const bool cold = shape.beyond_cache && m == 1;
      const double flops = 2.0 * static_cast<double>(m * shape.n * shape.k);
      const Activations x(m, shape.k);
      const auto add = [&](const char* kind, double seconds, double aten, double bytes) {
        result.rows.push_back(
            {.labels = {{"kind", kind},
                        {"N", shape.n},
                        {"K", shape.k},
                        {"M", m},
                        {"weights", cold ? "memory" : "cache"}},
             .figures = {{"us", seconds * 1e6},
                         {"gflops", flops / seconds / 1e9},
                         {"x_aten", aten / seconds},
                         {"weight_gb_s", cold ? bytes / seconds / 1e9 : kNone},
                         {"of_bandwidth", cold ? bytes / seconds / bandwidth : kNone}}});
      };
      const int64_t bf16_bytes = shape.n * shape.k * 2;
      const double aten = aten_seconds(shape, m, x.q1.data(), cold ? rotation(bf16_bytes) : 1);
      std::unique_ptr<Weights> weights;
      for (const Kind& kind : kKinds) {
        if (!weights || weights->matrices()[0].format != kind.format) {
          weights.reset();
          const int64_t bytes = kernels::packed_tile_bytes(kind.format, shape.n, shape.k);
          weights =
              std::make_unique<Weights>(kind.format, shape.n, shape.k, cold ? rotation(bytes) : 1);
        }
        add(kind.name, our_seconds(context, *weights, x.operand(shape.k, kind.compensated), m),
            aten, static_cast<double>(weights->bytes_each()));
      }
      add("aten bf16", aten, aten, static_cast<double>(bf16_bytes));
    }
  }
  return result;
}

}  // namespace quads::bench
