// The row quantiser on a device: numerics bit for bit, in the right places and nowhere else.
#include "kernels/cuda/quantize/quantize_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cuda/device_moe.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/experts/route.h"
#include "kernels/cuda/rows/token_rows.h"

namespace quads::kernels::cuda {
namespace {

constexpr uint16_t kPoison = 0xFFFF;

// Rows at the edges of the format: zeros of both signs, ties, scales at powers of two, one step
// above, subnormals, blocks that vanish beside a loud one, magnitudes near both ends of BF16.
std::vector<Bf16> adversarial_row(int64_t kind, int64_t k) {
  RandomSequence random(3, RandomStream::kTask, kind);
  std::vector<Bf16> x(k);
  for (int64_t i = 0; i < k; ++i) {
    const uint32_t word = random.next();
    const float sign = word & 1U ? -1.0F : 1.0F;
    const float quarters = static_cast<float>(word >> 8 & 0x3FU) * 0.25F;  // ties of small scales
    const float bell = to_float(Bf16{static_cast<uint16_t>(0x3F00 + (word >> 8) % 0x180)});
    const int octave = static_cast<int>(word >> 20 & 0x1FU);
    float value = 0.0F;
    switch (kind % 12) {
      case 0:
        value = 0.0F;
        break;
      case 1:
        value = sign * 0.0F;
        break;
      case 2:
        value = sign * quarters;
        break;
      case 3:
        value = i == 0 ? 2688.0F : sign * quarters;
        break;
      case 4:
        value = i == k - 1 ? 2704.0F : sign * bell;
        break;  // one step above 2688
      case 5:
        value = i == 3 ? 6.375F : sign * 1.0F;
        break;  // a tie of the block's scale
      case 6:
        value = std::ldexp(sign * bell, -octave);
        break;
      case 7:
        value = std::ldexp(sign * bell, -octave * 4);
        break;
      case 8:
        value = std::ldexp(sign * bell, -130 + octave / 8);
        break;
      case 9:
        value = std::ldexp(sign * bell, 124 - octave);
        break;
      case 10:
        value = i / 16 % 2 == 0 ? std::ldexp(sign * bell, 11) : sign * 0x1p-8F * bell;
        break;
      default:
        value = to_float(Bf16{static_cast<uint16_t>(word >> 16 & 0x80FFU)});
        break;  // tiny
    }
    x[i] = to_bf16(value);
  }
  return x;
}

struct Case {
  int64_t k;
  int residual_blocks;
  bool permuted, channels, scale_floor;
  int copies;
  WeightFormat format = WeightFormat::kNvfp4;
};

void check_case(const Case& c, const std::vector<std::vector<Bf16>>& tokens) {
  Compensation compensation;
  compensation.residual_blocks = c.residual_blocks;
  compensation.scale_floor = c.scale_floor;
  if (c.permuted) compensation.positions = shuffled_positions(c.k / 16, c.k);
  if (c.channels) {
    RandomSequence random(2, RandomStream::kTask, c.k);
    for (int64_t i = 0; i < c.k; ++i) {
      // Whole blocks without a channel too.
      compensation.channels.push_back(i / 16 % 5 == 2 ? 0 : random.below(2));
    }
  }
  constexpr int kExperts = 8;
  std::vector<int64_t> ids(tokens.size());
  std::iota(ids.begin(), ids.end(), 0);
  const Routing routing = route_tokens(ids, c.copies, kExperts, [](int64_t token, int j) {
    return static_cast<int>((token * token + j * 3) % 7 % kExperts);  // one expert stays empty
  });
  std::vector<Bf16> x;
  std::vector<Operands> operands;
  for (const std::vector<Bf16>& row : tokens) {
    x.insert(x.end(), row.begin(), row.end());
    operands.push_back(reference_operands(row, compensation));
  }
  std::vector<Operands> rows;
  for (const int64_t token : routing.tokens) rows.push_back(operands[token]);
  const Images expected = reference_images(rows, reference_places(routing.offsets),
                                           padded_rows_bound(routing.rows(), kExperts), c.k,
                                           compensation, kPoison, c.format);

  DeviceMoe moe(random_experts(kExperts, 64, c.k, 1), compensation, {c.format});
  moe.load(routing, x);
  moe.quantize();
  finish("quantising");
  const auto differences = [](const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
    int64_t count = 0;
    // Sums of zeros differ in sign from a zero that nothing is added to.
    for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i] && ((a[i] | b[i]) & 0x7FFFU) != 0;
    return count;
  };
  SCOPED_TRACE(testing::Message() << "k " << c.k << ", blocks " << c.residual_blocks
                                  << ", permuted " << c.permuted << ", channels " << c.channels
                                  << ", floor " << c.scale_floor << ", copies " << c.copies);
  ASSERT_EQ(moe.q1().size(), expected.q1.size());
  EXPECT_EQ(differences(moe.q1(), expected.q1), 0) << "in q1, of " << expected.q1.size();
  EXPECT_EQ(differences(moe.q2(), expected.q2), 0) << "in q2, of " << expected.q2.size();
  EXPECT_EQ(moe.first_bad_row(), INT_MAX);
  if (c.format != WeightFormat::kNvfp4Fp16) return;
  const std::vector<float> scales = moe.row_scales();
  const std::vector<ImageRow> places = reference_places(routing.offsets);
  for (size_t r = 0; r < places.size(); ++r) {
    ASSERT_EQ(scales[places[r].base + places[r].index], rows[r].g) << "row " << r;
  }
}

std::vector<std::vector<Bf16>> rows_of(int64_t count, int64_t k, bool adversarial) {
  std::vector<std::vector<Bf16>> rows;
  for (int64_t i = 0; i < count; ++i) {
    rows.push_back(adversarial ? adversarial_row(i, k) : token_row(i, k));
  }
  return rows;
}

TEST(QuantizeRows, ImagesAreThoseOfNumericsBitForBit) {
  QUADS_NEEDS_DEVICE();
  for (const bool adversarial : {false, true}) {
    for (const int64_t k : {16, 48, 128, 400, 768, 2048, 4096}) {
      const auto rows = rows_of(24, k, adversarial);
      const int all = static_cast<int>(k / 16);
      for (const int blocks : {0, 1, all / 2, all}) {
        for (const bool floor : {false, true}) {
          check_case({k, blocks, false, false, floor, 1}, rows);
          check_case({k, blocks, true, true, floor, 3}, rows);
        }
        check_case({k, blocks, false, false, true, 1, WeightFormat::kNvfp4Fp16}, rows);
        check_case({k, blocks, true, true, true, 3, WeightFormat::kNvfp4Fp16}, rows);
      }
    }
  }
}

TEST(QuantizeRows, ManyRowsShareBlocksOfThreads) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t k : {64, 768, 2048}) {
    const int half = static_cast<int>(k / 32);
    check_case({k, half, true, false, false, 2}, rows_of(601, k, false));
    check_case({k, half, true, false, true, 2, WeightFormat::kNvfp4Fp16}, rows_of(601, k, false));
  }
}

TEST(QuantizeRows, OneRowAndTheLongest) {
  QUADS_NEEDS_DEVICE();
  const auto rows = rows_of(1, kMaxQuantizedK, false);
  check_case({kMaxQuantizedK, 1024, true, true, true, 1}, rows);
  check_case({kMaxQuantizedK, 1024, true, true, true, 1, WeightFormat::kNvfp4Fp16}, rows);
}

void check_bad_rows(WeightFormat format) {
  constexpr int64_t kK = 256;
  const float infinity = std::numeric_limits<float>::infinity();
  const uint16_t beyond = 0x7F7F;  // rounds to a value beyond BF16's range
  for (const uint16_t bits : {to_bf16(infinity).bits, to_bf16(-infinity).bits, uint16_t{0x7FC0},
                              uint16_t{0xFF81}, beyond}) {
    for (const int64_t column : {int64_t{0}, int64_t{100}, kK - 1}) {
      auto rows = rows_of(40, kK, false);
      rows[9][column].bits = bits;
      rows[31][3].bits = bits;
      std::vector<Bf16> x;
      for (const auto& row : rows) x.insert(x.end(), row.begin(), row.end());
      std::vector<int64_t> ids(40);
      std::iota(ids.begin(), ids.end(), 0);
      const Routing routing = route_tokens(ids, 1, 1, [](int64_t, int) { return 0; });
      const bool fp16 = format == WeightFormat::kNvfp4Fp16;
      const uint16_t infinite = fp16 ? 0x7C00 : 0x7F80;
      const Compensation compensation{{}, 16, {}, fp16};
      DeviceMoe moe(random_experts(1, 64, kK, 1), compensation, {format});
      moe.load(routing, x);
      moe.quantize();
      EXPECT_EQ(moe.first_bad_row(), 9);
      const std::vector<uint16_t> q1 = moe.q1();
      const auto places = reference_places(routing.offsets);
      for (const int64_t row : {9, 31}) {
        bool finite = true;
        for (int chunk = 0; chunk < 32; ++chunk) {
          const int64_t at = image_offset(places[row], 2, chunk / 16, chunk % 16);
          for (int i = 0; i < 8; ++i) finite = finite && (q1[at + i] & infinite) != infinite;
        }
        EXPECT_FALSE(finite) << "row " << row << " was laundered";
      }
      // The other rows are what they are without it.
      const Operands good = reference_operands(rows[10], compensation);
      for (int64_t channel = 0; channel < kK; ++channel) {
        const int64_t at = image_offset(places[10], 2, static_cast<int>(channel / 128),
                                        static_cast<int>(channel % 128 / 8)) +
                           channel % 8;
        const double sum = double{good.q1[channel]} + good.q2[channel];
        ASSERT_EQ(q1[at], fp16 ? exact_fp16(sum / good.g) : to_bf16(good.q1[channel]).bits);
      }
    }
  }
}

TEST(QuantizeRows, ARowThatIsNotFiniteIsReportedAndNotLaundered) {
  QUADS_NEEDS_DEVICE();
  check_bad_rows(WeightFormat::kNvfp4);
  check_bad_rows(WeightFormat::kNvfp4Fp16);
}

// Rows and places that change with every step, each written by a kernel just before the
// quantiser's.
class WrittenInputs {
 public:
  WrittenInputs(bool gated, int64_t rows, int64_t k)
      : gated_(gated), count_(rows), k_(k), slots_(rows * kTopK) {
    std::vector<Bf16> table;
    for (int64_t token = 0; token < kVocab; ++token) {
      const std::vector<Bf16> row = token_row(token, 2 * k_);
      table.insert(table.end(), row.begin(), row.end());
    }
    table_.upload(table);
    weight_.upload(std::vector<Bf16>(2 * k_, to_bf16(1.0F)));
    for (int version = 0; version < 2; ++version) {
      RandomSequence random(8, RandomStream::kTask, version);
      std::vector<int32_t> tokens(count_), ids(slots_);
      for (int32_t& token : tokens) token = static_cast<int32_t>(random.below(kVocab));
      for (int32_t& id : ids) id = static_cast<int32_t>(random.below(kExperts));
      tokens_[version].upload(tokens);
      ids_[version].upload(ids);
      embed(make_context(nullptr), version, before_norm_[version].data());
    }
  }

  /// The images of steps of versions 0, 1, 0, ...; of rows and places one is written last.
  std::vector<uint16_t> images(bool overlap, bool rows_last, OlderInput older) {
    cudaStream_t stream;
    check_cuda(cudaStreamCreate(&stream), "stream");
    CudaContext context = make_context(stream);
    context.overlap = overlap;
    images_.fill_bytes(0xFF);
    check_cuda(cudaDeviceSynchronize(), "poison");
    for (int step = 0; step < kSteps; ++step) {
      if (!rows_last) write_rows(context, step % 2);
      write_places(context, step % 2);
      if (rows_last) write_rows(context, step % 2);
      QuantizeRows args{.ldx = 2 * k_, .rows = count_, .k = k_, .copies = kTopK, .older = older};
      args.x = gated_ ? nullptr : rows_.data() + k_;  // the half that is written last
      args.gate_up = gated_ ? gate_up_.data() : nullptr;
      args.image_rows = places_.data();
      args.q1 = reinterpret_cast<Bf16*>(images_.data()) + step * image();
      args.first_bad_row = bad_.data();
      quantize_rows(context, args);
    }
    check_cuda(cudaStreamSynchronize(stream), "quantising");
    cudaStreamDestroy(stream);
    return images_.download();
  }

  /// Elements of a step's image.
  int64_t image() const { return padded_rows_bound(slots_, kExperts) * k_; }

 private:
  static constexpr int64_t kVocab = 64;
  static constexpr int kExperts = 8, kTopK = 2, kSteps = 6;

  void embed(const CudaContext& context, int version, float* to) {
    embed_rows(context, {.table = table_.data(),
                         .vocab = kVocab,
                         .d = 2 * k_,
                         .tokens = tokens_[version].data(),
                         .rows = count_,
                         .x = to});
  }
  void write_rows(const CudaContext& context, int version) {
    if (gated_) {
      embed(context, version, gate_up_.data());
      return;
    }
    norm_rows(context, {.x = before_norm_[version].data(),
                        .rows = count_,
                        .d = 2 * k_,
                        .weight = weight_.data(),
                        .eps = 1e-6F,
                        .h = rows_.data()});
  }
  void write_places(const CudaContext& context, int version) {
    sort_slots(context, {.ids = ids_[version].data(),
                         .slots = slots_,
                         .experts = kExperts,
                         .top_k = kTopK,
                         .expert_offsets = offsets_.data(),
                         .sorted_rows = sorted_rows_.data(),
                         .image_rows = places_.data()});
  }

  bool gated_;
  int64_t count_, k_, slots_;
  DeviceArray<Bf16> table_{static_cast<size_t>(kVocab * 2 * k_)};
  DeviceArray<Bf16> weight_{static_cast<size_t>(2 * k_)};
  DeviceArray<Bf16> rows_{static_cast<size_t>(count_ * 2 * k_)};
  DeviceArray<float> gate_up_{static_cast<size_t>(count_ * 2 * k_)};
  DeviceArray<float> before_norm_[2]{DeviceArray<float>(count_ * 2 * k_),
                                     DeviceArray<float>(count_ * 2 * k_)};
  DeviceArray<int32_t> tokens_[2]{DeviceArray<int32_t>(count_), DeviceArray<int32_t>(count_)};
  DeviceArray<int32_t> ids_[2]{DeviceArray<int32_t>(slots_), DeviceArray<int32_t>(slots_)};
  DeviceArray<int32_t> offsets_{kExperts + 1}, bad_{1};
  DeviceArray<int32_t> sorted_rows_{static_cast<size_t>(slots_)};
  DeviceArray<ImageRow> places_{static_cast<size_t>(slots_)};
  DeviceArray<uint16_t> images_{static_cast<size_t>(kSteps * image())};
};

TEST(QuantizeRows, WhatThePreviousKernelWroteIsReadAfterTheWaitAndOlderInputIsWhole) {
  QUADS_NEEDS_DEVICE();
  struct Size {
    int64_t rows, k;
  };
  // Few rows leave room for the quantiser beside the kernel that writes them, many take the one
  // that sorts their places a while.
  for (const Size size : {Size{32, 4096}, Size{256, 2048}, Size{4096, 256}}) {
    for (const bool gated : {false, true}) {
      WrittenInputs inputs(gated, size.rows, size.k);
      const std::vector<uint16_t> expected = inputs.images(false, true, OlderInput::kNone);
      const auto second = expected.begin() + inputs.image();
      ASSERT_FALSE(std::equal(expected.begin(), second, second));
      for (const bool rows_last : {false, true}) {
        const OlderInput older = rows_last ? OlderInput::kPlaces : OlderInput::kRows;
        for (const OlderInput input : {OlderInput::kNone, older}) {
          for (int repeat = 0; repeat < 3; ++repeat) {
            EXPECT_TRUE(inputs.images(true, rows_last, input) == expected)
                << size.rows << " rows, gated " << gated << ", rows last " << rows_last
                << ", older " << static_cast<int>(input);
          }
        }
      }
    }
  }
}

TEST(QuantizeRows, ArgumentsOutOfRangeAreRefused) {
  const CudaContext context;
  int32_t bad = INT_MAX;
  QuantizeRows good;
  good.k = good.ldx = 32;
  good.first_bad_row = &bad;
  EXPECT_NO_THROW(quantize_rows(context, good));  // no rows, no launch
  const auto refused = [&](auto change) {
    QuantizeRows args = good;
    change(&args);
    EXPECT_THROW(quantize_rows(context, args), Error);
  };
  refused([](QuantizeRows* args) { args->k = 40; });
  refused([](QuantizeRows* args) { args->k = 0; });
  refused([](QuantizeRows* args) { args->k = kMaxQuantizedK + 16; });
  refused([](QuantizeRows* args) { args->ldx = 33; });
  refused([](QuantizeRows* args) { args->residual_blocks = 3; });
  refused([](QuantizeRows* args) { args->rows = -1; });
  refused([](QuantizeRows* args) { args->copies = 0; });
  refused([](QuantizeRows* args) { args->first_bad_row = nullptr; });
  refused([](QuantizeRows* args) { args->rows = 1; });  // of nothing
  refused([](QuantizeRows* args) {
    args->format = WeightFormat::kFp8;
    args->residual_blocks = 1;
  });
  refused([](QuantizeRows* args) { args->format = WeightFormat::kNvfp4Fp16; });  // without a floor
}

}  // namespace
}  // namespace quads::kernels::cuda
