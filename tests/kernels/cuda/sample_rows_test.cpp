// Log-probabilities, entropies and draws on a device: against a scalar loop in the written order
// bit for bit, and against the CPU's row kernels.
#include "kernels/cuda/sampling/sample_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "kernels/cpu/flush_denormals.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/device_array.h"
#include "kernels/cuda/rows/token_rows.h"
#include "numerics/math.h"

namespace quads::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint64_t kSeed = 0x123456789ABCDEF;

const RowKernels& cpu_rows() { return cpu_kernels(best_isa()).rows; }

using Row = std::vector<float>;

/// A bell curve with a few loud tokens; steps of 1 / 8, so that there are ties.
Row random_row(int64_t vocab, uint64_t id, float scale = 2.0F) {
  RandomSequence random(3, RandomStream::kTask, id);
  Row row(vocab);
  for (float& z : row) {
    z = scale * 3.0F * (random.uniform() + random.uniform() + random.uniform() - 1.5F);
    if (random.below(1000) == 0) z += 8.0F;
    z = std::round(z * 8.0F) / 8.0F;
  }
  return row;
}

/// The sum of term(token) over the vocabulary: pieces of 256 in 16 lanes, then FP64.
double add_in_pieces(int64_t vocab, const std::function<float(int64_t, float)>& add) {
  double total = 0.0;
  for (int64_t first = 0; first < vocab; first += 256) {
    float lanes[16] = {};
    for (int64_t i = first; i < std::min(first + 256, vocab); ++i) {
      lanes[i % 16] = add(i, lanes[i % 16]);
    }
    total += reduce_sum_16(lanes);
  }
  return total;
}

struct Scores {
  float lse, logp, entropy;
};

Scores reference_scores(const Row& z, float inv_temperature, int32_t target) {
  const FlushDenormals flush;
  const auto vocab = static_cast<int64_t>(z.size());
  float largest = -kInfinity;
  for (const float value : z) largest = value > largest ? value : largest;
  const float m = largest * inv_temperature;
  const double sum = add_in_pieces(
      vocab, [&](int64_t i, float before) { return before + exp_f32(z[i] * inv_temperature - m); });
  const float lse = m + log_f32(static_cast<float>(sum));
  const double entropy = add_in_pieces(vocab, [&](int64_t i, float before) {
    const float t = z[i] * inv_temperature;
    const float p = exp_f32(t - lse);
    return std::fma(p, p == 0.0F ? 0.0F : lse - t, before);
  });
  return {lse, z[target] * inv_temperature - lse, static_cast<float>(entropy)};
}

bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0;
}

/// Rows on the device, a few NaNs apart, and their scratch, which is poisoned.
class DeviceLogits {
 public:
  explicit DeviceLogits(const std::vector<Row>& rows)
      : vocab_(static_cast<int64_t>(rows[0].size())),
        rows_(static_cast<int64_t>(rows.size())),
        z_(rows_ * (vocab_ + kGap)),
        scratch_(sample_scratch(rows_, vocab_)),
        bad_(std::vector<int32_t>{INT_MAX}) {
    std::vector<float> z;
    for (const Row& row : rows) {
      z.insert(z.end(), row.begin(), row.end());
      z.insert(z.end(), kGap, kNan);
    }
    z_.upload(z);
    scratch_.fill_bytes(0xFF);
  }
  Logits get() {
    Logits logits;
    logits.z = z_.data();
    logits.ldz = vocab_ + kGap;
    logits.rows = rows_;
    logits.vocab = vocab_;
    logits.scratch = scratch_.data();
    logits.first_bad_row = bad_.data();
    return logits;
  }
  int32_t first_bad_row() const { return bad_.download()[0]; }

 private:
  static constexpr int64_t kGap = 3;
  int64_t vocab_, rows_;
  DeviceArray<float> z_;
  DeviceArray<uint8_t> scratch_;
  DeviceArray<int32_t> bad_;
};

struct Scored {
  std::vector<float> logp, entropy;
  int32_t first_bad_row;
};

Scored score_on_device(const std::vector<Row>& rows, float inv_temperature,
                       const std::vector<int32_t>& targets) {
  DeviceLogits logits(rows);
  DeviceArray<int32_t> device_targets(targets);
  DeviceArray<float> logp(rows.size()), entropy(rows.size());
  logp.fill_bytes(0xFF);
  entropy.fill_bytes(0xFF);
  ScoreRows args;
  args.logits = logits.get();
  args.inv_temperature = inv_temperature;
  args.targets = device_targets.data();
  args.logp = logp.data();
  args.entropy = entropy.data();
  score_rows(make_context(nullptr), args);
  finish("scoring");
  return {logp.download(), entropy.download(), logits.first_bad_row()};
}

TEST(ScoreRows, PiecesAreAddedInTheWrittenOrder) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t vocab : {1, 16, 17, 256, 257, 1000, 8192, 8193, 151936}) {
    std::vector<Row> rows;
    std::vector<int32_t> targets;
    for (int64_t r = 0; r < (vocab > 10000 ? 5 : 37); ++r) {
      rows.push_back(random_row(vocab, r, static_cast<float>(1 << r % 5)));
      targets.push_back(static_cast<int32_t>((r * 7919 + 3) % vocab));
    }
    for (const float inv_temperature : {1.0F, 0.5F, 1.0F / 0.7F}) {
      const Scored scored = score_on_device(rows, inv_temperature, targets);
      EXPECT_EQ(scored.first_bad_row, INT_MAX);
      for (size_t r = 0; r < rows.size(); ++r) {
        const float* z = rows[r].data();
        const Scores expected = reference_scores(rows[r], inv_temperature, targets[r]);
        ASSERT_TRUE(same(scored.logp[r], expected.logp)) << "vocab " << vocab << ", row " << r;
        ASSERT_TRUE(same(scored.entropy[r], expected.entropy))
            << "vocab " << vocab << ", row " << r;
        const FlushDenormals flush;
        const float lse = cpu_rows().log_sum_exp(z, vocab, inv_temperature);
        const float logp = z[targets[r]] * inv_temperature - lse;
        const float entropy = cpu_rows().entropy(z, vocab, inv_temperature, lse);
        if (vocab <= 256) {  // one piece: the CPU's order
          ASSERT_TRUE(same(scored.logp[r], logp)) << "vocab " << vocab << ", row " << r;
          ASSERT_TRUE(same(scored.entropy[r], entropy)) << "vocab " << vocab << ", row " << r;
        }
        // Each of the n / 16 additions of a lane, and of the few behind them, is off by at most
        // 2^-24 of the sum; so is what is done with lse, which is below 2^7.
        const float bound = static_cast<float>(vocab / 16 + 16) * 0x1p-24F + 0x1p-16F;
        ASSERT_NEAR(scored.logp[r], logp, bound);
        ASSERT_NEAR(scored.entropy[r], entropy, bound * (1.0F + entropy));
      }
    }
  }
}

TEST(ScoreRows, ARowsBitsDependOnThatRowAlone) {
  QUADS_NEEDS_DEVICE();
  constexpr int64_t kVocab = 20000;
  std::vector<Row> rows;
  std::vector<int32_t> targets;
  for (int r = 0; r < 70; ++r) {
    rows.push_back(random_row(kVocab, r));
    targets.push_back(r * 11);
  }
  const Scored all = score_on_device(rows, 1.0F, targets);
  for (const int r : {0, 33, 69}) {
    const Scored one = score_on_device({rows[r]}, 1.0F, {targets[r]});
    EXPECT_TRUE(same(one.logp[0], all.logp[r])) << r;
    EXPECT_TRUE(same(one.entropy[0], all.entropy[r])) << r;
  }
}

TEST(ScoreRows, WhatIsNoNumberIsReported) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t vocab : {17, 9000}) {
    std::vector<Row> rows(8, Row(vocab, 0.5F));
    rows[1] = Row(vocab, -kInfinity);
    rows[1][vocab - 1] = 1.0F;  // certain
    rows[3][vocab / 2] = -kInfinity;
    rows[5][vocab - 2] = kNan;
    rows[6][3] = kInfinity;
    rows[7] = Row(vocab, -kInfinity);
    std::vector<int32_t> targets(8, static_cast<int32_t>(vocab / 2));
    targets[1] = static_cast<int32_t>(vocab - 1);
    const Scored scored = score_on_device(rows, 1.0F, targets);
    for (int r = 0; r < 8; ++r) {
      const Scores expected = reference_scores(rows[r], 1.0F, targets[r]);
      EXPECT_TRUE(same(scored.logp[r], expected.logp)) << r;
      EXPECT_TRUE(same(scored.entropy[r], expected.entropy)) << r;
    }
    EXPECT_EQ(scored.logp[1], 0.0F);
    EXPECT_EQ(scored.logp[3], -kInfinity);  // a number: probability 0
    EXPECT_TRUE(std::isnan(scored.logp[5]) && std::isnan(scored.logp[6]));
    EXPECT_EQ(scored.first_bad_row, 5);
    for (const int32_t outside : {-1, static_cast<int32_t>(vocab)}) {
      targets[2] = outside;
      const Scored again = score_on_device(rows, 1.0F, targets);
      EXPECT_TRUE(std::isnan(again.logp[2]));
      EXPECT_EQ(again.first_bad_row, 2);
    }
  }
}

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  int32_t first_bad_row;
};

DrawKey key_of(size_t draw) {
  return {static_cast<int64_t>(draw) + (int64_t{5} << 33), static_cast<int32_t>(draw % 7),
          static_cast<int32_t>(draw * 13 % 101)};
}
float uniform_of(const DrawKey& key) {
  return uniform_from_bits(random_words(kSeed, RandomStream::kSampling, key.prompt_index,
                                        key.sample_index, key.position)[0]);
}

Drawn draw_on_device(const std::vector<Row>& rows, const std::vector<int32_t>& first_draw,
                     const SamplingParams& params) {
  DeviceLogits logits(rows);
  const int32_t count = first_draw.back();
  std::vector<DrawKey> keys;
  for (int32_t d = 0; d < count; ++d) keys.push_back(key_of(d));
  DeviceArray<DrawKey> device_keys(keys);
  DeviceArray<int32_t> first(first_draw), tokens(count);
  DeviceArray<float> logprobs(count);
  tokens.fill_bytes(0xFF);
  logprobs.fill_bytes(0xFF);
  DrawRows args;
  args.logits = logits.get();
  args.temperature = params.temperature;
  args.top_k = params.top_k;
  args.top_p = params.top_p;
  args.seed = kSeed;
  args.first_draw = first.data();
  args.keys = device_keys.data();
  args.tokens = tokens.data();
  args.logprobs = logprobs.data();
  draw_rows(make_context(nullptr), args);
  finish("drawing");
  return {tokens.download(), logprobs.download(), logits.first_bad_row()};
}

/// The CPU's draws, and the log-probabilities that score_rows gives.
void expect_draws(const std::vector<Row>& rows, const std::vector<int32_t>& first_draw,
                  const SamplingParams& params, const Drawn& drawn) {
  Arena arena;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int32_t d = first_draw[r]; d < first_draw[r + 1]; ++d) {
      const float inverse = params.temperature == 0.0F ? 1.0F : 1.0F / params.temperature;
      int32_t token = 0;
      {
        const FlushDenormals flush;
        token = cpu_rows().sample(rows[r].data(), static_cast<int64_t>(rows[r].size()), params,
                                  uniform_of(key_of(d)), arena);
      }
      ASSERT_EQ(drawn.tokens[d], token)
          << "row " << r << ", draw " << d << ", vocab " << rows[r].size() << ", temperature "
          << params.temperature << ", top-k " << params.top_k << ", top-p " << params.top_p;
      ASSERT_TRUE(same(drawn.logprobs[d], reference_scores(rows[r], inverse, token).logp));
    }
  }
}

TEST(DrawRows, TokensAreTheCpus) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t vocab : {1, 17, 256, 300, 8200, 151936}) {
    const bool large = vocab > 10000;
    std::vector<Row> rows;
    std::vector<int32_t> first_draw = {0};
    for (int64_t r = 0; r < (large ? 3 : 9); ++r) {
      rows.push_back(random_row(vocab, 100 + r));
      const int32_t draws[] = {11, 0, 1, 3};  // of a row
      first_draw.push_back(first_draw.back() + draws[r % 4]);
    }
    const auto many = static_cast<int32_t>(10 * vocab);
    for (const float temperature : {0.0F, 0.6F, 1.0F, 4.0F}) {
      for (const int32_t top_k : {0, 1, 50, static_cast<int32_t>(vocab), many}) {
        for (const float top_p : {1.0F, 0.95F, 0.3F, 1e-6F}) {
          if (large && top_k > 50) continue;
          const SamplingParams params{temperature, top_k, top_p};
          const Drawn drawn = draw_on_device(rows, first_draw, params);
          EXPECT_EQ(drawn.first_bad_row, INT_MAX);
          ASSERT_NO_FATAL_FAILURE(expect_draws(rows, first_draw, params, drawn));
        }
      }
    }
  }
}

TEST(DrawRows, HostileLogitsDrawAsOnTheCpuAndAreReported) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t vocab : {17, 5000}) {
    std::vector<Row> rows(7, Row(vocab, 1.5F));  // all alike
    for (int64_t i = 0; i < vocab; ++i) {
      rows[1][i] = i % 3 == 1 ? -kInfinity : 0.0F;
      rows[2][i] = static_cast<float>(i) * -1000.0F;  // the rest has probability 0
      rows[3][i] = i == vocab - 1 ? -1e30F : -kInfinity;
    }
    rows[4][vocab / 2] = kNan;
    rows[4][vocab - 1] = 2.0F;
    rows[5][vocab - 2] = kInfinity;
    rows[6] = Row(vocab, kNan);
    std::vector<int32_t> first_draw(8);
    for (int r = 0; r < 8; ++r) first_draw[r] = r * 5;
    for (const float temperature : {0.0F, 1.0F}) {
      for (const int32_t top_k : {0, 3}) {
        for (const float top_p : {1.0F, 0.9F}) {
          const SamplingParams params{temperature, top_k, top_p};
          const Drawn drawn = draw_on_device(rows, first_draw, params);
          ASSERT_NO_FATAL_FAILURE(expect_draws(rows, first_draw, params, drawn));
          EXPECT_EQ(drawn.first_bad_row, 4);
        }
      }
    }
  }
}

TEST(DrawRows, RowsWithoutDrawsAreNotReported) {
  QUADS_NEEDS_DEVICE();
  const std::vector<Row> rows = {Row(20, kNan), Row(20, 0.0F)};
  const Drawn drawn = draw_on_device(rows, {0, 0, 2}, {});
  EXPECT_EQ(drawn.first_bad_row, INT_MAX);
  ASSERT_NO_FATAL_FAILURE(expect_draws(rows, {0, 0, 2}, {}, drawn));
}

TEST(EmbedRows, TokensGetTheirRowsAndOthersNans) {
  QUADS_NEEDS_DEVICE();
  for (const int64_t d : {8, 2048, 2056}) {
    constexpr int32_t kVocab = 33;
    std::vector<Bf16> table;
    for (int64_t i = 0; i < kVocab * d; ++i) table.push_back({static_cast<uint16_t>(i * 40503)});
    for (Bf16& value : table) {
      if (std::isnan(to_float(value))) value.bits = 1;  // subnormals are kept
    }
    const std::vector<int32_t> tokens = {0, 32, 5, 5, -1, 33, 17};
    DeviceArray<Bf16> device_table(table);
    DeviceArray<int32_t> device_tokens(tokens);
    DeviceArray<float> x(tokens.size() * d);
    EmbedRows args;
    args.table = device_table.data();
    args.vocab = kVocab;
    args.d = d;
    args.tokens = device_tokens.data();
    args.rows = static_cast<int64_t>(tokens.size());
    args.x = x.data();
    embed_rows(make_context(nullptr), args);
    finish("embedding");
    const std::vector<float> rows = x.download();
    for (size_t r = 0; r < tokens.size(); ++r) {
      const bool there = tokens[r] >= 0 && tokens[r] < kVocab;
      for (int64_t i = 0; i < d; ++i) {
        const float expected = there ? to_float(table[tokens[r] * d + i]) : kNan;
        ASSERT_TRUE(same(rows[r * d + i], expected)) << "row " << r << ", " << i;
      }
    }
  }
}

TEST(SampleRows, ArgumentsOutOfRangeAreRefused) {
  const CudaContext context;
  const auto refused = [&](auto change) {
    DrawRows args;
    args.logits.vocab = args.logits.ldz = 100;
    EXPECT_NO_THROW(draw_rows(context, args));  // no rows, no launch
    change(&args);
    EXPECT_THROW(draw_rows(context, args), Error);
  };
  refused([](DrawRows* args) { args->logits.vocab = 0; });
  refused([](DrawRows* args) { args->logits.vocab = args->logits.ldz = kMaxVocab + 1; });
  refused([](DrawRows* args) { args->logits.ldz = 99; });
  refused([](DrawRows* args) { args->logits.rows = -1; });
  refused([](DrawRows* args) { args->temperature = -1.0F; });
  refused([](DrawRows* args) { args->temperature = kNan; });
  refused([](DrawRows* args) { args->temperature = 1e-45F; });
  refused([](DrawRows* args) { args->top_k = -1; });
  refused([](DrawRows* args) { args->top_p = 0.0F; });
  refused([](DrawRows* args) { args->top_p = 1.5F; });
  refused([](DrawRows* args) { args->top_p = kNan; });
  ScoreRows score;
  score.logits.vocab = score.logits.ldz = 100;
  score.inv_temperature = 0.0F;
  EXPECT_THROW(score_rows(context, score), Error);
  EXPECT_THROW(embed_rows(context, {nullptr, 10, 12, nullptr, 0, nullptr}), Error);
}

}  // namespace
}  // namespace quads::kernels::cuda
