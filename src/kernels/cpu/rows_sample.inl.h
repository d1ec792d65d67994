// Draws a token: temperature, then top-k, then top-p, then the inverse of the cumulative
// distribution in vocabulary order.
//
// With e[i] = exp(z[i] * (1 / temperature) - m) for the tokens that top-k keeps, 0 for the others:
// - top-k keeps every token whose logit is at least the k-th largest, ties included (as
// transformers
//   and vLLM do);
// - top-p keeps the fewest tokens, largest e first and ties by the lower index, whose e sum to at
//   least top_p times the total, and at least one;
// - sums over the vocabulary are taken in pieces of 256 tokens, each in 16 FP32 lanes and the tree;
//   the pieces' sums are added in order in FP64, and so is what is added inside one piece.
// A token with e = 0 is never drawn. If no token has a positive probability, or a logit is NaN or
// +Inf, the first largest logit that is not a NaN is taken.
#pragma once

#include "kernels/cpu/rows_softmax.inl.h"

namespace quads::kernels::QUADS_ISA {

constexpr int64_t kSamplePiece = 256;

static inline int32_t first_maximum(const float* z, int64_t n) {
  const float largest = row_max(z, n);
  for (int64_t i = 0; i < n; ++i) {
    if (z[i] == largest) return static_cast<int32_t>(i);
  }
  return 0;
}

/// Positive for all FP32 values and in their order.
static inline uint32_t order_key(float x) {
  uint32_t u;
  std::memcpy(&u, &x, sizeof(u));
  return (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
}
static inline float from_order_key(uint32_t key) {
  const uint32_t u = (key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key;
  float x;
  std::memcpy(&x, &u, sizeof(x));
  return x;
}

/// The k-th largest of n values, 1 <= k <= n: radix selection, 11 + 11 + 10 bits.
static float kth_largest(const float* z, int64_t n, int64_t k) {
  uint32_t prefix = 0;  // the bits decided so far
  uint32_t decided = 0;
  for (int shift : {21, 10, 0}) {
    const uint32_t digits = shift == 0 ? 1024 : 2048;
    uint32_t counts[2048] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t key = order_key(z[i]);
      if ((key & decided) == prefix) ++counts[(key >> shift) & (digits - 1)];
    }
    uint32_t digit = digits - 1;
    for (; digit > 0 && counts[digit] < k; --digit) k -= counts[digit];
    prefix |= digit << shift;
    decided |= (digits - 1) << shift;
  }
  return from_order_key(prefix);
}

/// e[i] for z[i] >= least, 0 otherwise.
static inline void exponentials(const float* z, int64_t n, float inv_temperature, float least,
                                float* e) {
  const float largest = row_max(z, n) * inv_temperature;
  for (int64_t i = 0; i < n; i += 16) {
    const int lanes = lanes_from(n, i);
    const F16 value = load_first(z + i, lanes);
    const F16 power = exp(value * splat(inv_temperature) - splat(largest));
    // A NaN compares with nothing: it stays, so that the total shows it.
    store_first(e + i, select(less(value, splat(least)), zero(), power), lanes);
  }
}

/// Sums of the pieces, and their sum.
static inline double piece_sums(const float* e, int64_t n, float* sums) {
  double total = 0.0;
  for (int64_t begin = 0; begin < n; begin += kSamplePiece) {
    const int64_t end = n - begin < kSamplePiece ? n : begin + kSamplePiece;
    F16 sum = zero();
    for (int64_t i = begin; i < end; i += 16) sum = sum + load_first(e + i, lanes_from(end, i));
    sums[begin / kSamplePiece] = reduce_sum(sum);
    total += sums[begin / kSamplePiece];
  }
  return total;
}

/// Zeroes the e outside the smallest set that sums to `mass`. The least kept value is found by its
/// bits, 10 at a time from the top (e is in [0, 1], so 30 bits): in each round the masses of the
/// 1024 digits are added in vocabulary order, then from the highest digit down until `mass` is
/// reached.
static void keep_top_p(float* e, int64_t n, double mass) {
  const auto bits_of = [](float x) {
    uint32_t u;
    std::memcpy(&u, &x, sizeof(u));
    return u;
  };
  uint32_t prefix = 0;
  uint32_t decided = 0;
  double above = 0.0;  // mass of the values above the digits decided so far
  for (int shift : {20, 10, 0}) {
    double masses[1024] = {};
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t u = bits_of(e[i]);
      if ((u & decided) == prefix) masses[(u >> shift) & 1023U] += e[i];
    }
    // The last digit with any mass is taken if rounding leaves the sum short.
    uint32_t digit = 0;
    double above_digit = above;
    for (int candidate = 1023; candidate >= 0; --candidate) {
      if (!(masses[candidate] > 0.0)) continue;
      digit = static_cast<uint32_t>(candidate);
      above = above_digit;
      above_digit += masses[candidate];
      if (above_digit >= mass) break;
    }
    prefix |= digit << shift;
    decided |= 1023U << shift;
  }
  bool first = true;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = bits_of(e[i]);
    if (u > prefix) continue;
    if (u == prefix && (first || above < mass)) {
      above += e[i];
      first = false;
    } else {
      e[i] = 0.0F;
    }
  }
}

static int32_t sample(const float* z, int64_t n, const SamplingParams& params, float uniform,
                      Arena& arena) {
  if (params.temperature == 0.0F) return first_maximum(z, n);
  const ArenaScope scope(arena);
  const int64_t pieces = (n + kSamplePiece - 1) / kSamplePiece;
  auto* e = static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(n) * sizeof(float)));
  auto* sums = static_cast<float*>(arena.alloc_bytes(static_cast<size_t>(pieces) * sizeof(float)));

  const bool restrict_k = params.top_k > 0 && params.top_k < n;
  const float least = restrict_k ? kth_largest(z, n, params.top_k) : -__builtin_inff();
  exponentials(z, n, 1.0F / params.temperature, least, e);
  double total = piece_sums(e, n, sums);
  if (!(total > 0.0)) return first_maximum(z, n);
  if (params.top_p < 1.0F) {
    keep_top_p(e, n, static_cast<double>(params.top_p) * total);
    total = piece_sums(e, n, sums);
  }

  const double target = static_cast<double>(uniform) * total;
  // Ends before the last piece does: the same sums in the same order made the total.
  double below = 0.0;
  int64_t piece = 0;
  for (; below + sums[piece] <= target; ++piece) below += sums[piece];
  // Here rounding may leave the target out of reach: then it is the piece's last token.
  int32_t token = 0;
  const int64_t begin = piece * kSamplePiece;
  const int64_t end = n - begin < kSamplePiece ? n : begin + kSamplePiece;
  for (int64_t i = begin; i < end; ++i) {
    if (!(e[i] > 0.0F)) continue;
    token = static_cast<int32_t>(i);
    below += e[i];
    if (below > target) break;
  }
  return token;
}

}  // namespace quads::kernels::QUADS_ISA
