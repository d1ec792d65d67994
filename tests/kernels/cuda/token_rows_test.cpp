// Routing, sorting, norm, combination and the quantiser's other sources on a device: the CPU's row
// kernels and numerics bit for bit.
#include "kernels/cuda/rows/token_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/moe_problem.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "numerics/fp8.h"
#include "numerics/math.h"
#include "numerics/rac.h"

namespace quads::kernels::cuda {
namespace {

const RowKernels& cpu_rows() { return cpu_kernels(best_isa()).rows; }

// A bell curve of about unit width, times `scale`.
std::vector<float> bell(int64_t count, uint64_t seed, float scale = 1.0F) {
  RandomSequence random(seed, RandomStream::kTask, 9);
  std::vector<float> values(count);
  for (float& value : values) {
    value = scale * (random.uniform() + random.uniform() + random.uniform() - 1.5F) * 2.0F;
  }
  return values;
}

template <class T>
int64_t differing_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return INT64_MAX;
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return count;
}

// NaNs are alike: their bits are not promised.
int64_t different(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INT64_MAX;
  int64_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    count += !both_nan && std::memcmp(&a[i], &b[i], sizeof(float)) != 0;
  }
  return count;
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed route_on_cpu(const std::vector<float>& logits, int experts, int top_k, bool normalise,
                    const int32_t* forced) {
  const FlushDenormals flush;
  const auto rows = static_cast<int64_t>(logits.size()) / experts;
  Routed result{std::vector<int32_t>(rows * top_k), std::vector<float>(rows * top_k)};
  cpu_rows().route(logits.data(), experts, rows, experts, top_k, normalise, forced,
                   result.ids.data(), result.weights.data());
  return result;
}

Routed route_on_device(const std::vector<float>& logits, int experts, int top_k, bool normalise,
                       const std::vector<int32_t>& forced) {
  const auto rows = static_cast<int64_t>(logits.size()) / experts;
  const int64_t ldl = experts + 3;  // what lies between rows is not looked at
  std::vector<float> apart(rows * ldl, std::numeric_limits<float>::quiet_NaN());
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(logits.begin() + r * experts, experts, apart.begin() + r * ldl);
  }
  DeviceArray<float> device_logits(apart), weights(rows * top_k);
  DeviceArray<int32_t> device_forced(forced), ids(rows * top_k);
  ids.fill_bytes(0xFF);
  weights.fill_bytes(0xFF);
  RouteRows args;
  args.logits = device_logits.data();
  args.ldl = ldl;
  args.rows = rows;
  args.experts = experts;
  args.top_k = top_k;
  args.normalise = normalise;
  args.forced = forced.empty() ? nullptr : device_forced.data();
  args.ids = ids.data();
  args.weights = weights.data();
  route_rows(make_context(nullptr), args);
  finish("routing");
  return {ids.download(), weights.download()};
}

void expect_same_routing(const std::vector<float>& logits, int experts, int top_k) {
  for (const bool normalise : {false, true}) {
    const Routed expected = route_on_cpu(logits, experts, top_k, normalise, nullptr);
    const Routed routed = route_on_device(logits, experts, top_k, normalise, {});
    EXPECT_EQ(routed.ids, expected.ids) << experts << " experts, top " << top_k;
    EXPECT_EQ(differing_bytes(routed.weights, expected.weights), 0)
        << experts << " experts, top " << top_k << ", normalise " << normalise;
    // Replayed in another order.
    std::vector<int32_t> forced(expected.ids.rbegin(), expected.ids.rend());
    const Routed replayed = route_on_device(logits, experts, top_k, normalise, forced);
    const Routed replay = route_on_cpu(logits, experts, top_k, normalise, forced.data());
    EXPECT_EQ(replayed.ids, forced);
    EXPECT_EQ(different(replayed.weights, replay.weights), 0);  // 0 / 0 among them
  }
}

TEST(RouteRows, ChoiceAndWeightsAreTheCpusBitForBit) {
  QUADS_NEEDS_DEVICE();
  for (const auto& [experts, top_k] : {std::pair<int, int>{128, 8},
                                       {8, 2},
                                       {1, 1},
                                       {60, 4},
                                       {33, 32},
                                       {129, 8},
                                       {512, 10},
                                       {17, 17}}) {
    for (const float scale : {0.5F, 4.0F, 60.0F}) {
      expect_same_routing(bell(int64_t{301} * experts, experts, scale), experts, top_k);
    }
  }
}

TEST(RouteRows, TiesGoToTheLowerIndexAndInfinitiesAreLast) {
  QUADS_NEEDS_DEVICE();
  constexpr int kExperts = 70;
  std::vector<float> logits(6 * kExperts);
  for (int i = 0; i < kExperts; ++i) {
    logits[i] = 1.0F;                                      // all alike
    logits[kExperts + i] = i % 3 == 0 ? -0.0F : 0.0F;      // zeros of both signs
    logits[2 * kExperts + i] = static_cast<float>(i % 5);  // many ties
    logits[3 * kExperts + i] = i == 40 || i == 41 ? 2.0F : -std::numeric_limits<float>::infinity();
    logits[4 * kExperts + i] = i % 2 == 0 ? -87.0F : 0.0F;  // the smallest exponentials
    logits[5 * kExperts + i] = static_cast<float>(i) * -1e30F;
  }
  expect_same_routing(logits, kExperts, 8);
}

TEST(RouteRows, ANanGivesNanWeightsAndDistinctExpertsInRange) {
  QUADS_NEEDS_DEVICE();
  std::vector<float> logits = bell(64, 3);
  logits[5] = logits[17] = std::numeric_limits<float>::quiet_NaN();
  const Routed routed = route_on_device(logits, 64, 8, true, {});
  for (int s = 0; s < 8; ++s) {
    EXPECT_TRUE(std::isnan(routed.weights[s]));
    EXPECT_TRUE(routed.ids[s] >= 0 && routed.ids[s] < 64);
    for (int other = 0; other < s; ++other) EXPECT_NE(routed.ids[s], routed.ids[other]);
  }
}

TEST(RouteRows, ASharedExpertsWeightIsTheSigmoidOfTheLogitBehindTheExperts) {
  QUADS_NEEDS_DEVICE();
  constexpr int kExperts = 60;
  const std::vector<float> gates = {0.0F, -0.0F, 3.5F, -3.5F, 1e-30F, 100.0F, -100.0F, -0.7F};
  const auto rows = static_cast<int64_t>(gates.size());
  std::vector<float> logits = bell(rows * (kExperts + 1), 8);
  for (int64_t r = 0; r < rows; ++r) logits[r * (kExperts + 1) + kExperts] = gates[r];
  DeviceArray<float> device_logits(logits), weights(rows * 4), shared(rows);
  DeviceArray<int32_t> ids(rows * 4);
  RouteRows args;
  args.logits = device_logits.data();
  args.ldl = kExperts + 1;
  args.rows = rows;
  args.experts = kExperts;
  args.top_k = 4;
  args.ids = ids.data();
  args.weights = weights.data();
  args.shared_weights = shared.data();
  route_rows(make_context(nullptr), args);
  finish("routing");
  const std::vector<float> found = shared.download();
  for (int64_t r = 0; r < rows; ++r) {
    const float t = exp_f32(-std::fabs(gates[r]));
    EXPECT_EQ(found[r], (gates[r] < 0.0F ? t : 1.0F) / (1.0F + t)) << gates[r];
  }
  for (const int32_t id : ids.download()) EXPECT_TRUE(id >= 0 && id < kExperts);  // never chosen
}

struct Sorted {
  std::vector<int32_t> offsets, rows, tokens;
  std::vector<ImageRow> places, sorted_places;
};

Sorted sort_on_device(const std::vector<int32_t>& ids, int experts, int top_k) {
  const auto slots = static_cast<int64_t>(ids.size());
  DeviceArray<int32_t> device_ids(ids), offsets(experts + 1), rows(slots), tokens(slots);
  DeviceArray<ImageRow> places(slots), sorted_places(slots);
  for (auto* array : {&offsets, &rows, &tokens}) array->fill_bytes(0x77);
  SortSlots args;
  args.ids = device_ids.data();
  args.slots = slots;
  args.experts = experts;
  args.top_k = top_k;
  args.expert_offsets = offsets.data();
  args.sorted_rows = rows.data();
  args.image_rows = places.data();
  args.sorted_image_rows = sorted_places.data();
  args.sorted_tokens = tokens.data();
  sort_slots(make_context(nullptr), args);
  finish("sorting");
  return {offsets.download(), rows.download(), tokens.download(), places.download(),
          sorted_places.download()};
}

void expect_sorted(const std::vector<int32_t>& ids, int experts, int top_k) {
  SCOPED_TRACE(testing::Message() << ids.size() << " slots, " << experts << " experts");
  std::vector<int32_t> offsets(experts + 1, 0);
  for (const int32_t id : ids) {
    if (id >= 0 && id < experts) ++offsets[id + 1];
  }
  std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
  const std::vector<ImageRow> places = reference_places(offsets);
  std::vector<int32_t> next(offsets.begin(), offsets.end() - 1);
  const Sorted sorted = sort_on_device(ids, experts, top_k);
  ASSERT_EQ(sorted.offsets, offsets);
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const bool somewhere = ids[slot] >= 0 && ids[slot] < experts;
    const int32_t row = somewhere ? next[ids[slot]]++ : -1;
    ASSERT_EQ(sorted.rows[slot], row) << "slot " << slot;
    const ImageRow expected = somewhere ? places[row] : ImageRow{0, 0, -1, 0};
    ASSERT_EQ(std::memcmp(&sorted.places[slot], &expected, sizeof(expected)), 0) << slot;
    if (!somewhere) continue;
    ASSERT_EQ(std::memcmp(&sorted.sorted_places[row], &expected, sizeof(expected)), 0) << slot;
    ASSERT_EQ(sorted.tokens[row], static_cast<int32_t>(slot) / top_k);
  }
  for (size_t row = offsets[experts]; row < ids.size(); ++row) {
    ASSERT_LT(sorted.sorted_places[row].index, 0);
  }
}

TEST(SortSlots, ExpertsInOrderAndSlotsWithinThem) {
  QUADS_NEEDS_DEVICE();
  for (const int experts : {1, 8, 128, 512}) {
    for (const int64_t slots : {1, 31, 64, 1024, 1025, 5000, 33000}) {
      RandomSequence random(5, RandomStream::kTask, slots);
      std::vector<int32_t> ids(slots);
      for (int32_t& id : ids) id = static_cast<int32_t>(random.below(experts));
      expect_sorted(ids, experts, 8);
      for (int64_t i = 0; i < slots; i += 7) ids[i] = i % 2 == 0 ? -1 : experts;  // nowhere
      expect_sorted(ids, experts, 1);
      std::fill(ids.begin(), ids.end(), experts - 1);  // a hot expert
      expect_sorted(ids, experts, 2);
    }
  }
}

TEST(TokenRows, TheNormIsTheCpusBitForBit) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t d : {16, 48, 128, 2048, 7168, 16384}) {
    for (const float scale : {1e-20F, 1e-3F, 1.0F, 1e4F, 1e18F}) {
      constexpr int64_t kRows = 9;
      const std::vector<float> x = bell(kRows * d, d, scale);
      const std::vector<Bf16> weight = token_row(3, d);
      std::vector<Bf16> expected(kRows * d);
      {
        const FlushDenormals flush;
        cpu_rows().rmsnorm(x.data(), d, kRows, d, weight.data(), 1e-6F, 1.0F, expected.data(), d,
                           nullptr);
      }
      DeviceArray<float> device_x(x);
      DeviceArray<Bf16> device_weight(weight), h(kRows * d);
      NormRows args;
      args.x = device_x.data();
      args.rows = kRows;
      args.d = d;
      args.weight = device_weight.data();
      args.eps = 1e-6F;
      args.h = h.data();
      norm_rows(make_context(nullptr), args);
      finish("norm");
      EXPECT_EQ(differing_bytes(h.download(), expected), 0) << "d " << d << ", scale " << scale;
    }
  }
}

TEST(TokenRows, ABiasIsAddedInFp32) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kRows = 19;
  for (const int64_t d : {4, 72, 5120}) {
    std::vector<float> y = bell(kRows * d, 1);
    const std::vector<float> values = bell(d, 2);
    std::vector<Bf16> bias(values.size());
    std::ranges::transform(values, bias.begin(), [](float v) { return to_bf16(v); });
    DeviceArray<float> device_y(y);
    DeviceArray<Bf16> device_bias(bias);
    add_bias(make_context(nullptr),
             {.y = device_y.data(), .rows = kRows, .d = d, .bias = device_bias.data()});
    finish("bias");
    for (size_t i = 0; i < y.size(); ++i) y[i] += to_float(bias[i % static_cast<size_t>(d)]);
    EXPECT_EQ(different(device_y.download(), y), 0) << "d " << d;
  }
  EXPECT_THROW(add_bias(make_context(nullptr), {.rows = 1, .d = 6}), Error);
}

TEST(TokenRows, TheCombinationIsTheCpusBitForBit) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kRows = 37;
  for (const auto& [d, top_k] :
       {std::pair<int64_t, int>{2048, 8}, {4, 1}, {772, 3}, {64, 0}, {96, 32}}) {
    const std::vector<float> x = bell(kRows * d, 1);
    const std::vector<float> parts = bell(kRows * top_k * d, 2);
    const std::vector<float> weights = bell(kRows * top_k, 3);
    std::vector<int32_t> sorted(kRows * top_k);
    std::iota(sorted.rbegin(), sorted.rend(), 0);
    if (top_k > 1) sorted[5] = -1;  // a choice that went nowhere
    std::vector<float> expected(kRows * d);
    for (int64_t r = 0; r < kRows; ++r) {
      const FlushDenormals flush;
      std::vector<const float*> rows;
      std::vector<float> row_weights;
      for (int s = 0; s < top_k; ++s) {
        if (sorted[r * top_k + s] < 0) continue;
        rows.push_back(parts.data() + sorted[r * top_k + s] * d);
        row_weights.push_back(weights[r * top_k + s]);
      }
      cpu_rows().combine(x.data() + r * d, rows.data(), row_weights.data(),
                         static_cast<int64_t>(rows.size()), d, expected.data() + r * d);
    }
    DeviceArray<float> y(x), device_parts(parts), device_weights(weights);
    DeviceArray<int32_t> device_sorted(sorted);
    CombineRows args;
    args.x = args.y = y.data();  // in place
    args.parts = device_parts.data();
    args.sorted_rows = device_sorted.data();
    args.weights = device_weights.data();
    args.rows = kRows;
    args.d = d;
    args.top_k = top_k;
    combine_rows(make_context(nullptr), args);
    finish("combining");
    EXPECT_EQ(differing_bytes(y.download(), expected), 0) << "d " << d << ", top " << top_k;
    if (d % 16 != 0) continue;
    DeviceArray<float> device_x(x), device_expected(expected);
    DeviceArray<Bf16> weight(token_row(3, d));
    DeviceArray<Bf16> h(kRows * d), expected_h(kRows * d);
    norm_rows(make_context(nullptr), {.x = device_expected.data(),
                                      .rows = kRows,
                                      .d = d,
                                      .weight = weight.data(),
                                      .eps = 1e-6F,
                                      .h = expected_h.data()});
    args.x = device_x.data();
    args.norm_weight = weight.data();
    args.eps = 1e-6F;
    args.h = h.data();
    for (const bool in_place : {false, true}) {
      y.fill_bytes(0xFF);
      h.fill_bytes(0xFF);
      args.y = in_place ? device_x.data() : y.data();
      combine_rows(make_context(nullptr), args);
      finish("combining with a norm");
      EXPECT_EQ(differing_bytes(in_place ? device_x.download() : y.download(), expected), 0)
          << "d " << d << ", top " << top_k << ", in place " << in_place;
      EXPECT_EQ(differing_bytes(h.download(), expected_h.download()), 0) << "d " << d;
    }
  }
}

// Rows of one expert through the quantiser.
struct Quantized {
  std::vector<uint16_t> q1, q2;
  std::vector<int64_t> sums;
  int32_t first_bad_row;
};

struct Source {
  std::vector<Bf16> x;
  std::vector<float> gate_up;  // in place of x
  int64_t rows, k;
  int residual_blocks = 0;
  std::vector<uint8_t> counted = {};  // empty: all
  std::vector<int32_t> tokens = {};   // empty: row r is token r
  bool statistics = false;
};

Quantized quantize_on_device(const Source& source, WeightFormat format) {
  const int64_t padded = padded_rows_bound(source.rows, 1);
  DeviceArray<ImageRow> places(
      reference_places(std::vector<int32_t>{0, static_cast<int32_t>(source.rows)}));
  DeviceArray<Bf16> x(source.x);
  DeviceArray<float> gate_up(source.gate_up);
  DeviceArray<uint16_t> q1(padded * stages_of(source.k) * 128);
  DeviceArray<uint16_t> q2(padded * stages_of(source.residual_blocks * 16) * 128);
  DeviceArray<int64_t> sums(std::vector<int64_t>(source.k, 1000));
  DeviceArray<uint8_t> counted(source.counted);
  DeviceArray<int32_t> tokens(source.tokens), bad(std::vector<int32_t>{INT_MAX});
  q1.fill_bytes(0xFF);
  q2.fill_bytes(0xFF);
  QuantizeRows args;
  args.format = format;
  const bool gated = !source.gate_up.empty();
  args.x = gated ? nullptr : x.data();
  args.gate_up = gated ? gate_up.data() : nullptr;
  args.ldx = gated ? 2 * source.k : source.k;
  args.rows = source.rows;
  args.k = source.k;
  args.image_rows = places.data();
  args.residual_blocks = source.residual_blocks;
  args.residual_sums = source.statistics ? sums.data() : nullptr;
  args.counted = source.counted.empty() ? nullptr : counted.data();
  args.tokens = source.tokens.empty() ? nullptr : tokens.data();
  args.q1 = reinterpret_cast<Bf16*>(q1.data());
  args.q2 = reinterpret_cast<Bf16*>(q2.data());
  args.first_bad_row = bad.data();
  quantize_rows(make_context(nullptr), args);
  finish("quantising");
  return {q1.download(), q2.download(), sums.download(), bad.download()[0]};
}

// q1 [rows, k] as the image has it.
Images expected_images(const std::vector<Operands>& rows, int64_t k, int residual_blocks) {
  const std::vector<int32_t> offsets = {0, static_cast<int32_t>(rows.size())};
  return reference_images(rows, reference_places(offsets),
                          padded_rows_bound(static_cast<int64_t>(rows.size()), 1), k,
                          {{}, residual_blocks, {}, false}, 0xFFFF);
}

TEST(QuantizeFormats, Fp8AndBf16RowsAreThoseOfNumerics) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t k : {16, 128, 144, 768, 2048}) {
    Source source{{}, {}, 70, k};
    std::vector<Operands> fp8, plain;
    for (int64_t r = 0; r < source.rows; ++r) {
      std::vector<Bf16> row = token_row(r, k);
      if (r % 3 == 1) row[r % k].bits = 0x7F00;  // beside it all is small
      if (r % 5 == 2) std::fill(row.begin(), row.end(), Bf16{0x8000});
      if (r % 7 == 3) {
        for (Bf16& value : row) value.bits &= 0x80FF;  // subnormal and tiny
      }
      std::vector<float> values;
      for (const Bf16 value : row) values.push_back(to_float(value));
      fp8.push_back(
          {dequantise_fp8(quantise_fp8(values, 1, k, 1, "x"), "x"), std::vector<float>(k)});
      plain.push_back({values, std::vector<float>(k)});
      source.x.insert(source.x.end(), row.begin(), row.end());
    }
    const Quantized as_fp8 = quantize_on_device(source, WeightFormat::kFp8);
    EXPECT_EQ(differing_bytes(as_fp8.q1, expected_images(fp8, k, 0).q1), 0) << "FP8, k " << k;
    EXPECT_EQ(as_fp8.first_bad_row, INT_MAX);
    const Quantized as_bf16 = quantize_on_device(source, WeightFormat::kBf16);
    EXPECT_EQ(differing_bytes(as_bf16.q1, expected_images(plain, k, 0).q1), 0) << "BF16, k " << k;
    source.x[9 * k + k / 2].bits = 0x7F80;
    EXPECT_EQ(quantize_on_device(source, WeightFormat::kFp8).first_bad_row, 9);
    EXPECT_EQ(quantize_on_device(source, WeightFormat::kBf16).first_bad_row, 9);
  }
}

TEST(QuantizeFormats, SiluTimesUpIsTheCpusBeforeTheQuantiser) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t k : {16, 768, 2048}) {
    for (const float scale : {1e-30F, 0.01F, 1.0F, 20.0F, 90.0F}) {
      constexpr int64_t kRows = 41;
      Source gated{{}, bell(kRows * 2 * k, k, scale), kRows, k, static_cast<int>(k / 32)};
      Source plain = gated;
      plain.gate_up.clear();
      plain.x.resize(kRows * k);
      {
        const FlushDenormals flush;
        cpu_rows().silu_mul(gated.gate_up.data(), 2 * k, kRows, k, plain.x.data(), k);
      }
      for (const WeightFormat format :
           {WeightFormat::kNvfp4, WeightFormat::kFp8, WeightFormat::kBf16}) {
        if (format != WeightFormat::kNvfp4) gated.residual_blocks = plain.residual_blocks = 0;
        const Quantized a = quantize_on_device(gated, format);
        const Quantized b = quantize_on_device(plain, format);
        EXPECT_EQ(differing_bytes(a.q1, b.q1), 0) << "k " << k << ", scale " << scale;
        EXPECT_EQ(differing_bytes(a.q2, b.q2), 0) << "k " << k << ", scale " << scale;
      }
    }
  }
}

TEST(QuantizeFormats, ResidualSumsAreThoseOfNumericsOverCountedRows) {
  QUADS_NEEDS_DEVICE();
  // The last is long enough that a block adds its sums to the totals more than once.
  for (const auto& [rows, k] :
       {std::pair<int64_t, int64_t>{1, 16}, {50, 768}, {3000, 400}, {700000, 16}}) {
    for (const int blocks : {0, 3}) {
      Source source{{}, {}, rows, k, std::min<int>(blocks, static_cast<int>(k / 16))};
      source.statistics = true;
      const Compensation compensation{{}, source.residual_blocks, {}, false};
      constexpr int64_t kDistinct = 97;
      constexpr int64_t kCompared = 3000;  // images of more rows take long
      std::vector<std::vector<Bf16>> distinct;
      std::vector<Operands> operands_of;
      std::vector<std::vector<int64_t>> units(kDistinct);
      for (int64_t i = 0; i < kDistinct; ++i) {
        distinct.push_back(token_row(i, k));
        operands_of.push_back(reference_operands(distinct[i], compensation));
        float amax = 0.0F;
        for (const Bf16 value : distinct[i]) amax = std::max(amax, std::fabs(to_float(value)));
        for (int64_t c = 0; c < k; ++c) {
          const float residual = to_float(distinct[i][c]) - operands_of[i].q1[c];
          units[i].push_back(residual_units(residual, global_scale_pow2(amax)));
        }
      }
      std::vector<int64_t> expected(k, 1000);
      std::vector<Operands> operands;
      source.counted.resize(rows);
      for (int64_t r = 0; r < rows; ++r) {
        source.tokens.push_back(static_cast<int32_t>(rows - 1 - r));
        source.counted[source.tokens[r]] = r % 3 == 1 ? 0 : 1;
        const std::vector<Bf16>& row = distinct[r % kDistinct];
        source.x.insert(source.x.end(), row.begin(), row.end());
        if (rows <= kCompared) operands.push_back(operands_of[r % kDistinct]);
        if (r % 3 == 1) continue;
        for (int64_t c = 0; c < k; ++c) expected[c] += units[r % kDistinct][c];
      }
      const Quantized q = quantize_on_device(source, WeightFormat::kNvfp4);
      EXPECT_EQ(q.sums, expected) << rows << " rows of " << k;
      if (rows > kCompared) continue;
      const Images images = expected_images(operands, k, source.residual_blocks);
      EXPECT_EQ(differing_bytes(q.q1, images.q1), 0);
      EXPECT_EQ(differing_bytes(q.q2, images.q2), 0);
    }
  }
}

TEST(TokenRows, ArgumentsOutOfRangeAreRefused) {
  const CudaContext context;
  EXPECT_THROW(norm_rows(context, {nullptr, 1, 24, nullptr, 0.0F, nullptr}), Error);
  EXPECT_THROW(norm_rows(context, {nullptr, -1, 32, nullptr, 0.0F, nullptr}), Error);
  EXPECT_NO_THROW(norm_rows(context, {nullptr, 0, 32, nullptr, 0.0F, nullptr}));
  CombineRows combine;
  combine.d = 6;
  EXPECT_THROW(combine_rows(context, combine), Error);
  combine.d = 8;
  combine.top_k = kMaxTopK + 1;
  EXPECT_THROW(combine_rows(context, combine), Error);
  Bf16 h;
  combine.top_k = 1;
  combine.h = &h;
  EXPECT_THROW(combine_rows(context, combine), Error);
  float weight = 0.0F;
  RouteRows route;
  route.experts = route.ldl = 8;
  route.top_k = 9;
  EXPECT_THROW(route_rows(context, route), Error);
  route.top_k = 8;
  route.ldl = 7;
  EXPECT_THROW(route_rows(context, route), Error);
  route.ldl = 8;
  route.shared_weights = &weight;
  EXPECT_THROW(route_rows(context, route), Error);  // no logit behind the experts'
  route.experts = route.ldl = 1024;
  EXPECT_THROW(route_rows(context, route), Error);
  SortSlots sort;
  sort.experts = 8;
  EXPECT_THROW(sort_slots(context, sort), Error);  // no slots
}

}  // namespace
}  // namespace quads::kernels::cuda
