// The backward's products against FP64, over all tiles and groups; what lies outside is untouched.
#include "kernels/cuda/gradients/gradient_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/device_array.h"

namespace quads::kernels::cuda {
namespace {

std::vector<Bf16> random_bf16(size_t count, uint64_t seed) {
  RandomSequence random(seed, RandomStream::kTask, 0);
  std::vector<Bf16> values(count);
  for (Bf16& v : values) v = to_bf16(random.uniform() * 2 - 1);
  return values;
}

struct Shape {
  const char* name;
  std::vector<int32_t> rows;  // of each expert
  int64_t m, n;               // dy's and x's columns
};

// Tiles by mma.sync are of 64 x 64, and of 128 x 128 where there are many; by wgmma pairs of 128 x
// 128, or of 128 x 192 where n leaves little of them empty, and sums are added up every 1024.
const Shape kShapes[] = {{"one", {1}, 8, 8},
                         {"odd", {77}, 24, 136},
                         {"long", {1300}, 96, 64},
                         {"experts", {0, 5, 64, 0, 129, 1, 0}, 48, 72},
                         {"large", {300}, 2048, 2176},
                         {"many_experts", std::vector<int32_t>(40, 33), 384, 328},
                         {"several_parts", {2100, 0, 700}, 1152, 384}};

using Kernel = GradientKernel;

class GradientGemm : public ::testing::TestWithParam<std::tuple<Shape, Kernel>> {
 protected:
  GradientGemm() {
    offsets.push_back(0);
    for (const int32_t rows : shape().rows) offsets.push_back(offsets.back() + rows);
  }
  static const Shape& shape() { return std::get<0>(GetParam()); }
  static Kernel kernel() { return std::get<1>(GetParam()); }
  /// Skips, saying so, where the device has not the kernel.
  static bool missing() {
    return kernel() == Kernel::kWgmma && make_context(nullptr).capability != 90;
  }
  int64_t rows() const { return offsets.back(); }
  int64_t experts() const { return std::ssize(shape().rows); }
  /// Offsets are given where there are several experts only.
  ExpertRows expert_rows(DeviceArray<int32_t>& on_device) const {
    return {.experts = static_cast<int>(experts()),
            .offsets = experts() > 1 ? on_device.data() : nullptr,
            .rows = rows()};
  }
  int64_t expert_of(int64_t row) const {
    int64_t e = 0;
    while (row >= offsets[static_cast<size_t>(e + 1)]) ++e;
    return e;
  }
  std::vector<int32_t> offsets;
};
std::string case_name(const ::testing::TestParamInfo<std::tuple<Shape, Kernel>>& info) {
  constexpr const char* kKernels[] = {"chosen", "mma", "wgmma"};
  const auto& [shape, kernel] = info.param;
  return std::string(shape.name) + "_" + kKernels[static_cast<int>(kernel)];
}
INSTANTIATE_TEST_SUITE_P(Shapes, GradientGemm,
                         ::testing::Combine(::testing::ValuesIn(kShapes),
                                            ::testing::Values(Kernel::kChosen, Kernel::kMma,
                                                              Kernel::kWgmma)),
                         case_name);

// Sums of products of magnitude 1 at most in FP32: a relative 2^-23 of the sum of magnitudes for
// every addition is far above what is seen.
double bound(int64_t summed) { return 1e-6 * static_cast<double>(summed) + 1e-6; }

TEST_P(GradientGemm, OfTheInputIsTheProduct) {
  QUADS_NEEDS_DEVICE();
  if (missing()) GTEST_SKIP() << "NOT TESTED: wgmma: the device has none";
  const int64_t m = shape().m, n = shape().n, ld = m + 16;
  const std::vector<Bf16> dy = random_bf16(static_cast<size_t>(rows() * ld), 1);
  const std::vector<Bf16> weight = random_bf16(static_cast<size_t>(experts() * m * n), 2);
  DeviceArray<Bf16> device_dy(dy), device_weight(weight);
  DeviceArray<int32_t> device_offsets(offsets);
  DeviceArray<float> dx(static_cast<size_t>(rows() * n + 64));
  const auto run = [&] {
    dx.fill_bytes(0xFF);
    input_gradient(make_context(nullptr), {.experts = expert_rows(device_offsets),
                                           .dy = device_dy.data(),
                                           .lddy = ld,
                                           .weight = device_weight.data(),
                                           .stride = m * n,
                                           .n = n,
                                           .k = m,
                                           .dx = dx.data(),
                                           .kernel = kernel()});
    finish("input's gradient");
    return dx.download();
  };
  const std::vector<float> result = run();
  const int64_t step = std::max<int64_t>(1, rows() * n / 20000) | 1;
  for (int64_t i = 0; i < rows() * n; i += step) {
    const int64_t r = i / n, c = i % n, e = expert_of(r);
    double sum = 0.0;
    for (int64_t k = 0; k < m; ++k) {
      sum += double{to_float(dy[static_cast<size_t>(r * ld + k)])} *
             to_float(weight[static_cast<size_t>((e * m + k) * n + c)]);
    }
    ASSERT_NEAR(result[static_cast<size_t>(i)], sum, bound(m)) << "row " << r << ", column " << c;
  }
  for (size_t i = static_cast<size_t>(rows() * n); i < result.size(); ++i) {
    ASSERT_TRUE(std::isnan(result[i])) << "behind the end";
  }
  const std::vector<float> again = run();
  for (int64_t i = 0; i < rows() * n; ++i) {
    ASSERT_EQ(result[static_cast<size_t>(i)], again[static_cast<size_t>(i)]);
  }
}

TEST_P(GradientGemm, OfTheWeightIsAddedToWhatIsThere) {
  QUADS_NEEDS_DEVICE();
  if (missing()) GTEST_SKIP() << "NOT TESTED: wgmma: the device has none";
  const int64_t m = shape().m, n = shape().n, ld = m + 8, stride = m * n + 24;
  const std::vector<Bf16> dy = random_bf16(static_cast<size_t>(rows() * ld), 3);
  const std::vector<Bf16> x = random_bf16(static_cast<size_t>(rows() * n), 4);
  DeviceArray<Bf16> device_dy(dy), device_x(x);
  DeviceArray<int32_t> device_offsets(offsets);
  const std::vector<float> before(static_cast<size_t>(experts() * stride), 0.5F);
  DeviceArray<float> dw(before);
  const auto run = [&] {
    dw.upload(before);
    weight_gradient(make_context(nullptr), {.experts = expert_rows(device_offsets),
                                            .dy = device_dy.data(),
                                            .lddy = ld,
                                            .x = device_x.data(),
                                            .m = m,
                                            .n = n,
                                            .dw = dw.data(),
                                            .stride = stride,
                                            .kernel = kernel()});
    finish("weight's gradient");
    return dw.download();
  };
  const std::vector<float> result = run();
  ASSERT_EQ(run(), result) << "a second run";
  const int64_t step = std::max<int64_t>(1, experts() * stride / 20000) | 1;
  for (int64_t i = 0; i < experts() * stride; i += step) {
    const int64_t e = i / stride, at = i % stride;
    double sum = 0.5;
    if (at < m * n) {
      for (int64_t r = offsets[static_cast<size_t>(e)]; r < offsets[static_cast<size_t>(e + 1)];
           ++r) {
        sum += double{to_float(dy[static_cast<size_t>(r * ld + at / n)])} *
               to_float(x[static_cast<size_t>(r * n + at % n)]);
      }
    }
    ASSERT_NEAR(result[static_cast<size_t>(i)], sum, bound(rows())) << "expert " << e << ", " << at;
  }
}

TEST(GradientGemm, SizesOutOfRangeAreErrors) {
  QUADS_NEEDS_DEVICE();
  const CudaContext context = make_context(nullptr);
  EXPECT_THROW(input_gradient(context, {.experts = {.rows = 1}, .lddy = 12, .n = 8, .k = 12}),
               Error);
  EXPECT_THROW(
      weight_gradient(context, {.experts = {.experts = 2, .rows = 1}, .lddy = 8, .m = 8, .n = 8}),
      Error);
  CudaContext other = context;
  other.capability = 120;
  EXPECT_THROW(
      input_gradient(
          other,
          {.experts = {.rows = 1}, .lddy = 8, .n = 8, .k = 8, .kernel = GradientKernel::kWgmma}),
      Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
