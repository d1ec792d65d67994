// q1 + q2 under the floor of residual scales, in units of the global scale: exact in FP16, normal.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/moe_problem.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"

namespace quads::kernels::cuda {
namespace {

// Every scale of q1, every scale of q2 that the floor and the size of a residual leave, all codes.
TEST(Fp16Sums, EverySumThatScalesAndCodesAllowIsExact) {
  for (int s1_code = 1; s1_code <= 0x7E; ++s1_code) {
    const double s1 = e4m3_decode(static_cast<uint8_t>(s1_code));
    const double floor = std::max(0x1p-9, std::ldexp(1.0, std::ilogb(s1) - 3));
    // x is at most 6 s1 and what E4M3 rounds away; |x - q1| the half of a gap or what lies
    // beyond 6.
    const double beyond = std::max(6.0 * s1 / 16.0, 6.0 * 0x1p-10);
    const double largest = std::max(s1, beyond);
    for (int s2_code = 1; s2_code <= 0x7E; ++s2_code) {
      const double s2 = e4m3_decode(static_cast<uint8_t>(s2_code));
      if (s2 < floor || (s2 > floor && s2 > largest / 6.0 * 17.0 / 16.0)) continue;
      for (uint32_t c1 = 0; c1 < 16; ++c1) {
        for (uint32_t c2 = 0; c2 < 16; ++c2) {
          const double q1 = e2m1_decode(c1) * s1;
          const double q2 = e2m1_decode(c2) * s2;
          if (std::fabs(q2) > largest + s2) continue;                 // no residual rounds to it
          if (std::fabs(q1 + q2) > 6.0 * s1 + beyond + s2) continue;  // no x does
          ASSERT_EQ(fp16_value(exact_fp16(q1 + q2)), q1 + q2) << s1 << ", " << s2;
          ASSERT_TRUE(q1 + q2 == 0.0 || std::fabs(q1 + q2) >= 0x1p-14);
        }
      }
    }
  }
}

// All magnitudes of BF16 in a block beside a loud one, so that every scale and every tie occurs.
TEST(Fp16Sums, WhatTheQuantisersGiveIsExact) {
  for (const int octave : {-90, 0, 110}) {
    for (int step = 0; step < 30 * 128; ++step) {
      // Largest value of the block, from 2^-29 of the row's amax up.
      const float loud = std::ldexp(2688.0F, octave);
      const auto amax_bits = static_cast<uint16_t>(to_bf16(loud).bits - step);
      std::vector<Bf16> x(32);
      x[0] = to_bf16(loud);
      for (int i = 0; i < 16; ++i) {
        const int below = i == 0 ? 0 : (step * 7 + i * 37) % (1 + i * 40);
        x[16 + i].bits = static_cast<uint16_t>(amax_bits - below + (i % 3 == 1 ? 0x8000 : 0));
      }
      const Operands row = reference_operands(x, {{}, 2, {}, true});
      for (size_t i = 0; i < x.size(); ++i) {
        const double sum = (double{row.q1[i]} + row.q2[i]) / row.g;
        ASSERT_EQ(fp16_value(exact_fp16(sum)), sum) << "octave " << octave << ", step " << step;
      }
    }
  }
}

TEST(Fp16Sums, WithoutTheFloorSomeAreNot) {
  int inexact = 0;
  const Operands row = reference_operands(token_row(1, 2048), {{}, 128, {}, false});
  for (size_t i = 0; i < row.q1.size(); ++i) {
    const double sum = (double{row.q1[i]} + row.q2[i]) / row.g;
    if (sum == 0.0) continue;
    const double steps = std::ldexp(sum, 10 - std::ilogb(sum));
    inexact += steps != std::floor(steps);
  }
  EXPECT_GT(inexact, 0);
}

}  // namespace
}  // namespace quads::kernels::cuda
