// Random problems, and their results by numerics.
#include "kernels/cuda/moe_problem.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "numerics/e4m3.h"
#include "numerics/rac.h"

namespace quads::kernels::cuda {

Nvfp4Matrix random_weight(int64_t rows, int64_t k, uint64_t seed) {
  RandomSequence random(seed, RandomStream::kInit, 0);
  Nvfp4Matrix w{rows, k, std::ldexp(1.0F, -8 - static_cast<int>(seed % 3)),
                std::vector<uint8_t>(rows * k / 2), std::vector<uint8_t>(rows * k / 16)};
  for (size_t i = 0; i < w.packed.size(); i += 8) {  // a block of 16 is 8 bytes
    const uint32_t words[2] = {random.next(), random.next()};
    std::memcpy(&w.packed[i], words, sizeof(words));
  }
  for (uint8_t& scale : w.block_scales) {
    const uint32_t word = random.next();
    scale = static_cast<uint8_t>(word % 64 == 0 ? (word >> 8) % 127 : 0x28 + (word >> 8) % 0x28);
  }
  return w;
}

Fp8Matrix random_fp8_weight(int64_t rows, int64_t k, uint64_t seed) {
  RandomSequence random(seed, RandomStream::kInit, 1);
  const int64_t scales = (rows + kFp8Block - 1) / kFp8Block * ((k + kFp8Block - 1) / kFp8Block);
  Fp8Matrix w{rows, k, kFp8Block, std::vector<uint8_t>(rows * k), std::vector<float>(scales)};
  for (uint8_t& code : w.codes) {
    code = static_cast<uint8_t>(random.below(256));
    if (e4m3_is_nan(code)) code ^= 0x01U;
  }
  for (float& scale : w.scales) scale = std::ldexp(1.0F, -9 - static_cast<int>(random.below(4)));
  if (!w.scales.empty()) w.scales.back() = 0x1p-100F;
  return w;
}

std::vector<Bf16> as_bf16(const std::vector<float>& values) {
  std::vector<Bf16> result;
  result.reserve(values.size());
  for (const float value : values) result.push_back(to_bf16(value));
  return result;
}

uint16_t exact_fp16(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude == 0.0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -14);
  const double mantissa = std::ldexp(magnitude, 10 - exponent);  // 2^10 .. 2^11, less if subnormal
  require(exponent <= 15 && mantissa == std::floor(mantissa), "{} is not exact in FP16", value);
  return static_cast<uint16_t>(sign + (exponent + 14) * 1024 + static_cast<int>(mantissa));
}

double fp16_value(uint32_t bits) {
  const int exponent = static_cast<int>(bits >> 10 & 0x1FU);
  const int mantissa = static_cast<int>(bits & 0x3FFU) + (exponent > 0 ? 1024 : 0);
  const double magnitude = std::ldexp(mantissa, std::max(exponent, 1) - 25);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}

std::vector<int32_t> shuffled_positions(int64_t blocks, uint64_t seed) {
  RandomSequence random(seed, RandomStream::kShuffle, 0);
  std::vector<int32_t> positions(blocks);
  std::iota(positions.begin(), positions.end(), 0);
  for (int64_t i = blocks - 1; i > 0; --i) {
    std::swap(positions[i], positions[random.below(static_cast<uint32_t>(i + 1))]);
  }
  return positions;
}

std::vector<Bf16> token_row(int64_t token, int64_t k) {
  RandomSequence random(7, RandomStream::kTask, token);
  std::vector<Bf16> x(k);
  for (int64_t i = 0; i < k; ++i) {
    // The sum of four uniform bytes is near enough to a bell curve.
    const uint32_t word = random.next();
    float sum = -510.0F;
    for (int byte = 0; byte < 4; ++byte) sum += static_cast<float>(word >> (byte * 8) & 0xFFU);
    x[i] = to_bf16(sum / 128.0F * (i % 61 == 7 ? 20.0F : 1.0F));
  }
  return x;
}

Routing route_tokens(std::span<const int64_t> tokens, int top_k, int experts,
                     const std::function<int(int64_t, int)>& expert_of) {
  Routing routing;
  routing.experts = experts;
  routing.offsets.assign(experts + 1, 0);
  for (const int64_t token : tokens) {
    for (int j = 0; j < top_k; ++j) {
      routing.choices.push_back(expert_of(token, j));
      ++routing.offsets[routing.choices.back() + 1];
    }
  }
  std::partial_sum(routing.offsets.begin(), routing.offsets.end(), routing.offsets.begin());
  std::vector<int32_t> next(routing.offsets.begin(), routing.offsets.end() - 1);
  routing.tokens.resize(routing.choices.size());
  for (size_t i = 0; i < routing.choices.size(); ++i) {
    const int32_t row = next[routing.choices[i]]++;
    routing.sorted_rows.push_back(row);
    routing.tokens[row] = tokens[i / top_k];
  }
  return routing;
}

int hashed_expert(int64_t token, int choice, int experts) {
  // Start and odd step: distinct for a power of two of experts.
  const auto words = random_words(11, RandomStream::kTask, token);
  return static_cast<int>((words[0] + (words[1] | 1U) * static_cast<uint32_t>(choice)) %
                          static_cast<uint32_t>(experts));
}

bool Compensation::selects(int64_t channel) const {
  const int64_t block = channel / kNvfp4Block;
  const int64_t position = positions.empty() ? block : positions[block];
  return position < residual_blocks && (channels.empty() || channels[channel] != 0);
}

Operands reference_operands(std::span<const Bf16> x, const Compensation& compensation) {
  std::vector<float> row(x.size());
  std::vector<uint8_t> mask(x.size());
  float amax = 0.0F;
  for (size_t i = 0; i < x.size(); ++i) {
    row[i] = to_float(x[i]);
    amax = std::max(amax, std::fabs(row[i]));
    mask[i] = compensation.selects(static_cast<int64_t>(i)) ? 1 : 0;
  }
  const float g = global_scale_pow2(amax);
  CompensatedRow c = compensate_row(row, g, mask, compensation.scale_floor, "x");
  return {std::move(c.main.values), std::move(c.correction.values), g};
}

std::vector<ImageRow> reference_places(std::span<const int32_t> offsets) {
  std::vector<ImageRow> places;
  int base = 0;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    const int count = offsets[e + 1] - offsets[e];
    const int padded = (count + 7) / 8 * 8;
    for (int i = 0; i < count; ++i) places.push_back({base, padded, i, 0});
    base += padded;
  }
  return places;
}

std::vector<ImageRow> places_of_choices(const Routing& routing) {
  const std::vector<ImageRow> of_sorted = reference_places(routing.offsets);
  std::vector<ImageRow> places;
  for (const int32_t row : routing.sorted_rows) {
    const bool somewhere = row >= 0 && row < static_cast<int32_t>(of_sorted.size());
    places.push_back(somewhere ? of_sorted[row] : ImageRow{0, 0, -1, 0});
  }
  return places;
}

namespace {

// `bits`: [k] in the natural order.
void put(const std::vector<uint16_t>& bits, const ImageRow& place, int stages, int64_t k,
         const Compensation& compensation, std::vector<uint16_t>* image) {
  for (int64_t position = 0; position < int64_t{stages} * 8; ++position) {
    for (int64_t i = 0; i < kNvfp4Block; ++i) {
      const int64_t at = image_offset(place, stages, static_cast<int>(position / 8),
                                      static_cast<int>(position % 8 * 2 + i / 8)) +
                         i % 8;
      (*image)[at] = 0;
    }
  }
  for (int64_t channel = 0; channel < k; ++channel) {
    const int64_t block = channel / kNvfp4Block;
    const int64_t position = compensation.positions.empty() ? block : compensation.positions[block];
    if (position >= int64_t{stages} * 8) continue;
    const int64_t i = channel % kNvfp4Block;
    const int64_t at = image_offset(place, stages, static_cast<int>(position / 8),
                                    static_cast<int>(position % 8 * 2 + i / 8)) +
                       i % 8;
    (*image)[at] = bits[channel];
  }
}

}  // namespace

Images reference_images(const std::vector<Operands>& rows, std::span<const ImageRow> places,
                        int64_t padded_rows, int64_t k, const Compensation& compensation,
                        uint16_t poison, WeightFormat format) {
  const bool fp16 = format == WeightFormat::kNvfp4Fp16;
  const int stages = stages_of(k);
  const int residual_stages = fp16 ? 0 : stages_of(compensation.residual_blocks * kNvfp4Block);
  Images images{std::vector<uint16_t>(padded_rows * stages * 128, poison),
                std::vector<uint16_t>(padded_rows * residual_stages * 128, poison)};
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<uint16_t> q1, q2;
    for (int64_t i = 0; i < k; ++i) {
      const double sum = double{rows[r].q1[i]} + rows[r].q2[i];
      q1.push_back(fp16 ? exact_fp16(sum / rows[r].g) : to_bf16(rows[r].q1[i]).bits);
      q2.push_back(to_bf16(rows[r].q2[i]).bits);
    }
    put(q1, places[r], stages, k, compensation, &images.q1);
    put(q2, places[r], residual_stages, k, compensation, &images.q2);
  }
  return images;
}

Product reference_product(const std::vector<Nvfp4Matrix>& weights, const Routing& routing,
                          const std::vector<Operands>& rows) {
  const int64_t n = weights[0].rows;
  const int64_t k = weights[0].k;
  Product product{std::vector<double>(routing.rows() * n), std::vector<double>(routing.rows() * n)};
  std::atomic<int> next{0};
  const auto work = [&] {
    for (int e = next++; e < routing.experts; e = next++) {
      if (routing.offsets[e] == routing.offsets[e + 1]) continue;
      const std::vector<float> w = dequantise_nvfp4(weights[e], "w");
      for (int64_t r = routing.offsets[e]; r < routing.offsets[e + 1]; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          double sum = 0.0;
          double magnitude = 0.0;
          for (int64_t c = 0; c < k; ++c) {
            const double term1 = double{w[i * k + c]} * rows[r].q1[c];
            const double term2 = double{w[i * k + c]} * rows[r].q2[c];
            sum += term1 + term2;
            magnitude += std::fabs(term1) + std::fabs(term2);
          }
          product.y[r * n + i] = sum;
          product.magnitude[r * n + i] = magnitude;
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1U, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) thread.join();
  return product;
}

}  // namespace quads::kernels::cuda
