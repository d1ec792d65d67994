// Attention over pages on a device: against FP64, and its rows bit for bit over tiles, batches,
// orders and places of pages.
#include "kernels/cuda/attention/attention_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/error.h"
#include "kernels/cuda/attention/qkv_rows.h"
#include "kernels/cuda/kv_problem.h"
#include "kernels/cuda/test_values.h"

namespace quads::kernels::cuda {
namespace {

constexpr AttentionTile kTiles[] = {AttentionTile::kRow, AttentionTile::kRuns,
                                    AttentionTile::kRunsMma};
const char* name(AttentionTile tile) {
  if (tile == AttentionTile::kRow) return "row";
  return tile == AttentionTile::kRuns ? "runs" : "runs by mma.sync";
}

std::vector<Bf16> query_of(const HeadShape& shape, int32_t sequence, int32_t position) {
  return hashed_values(shape.q_width(), 5000 + sequence, position);
}

struct Options {
  float scale = 0.0F;  // 0: 1 / sqrt(head_dim)
  int32_t row_count = -1;
  int64_t max_context = 0;  // 0: as long as the tables
};

/// out [rows, q_width] as bits; rows that are not written are kNanBf16.
std::vector<uint16_t> attend(KvProblem& problem, const Rows& rows, AttentionTile tile,
                             const Options& options = {}) {
  const HeadShape& shape = problem.shape;
  std::vector<Bf16> queries;
  for (int64_t r = 0; r < rows.size(); ++r) {
    const std::vector<Bf16> q = query_of(shape, rows.sequences[r], std::max(0, rows.positions[r]));
    queries.insert(queries.end(), q.begin(), q.end());
  }
  DeviceArray<Bf16> q(queries);
  DeviceArray<uint16_t> kv(problem.pages), out(rows.size() * shape.q_width());
  DevicePlaces places(rows, problem.table, problem.max_pages);
  DeviceArray<int32_t> row_count(std::vector<int32_t>{options.row_count});
  out.fill_bytes(0xFF);
  AttentionRows args;
  args.shape = shape;
  args.places = places.places;
  if (options.row_count >= 0) args.places.row_count = row_count.data();
  args.scale =
      options.scale > 0.0F ? options.scale : 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  args.max_context = options.max_context > 0 ? options.max_context : problem.max_pages * 16;
  args.q = q.data();
  args.kv = reinterpret_cast<const Bf16*>(kv.data());
  args.pages = problem.page_count;
  const int64_t bytes = attention_scratch_bytes(shape, rows.size(), args.max_context, tile);
  DeviceArray<uint8_t> scratch(bytes);
  scratch.fill_bytes(0xFF);
  args.scratch = bytes == 0 ? nullptr : scratch.data();
  args.out = reinterpret_cast<Bf16*>(out.data());
  attention_rows(make_context(nullptr), args, tile);
  finish("attention");
  return out.download();
}

// Rows of `out` that differ from those of the same token in `all`.
int64_t differing_rows(const HeadShape& shape, const Rows& rows, const std::vector<uint16_t>& out,
                       const Rows& all_rows, const std::vector<uint16_t>& all) {
  std::map<std::pair<int32_t, int32_t>, int64_t> where;
  for (int64_t r = 0; r < all_rows.size(); ++r) {
    where[{all_rows.sequences[r], all_rows.positions[r]}] = r;
  }
  int64_t count = 0;
  for (int64_t r = 0; r < rows.size(); ++r) {
    const int64_t same = where.at({rows.sequences[r], rows.positions[r]});
    count += std::memcmp(&out[r * shape.q_width()], &all[same * shape.q_width()],
                         shape.q_width() * 2) != 0;
  }
  return count;
}

Rows all_rows(const KvProblem& problem) {
  Rows rows;
  for (size_t s = 0; s < problem.lengths.size(); ++s) {
    rows.add(static_cast<int32_t>(s), 0, problem.lengths[s]);
  }
  return rows;
}

// With exact p the error would be that of FP32 sums. Rounding p to BF16 changes a term and the sum
// of p by at most 2^-9 each; s has an error of 2^-22 of its terms a step of 16 and is in the
// exponent; the sums of a tile and their merging add less than 2^-16. The result is rounded once
// more, to 2^-9.
void expect_close(KvProblem& problem, const Rows& rows, const std::vector<uint16_t>& out,
                  float scale, const char* what) {
  const HeadShape& shape = problem.shape;
  RandomSequence random(2, RandomStream::kTask, 4);
  int64_t bad = 0;
  double worst = 0.0;
  for (int i = 0; i < 60; ++i) {
    const int64_t r = i < 20 ? rows.size() - 1 - i % rows.size()
                             : random.below(static_cast<uint32_t>(rows.size()));
    const int head = static_cast<int>(random.below(static_cast<uint32_t>(shape.heads)));
    const int kv_head = head / (shape.heads / shape.kv_heads);
    const int32_t s = rows.sequences[r];
    const std::vector<Bf16> q = query_of(shape, s, rows.positions[r]);
    std::vector<double> score(rows.positions[r] + 1);
    double largest = -INFINITY;
    double terms = 0.0;  // of a score, in magnitude
    for (size_t j = 0; j < score.size(); ++j) {
      double magnitude = 0.0;
      for (int d = 0; d < shape.head_dim; ++d) {
        const double term = double{to_float(q[head * shape.head_dim + d])} *
                            problem.at(s, static_cast<int64_t>(j), kv_head, 0, d);
        score[j] += term * scale;
        magnitude += std::fabs(term) * scale;
      }
      largest = std::max(largest, score[j]);
      terms = std::max(terms, magnitude);
    }
    double sum = 0.0;
    for (double& p : score) sum += p = std::exp(p - largest);
    const double relative = 0x1p-8 + 0x1p-16 + 2 * terms * 0x1p-22 * (shape.head_dim / 16 + 2);
    for (int d = 0; d < shape.head_dim; ++d) {
      double expected = 0.0;
      double magnitude = 0.0;
      for (size_t j = 0; j < score.size(); ++j) {
        const double term = score[j] / sum * problem.at(s, static_cast<int64_t>(j), kv_head, 1, d);
        expected += term;
        magnitude += std::fabs(term);
      }
      const double y = to_float(Bf16{out[r * shape.q_width() + head * shape.head_dim + d]});
      const double error = std::fabs(y - expected);
      worst = std::max(worst, error / magnitude);
      bad += error <= relative * magnitude + 0x1p-8 * std::fabs(expected) ? 0 : 1;
    }
  }
  EXPECT_EQ(bad, 0) << what << "; worst error / magnitude " << worst;
}

const HeadShape kShapes[] = {{8, 1, 128}, {4, 4, 32}, {6, 2, 96},  {4, 1, 256},
                             {16, 1, 48}, {2, 2, 80}, {12, 4, 64}, {5, 1, 192}};

TEST(AttentionRows, ResultsAreWithinTheBoundOfFp64) {
  QUADS_NEEDS_DEVICE();
  for (const HeadShape& shape : kShapes) {
    KvProblem problem(shape, {1, 15, 64, 130, 1100, 600}, 1);
    const Rows rows = all_rows(problem);
    for (const AttentionTile tile : kTiles) {
      for (const float factor : {1.0F, 6.0F}) {  // the second is nearly an arg max
        const float scale = factor / std::sqrt(static_cast<float>(shape.head_dim));
        SCOPED_TRACE(testing::Message() << shape.heads << " heads over " << shape.kv_heads << " of "
                                        << shape.head_dim << ", scale times " << factor);
        expect_close(problem, rows, attend(problem, rows, tile, {scale}), scale, name(tile));
      }
    }
  }
}

TEST(AttentionRows, DecodingPrefillChunksAndPackedSequencesGiveTheSameBits) {
  QUADS_NEEDS_DEVICE();
  for (const HeadShape& shape : kShapes) {
    SCOPED_TRACE(testing::Message()
                 << shape.heads << " heads over " << shape.kv_heads << " of " << shape.head_dim);
    const std::vector<int32_t> lengths = {1, 2, 16, 17, 63, 64, 65, 511, 512, 513, 1100, 129};
    KvProblem problem(shape, lengths, 1);
    KvProblem elsewhere(shape, lengths, 7);
    const Rows all = all_rows(problem);
    const std::vector<uint16_t> packed = attend(problem, all, AttentionTile::kRunsMma);
    EXPECT_EQ(std::count(packed.begin(), packed.end(), kNanBf16), 0);
    for (const AttentionTile tile : {AttentionTile::kRow, AttentionTile::kRuns}) {
      EXPECT_EQ(differing_rows(shape, all, attend(problem, all, tile), all, packed), 0)
          << name(tile);
    }
    EXPECT_EQ(differing_rows(shape, all, attend(elsewhere, all, AttentionTile::kRow), all, packed),
              0)
        << "pages elsewhere";
    Rows newest, chunks, mixed;
    for (int32_t s = 0; s < static_cast<int32_t>(lengths.size()); ++s) {
      newest.add(s, lengths[s] - 1, lengths[s]);
      chunks.add(s, lengths[s] / 3, lengths[s]);
      mixed.add(s, s % 2 == 0 ? lengths[s] - 1 : lengths[s] / 2, lengths[s]);
    }
    Rows shuffled = all;
    RandomSequence random(3, RandomStream::kShuffle, 0);
    for (int64_t i = shuffled.size() - 1; i > 0; --i) {
      const auto j = random.below(static_cast<uint32_t>(i + 1));
      std::swap(shuffled.positions[i], shuffled.positions[j]);
      std::swap(shuffled.sequences[i], shuffled.sequences[j]);
    }
    for (const AttentionTile tile : kTiles) {
      for (const Rows* rows : {&newest, &chunks, &mixed, &shuffled}) {
        EXPECT_EQ(differing_rows(shape, *rows, attend(elsewhere, *rows, tile), all, packed), 0)
            << name(tile) << ": " << rows->size() << " rows";
      }
      for (const int32_t s : {6, 9, 10}) {
        Rows one;
        one.add(s, lengths[s] - 1, lengths[s]);
        EXPECT_EQ(differing_rows(shape, one, attend(problem, one, tile), all, packed), 0)
            << name(tile) << ": one row";
      }
    }
  }
}

TEST(AttentionRows, SharedPagesAndTheBoundOfContextsChangeNothing) {
  QUADS_NEEDS_DEVICE();
  const HeadShape shape = {8, 2, 128};
  KvProblem problem(shape, {200, 500, 129, 700}, 1, 128);
  KvProblem elsewhere(shape, {200, 500, 129, 700}, 9, 128);
  const Rows all = all_rows(problem);
  const std::vector<uint16_t> packed = attend(problem, all, AttentionTile::kRuns);
  for (const AttentionTile tile : kTiles) {
    EXPECT_EQ(differing_bytes(attend(elsewhere, all, tile), packed), 0) << name(tile);
    Rows within;  // contexts up to 512
    for (const int32_t s : {0, 1, 2}) within.add(s, 100, problem.lengths[s]);
    Options options;
    options.max_context = 512;
    EXPECT_EQ(differing_rows(shape, within, attend(problem, within, tile, options), all, packed), 0)
        << name(tile);
  }
}

TEST(AttentionRows, RowsThatAreLeftOutAreNotTouched) {
  QUADS_NEEDS_DEVICE();
  const HeadShape shape = {8, 2, 64};
  KvProblem problem(shape, {70, 600, 30}, 1);
  const Rows all = all_rows(problem);
  const std::vector<uint16_t> packed = attend(problem, all, AttentionTile::kRuns);
  for (const AttentionTile tile : kTiles) {
    Rows some = all;
    std::vector<uint16_t> expected = packed;
    const auto leave_out = [&](int64_t row) {
      std::fill_n(expected.begin() + row * shape.q_width(), shape.q_width(), kNanBf16);
    };
    for (int64_t r = 0; r < all.size(); r += r % 3 + 1) {
      some.positions[r] = -1;
      leave_out(r);
    }
    EXPECT_EQ(differing_bytes(attend(problem, some, tile), expected), 0) << name(tile);
    for (const int32_t count : {0, 1, 75, 5000}) {
      expected = packed;
      for (int64_t r = count; r < all.size(); ++r) leave_out(r);
      Options options;
      options.row_count = count;
      EXPECT_EQ(differing_bytes(attend(problem, all, tile, options), expected), 0)
          << name(tile) << ", " << count << " rows";
    }
    EXPECT_TRUE(attend(problem, {}, tile).empty());
  }
}

TEST(AttentionRows, ANanReachesOnlyRowsThatSeeIt) {
  QUADS_NEEDS_DEVICE();
  const HeadShape shape = {4, 1, 128};
  for (const int kind : {0, 1}) {
    KvProblem problem(shape, {200, 90}, 1);
    const Rows all = all_rows(problem);
    const std::vector<uint16_t> packed = attend(problem, all, AttentionTile::kRow);
    for (int d = 0; d < shape.head_dim; ++d)
      problem.element(problem.table[6], 0, kind, 5)[d] = 0x7FC0;
    const std::vector<uint16_t> out = attend(problem, all, AttentionTile::kRow);
    for (int64_t r = 0; r < all.size(); ++r) {
      const bool sees = r < 200 && r >= 6 * 16 + 5;
      for (int64_t i = r * shape.q_width(); i < (r + 1) * shape.q_width(); ++i) {
        ASSERT_EQ(std::isnan(to_float(Bf16{out[i]})), sees) << "row " << r << ", kind " << kind;
        if (!sees) {
          ASSERT_EQ(out[i], packed[i]) << "row " << r;
        }
      }
    }
  }
}

// Keys and values of the rows' own positions come from the kernel before, the others' are fetched
// while it runs: contexts within a tile, at its edges, over several tiles and splits.
TEST(AttentionRows, DecodedRowsSeeTheKeysOfTheKernelBeforeOverlappedOrNot) {
  QUADS_NEEDS_DEVICE();
  const HeadShape shape{.heads = 8, .kv_heads = 2, .head_dim = 128};
  KvProblem problem(shape, {1, 64, 65, 128, 129, 200, 512, 513, 577, 1100}, 3);
  Rows rows;
  for (size_t s = 0; s < problem.lengths.size(); ++s) {
    rows.add(static_cast<int32_t>(s), problem.lengths[s] - 1, problem.lengths[s]);
    const int32_t at = problem.lengths[s] - 1;
    const int32_t page = problem.table[s * problem.max_pages + at / 16];
    for (int h = 0; h < shape.kv_heads; ++h) {
      for (const int kind : {0, 1}) {
        std::fill_n(problem.element(page, h, kind, at % 16), shape.head_dim, kNanBf16);
      }
    }
  }
  const int64_t angles = problem.max_pages * 16 * shape.head_dim / 2;
  DeviceArray<float> qkv(bell(rows.size() * shape.qkv_width(), 1));
  DeviceArray<float> cos(std::vector<float>(angles, 0.6F)), sin(std::vector<float>(angles, 0.8F));
  DeviceArray<Bf16> q(rows.size() * shape.q_width());
  const DevicePlaces places(rows, problem.table, problem.max_pages);
  const int64_t context_bound = problem.max_pages * 16;
  DeviceArray<uint8_t> scratch(
      attention_scratch_bytes(shape, rows.size(), context_bound, AttentionTile::kRow));
  const auto run = [&](bool overlap) {
    DeviceArray<uint16_t> kv(problem.pages), out(rows.size() * shape.q_width());
    out.fill_bytes(0xFF);
    cudaStream_t stream;
    check_cuda(cudaStreamCreate(&stream), "stream");
    CudaContext context = make_context(stream);
    context.overlap = overlap;
    qkv_rows(context, {.shape = shape,
                       .places = places.places,
                       .qkv = qkv.data(),
                       .cos = cos.data(),
                       .sin = sin.data(),
                       .q = q.data(),
                       .kv = reinterpret_cast<Bf16*>(kv.data())});
    attention_rows(context,
                   {.shape = shape,
                    .places = places.places,
                    .scale = 0.1F,
                    .max_context = context_bound,
                    .q = q.data(),
                    .kv = reinterpret_cast<const Bf16*>(kv.data()),
                    .pages = problem.page_count,
                    .scratch = scratch.data(),
                    .out = reinterpret_cast<Bf16*>(out.data())},
                   AttentionTile::kRow);
    finish("attention");
    cudaStreamDestroy(stream);
    return out.download();
  };
  const std::vector<uint16_t> expected = run(false);
  for (const uint16_t bits : expected) EXPECT_TRUE(std::isfinite(to_float(Bf16{bits})));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run(true), expected);
}

TEST(AttentionRows, ArgumentsOutOfRangeAreRefused) {
  const CudaContext context;
  AttentionRows args;
  args.shape = {8, 2, 64};
  args.places.max_pages = 100;
  args.scale = 1.0F;
  args.max_context = 1000;
  args.pages = 10;
  EXPECT_NO_THROW(attention_rows(context, args, AttentionTile::kRow));  // no rows
  const auto refused = [&](auto change) {
    AttentionRows changed = args;
    change(changed);
    EXPECT_THROW(attention_rows(context, changed, AttentionTile::kRow), Error);
  };
  refused([](AttentionRows& a) { a.shape.heads = 7; });
  refused([](AttentionRows& a) { a.shape.heads = 34; });
  refused([](AttentionRows& a) { a.shape.kv_heads = 0; });
  refused([](AttentionRows& a) { a.shape.head_dim = 24; });
  refused([](AttentionRows& a) { a.shape.head_dim = 272; });
  refused([](AttentionRows& a) { a.scale = 0.0F; });
  refused([](AttentionRows& a) { a.max_context = 1601; });
  refused([](AttentionRows& a) { a.max_context = 0; });
  refused([](AttentionRows& a) { a.pages = 0; });
  refused([](AttentionRows& a) { a.places.rows = -1; });
  refused([](AttentionRows& a) { a.places.rows = 5; });  // no scratch for two splits
  EXPECT_EQ(attention_scratch_bytes(args.shape, 5, 512, AttentionTile::kRow), 0);
  EXPECT_EQ(attention_scratch_bytes(args.shape, 5, 1000, AttentionTile::kRuns), 0);
  EXPECT_EQ(attention_scratch_bytes(args.shape, 5, 1025, AttentionTile::kRow), 5 * 3 * 8 * 66 * 4);
}

}  // namespace
}  // namespace quads::kernels::cuda
