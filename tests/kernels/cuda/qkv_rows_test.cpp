// From the qkv product to queries and KV pages on a device: the CPU's row kernels bit for bit.
#include "kernels/cuda/attention/qkv_rows.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/kv_problem.h"
#include "kernels/cuda/test_values.h"

namespace quads::kernels::cuda {
namespace {

constexpr float kEps = 1e-6F;

enum class Norm : uint8_t { kNone, kHead, kWhole };

struct Inputs {
  HeadShape shape;
  Norm norm;
  Rows rows;
  std::vector<float> qkv, cos, sin;
  std::vector<Bf16> q_norm, k_norm;
};

struct Results {
  std::vector<uint16_t> q, kv;
};

Results on_cpu(const Inputs& in, KvProblem& problem) {
  const FlushDenormals flush;
  const RowKernels& cpu = cpu_kernels(best_isa()).rows;
  const HeadShape& shape = in.shape;
  const bool whole = in.norm == Norm::kWhole;
  Results results{std::vector<uint16_t>(in.rows.size() * shape.q_width(), kNanBf16), {}};
  std::vector<Bf16> k(shape.kv_width()), v(shape.kv_width());
  for (int64_t r = 0; r < in.rows.size(); ++r) {
    const int32_t position = in.rows.positions[r];
    if (position < 0) continue;
    const float* row = in.qkv.data() + r * shape.qkv_width();
    const float* cos = in.cos.data() + position * (shape.head_dim / 2);
    const float* sin = in.sin.data() + position * (shape.head_dim / 2);
    const bool none = in.norm == Norm::kNone;
    cpu.qk_norm_rope(row, shape.heads, shape.head_dim, none ? nullptr : in.q_norm.data(),
                     whole ? shape.heads : 1, kEps, cos, sin,
                     reinterpret_cast<Bf16*>(&results.q[r * shape.q_width()]));
    cpu.qk_norm_rope(row + shape.q_width(), shape.kv_heads, shape.head_dim,
                     none ? nullptr : in.k_norm.data(), whole ? shape.kv_heads : 1, kEps, cos, sin,
                     k.data());
    cpu.to_bf16(row + shape.q_width() + shape.kv_width(), shape.kv_width(), 1.0F, v.data());
    const int32_t page = problem.table[in.rows.sequences[r] * problem.max_pages + position / 16];
    for (int h = 0; h < shape.kv_heads; ++h) {
      const size_t bytes = shape.head_dim * 2;
      std::memcpy(problem.element(page, h, 0, position % 16), &k[h * shape.head_dim], bytes);
      std::memcpy(problem.element(page, h, 1, position % 16), &v[h * shape.head_dim], bytes);
    }
  }
  results.kv = problem.pages;
  return results;
}

Results on_device(const Inputs& in, const KvProblem& problem, const int32_t* row_count) {
  DeviceArray<float> qkv(in.qkv), cos(in.cos), sin(in.sin);
  DeviceArray<Bf16> q_norm(in.q_norm), k_norm(in.k_norm);
  DeviceArray<uint16_t> q(in.rows.size() * in.shape.q_width()), kv(problem.pages);
  q.fill_bytes(0xFF);
  DevicePlaces places(in.rows, problem.table, problem.max_pages);
  DeviceArray<int32_t> count(std::vector<int32_t>{row_count == nullptr ? 0 : *row_count});
  QkvRows args;
  args.shape = in.shape;
  args.places = places.places;
  if (row_count != nullptr) args.places.row_count = count.data();
  args.qkv = qkv.data();
  if (in.norm != Norm::kNone) {
    args.q_norm = q_norm.data();
    args.k_norm = k_norm.data();
  }
  args.whole_norm = in.norm == Norm::kWhole;
  args.eps = kEps;
  args.cos = cos.data();
  args.sin = sin.data();
  args.q = reinterpret_cast<Bf16*>(q.data());
  args.kv = reinterpret_cast<Bf16*>(kv.data());
  qkv_rows(make_context(nullptr), args);
  finish("QKV rows");
  return {q.download(), kv.download()};
}

// Rows of three sequences whose pages hold NaN so far, some rows left out.
Inputs inputs_of(const HeadShape& shape, Norm norm, float scale) {
  Inputs in{shape, norm, {}, {}, {}, {}, {}, {}};
  in.rows.add(1, 0, 40);
  in.rows.add(0, 17, 18);
  in.rows.add(2, 95, 100);
  in.rows.positions[3] = -1;
  in.qkv = bell(in.rows.size() * shape.qkv_width(), 1, scale);
  in.cos = bell(100 * (shape.head_dim / 2), 2);
  in.sin = bell(100 * (shape.head_dim / 2), 3);
  const bool whole = norm == Norm::kWhole;
  in.q_norm = bell_bf16(whole ? shape.q_width() : shape.head_dim, 4);
  in.k_norm = bell_bf16(whole ? shape.kv_width() : shape.head_dim, 5);
  return in;
}

KvProblem empty_pages(const HeadShape& shape) {
  KvProblem problem(shape, {40, 40, 100}, 3);
  std::fill(problem.pages.begin(), problem.pages.end(), kNanBf16);
  return problem;
}

TEST(QkvRows, QueriesKeysAndValuesAreTheCpusBitForBit) {
  QUADS_NEEDS_DEVICE();
  for (const HeadShape& shape : {HeadShape{32, 4, 128}, HeadShape{4, 4, 32}, HeadShape{3, 1, 48},
                                 HeadShape{2, 2, 256}, HeadShape{6, 2, 80}}) {
    for (const Norm norm : {Norm::kNone, Norm::kHead, Norm::kWhole}) {
      for (const float scale : {1e-19F, 1.0F, 1e15F}) {
        const Inputs in = inputs_of(shape, norm, scale);
        KvProblem problem = empty_pages(shape);
        const Results device = on_device(in, problem, nullptr);
        const Results cpu = on_cpu(in, problem);
        EXPECT_EQ(differing_bytes(device.q, cpu.q), 0)
            << shape.heads << " heads of " << shape.head_dim << ", scale " << scale;
        EXPECT_EQ(differing_bytes(device.kv, cpu.kv), 0)
            << shape.heads << " heads of " << shape.head_dim << ", scale " << scale;
      }
    }
  }
}

TEST(QkvRows, RowsBehindTheCountAreNotTouched) {
  QUADS_NEEDS_DEVICE();
  const HeadShape shape = {8, 2, 64};
  const Inputs in = inputs_of(shape, Norm::kHead, 1.0F);
  for (const int32_t count : {0, 1, 41}) {
    Inputs fewer = in;
    for (int64_t r = count; r < in.rows.size(); ++r) fewer.rows.positions[r] = -1;
    KvProblem problem = empty_pages(shape);
    const Results device = on_device(in, problem, &count);
    const Results cpu = on_cpu(fewer, problem);
    EXPECT_EQ(differing_bytes(device.q, cpu.q), 0) << count;
    EXPECT_EQ(differing_bytes(device.kv, cpu.kv), 0) << count;
  }
}

TEST(QkvRows, ArgumentsOutOfRangeAreRefused) {
  const CudaContext context;
  QkvRows args;
  args.shape = {8, 2, 64};
  args.places.max_pages = 4;
  EXPECT_NO_THROW(qkv_rows(context, args));  // no rows
  const Bf16 weight{};
  args.q_norm = &weight;
  EXPECT_THROW(qkv_rows(context, args), Error);
  args.k_norm = &weight;
  args.shape.head_dim = 40;
  EXPECT_THROW(qkv_rows(context, args), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
