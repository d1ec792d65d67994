// Checks of sampling's arguments, and the parts of its scratch.
#include "kernels/cuda/sampling/sample_rows.h"

#include <cmath>

#include "base/error.h"
#include "kernels/cuda/sampling/sample_launch.h"

namespace quads::kernels::cuda {
namespace {

constexpr int64_t kMaxRows = int64_t{1} << 20;

// Rounded up to 16 bytes.
int64_t aligned(int64_t bytes) { return (bytes + 15) / 16 * 16; }

SampleArgs args_of(const Logits& logits, float inv_temperature) {
  require(logits.vocab >= 1 && logits.vocab <= kMaxVocab, "sampling: a vocabulary of {}; 1..{}",
          logits.vocab, kMaxVocab);
  require(logits.rows >= 0 && logits.rows <= kMaxRows, "sampling: {} rows; 0..{}", logits.rows,
          kMaxRows);
  require(logits.ldz >= logits.vocab, "sampling: rows of {} logits {} apart", logits.vocab,
          logits.ldz);
  require(std::isfinite(inv_temperature) && inv_temperature > 0.0F,
          "sampling: an inverse temperature of {}; it must be positive and finite",
          inv_temperature);
  auto* at = static_cast<char*>(logits.scratch);
  const auto take = [&]<class T>(T** part, int64_t of_row) {
    *part = reinterpret_cast<T*>(at);
    at += aligned(logits.rows * of_row * static_cast<int64_t>(sizeof(T)));
  };
  SampleArgs args;
  args.z = logits.z;
  args.ldz = logits.ldz;
  args.rows = logits.rows;
  args.vocab = static_cast<int>(logits.vocab);
  args.pieces = pieces_of(logits.vocab);
  args.chunks = chunks_of(logits.vocab);
  args.inv_temperature = inv_temperature;
  take(&args.maxima, args.chunks);
  take(&args.sums, args.pieces);
  take(&args.others, args.pieces);
  take(&args.lse, 1);
  take(&args.kept, 1);
  args.first_bad_row = logits.first_bad_row;
  return args;
}

}  // namespace

int64_t sample_scratch(int64_t rows, int64_t vocab) {
  const int64_t floats = rows * static_cast<int64_t>(sizeof(float));
  return aligned(floats * chunks_of(vocab)) + 2 * aligned(floats * pieces_of(vocab)) +
         aligned(floats) + aligned(rows * static_cast<int64_t>(sizeof(Kept)));
}

void score_rows(const CudaContext& context, const ScoreRows& score) {
  const SampleArgs args = args_of(score.logits, score.inv_temperature);
  if (args.rows > 0) launch_score_rows(context, args, score);
}

void draw_rows(const CudaContext& context, const DrawRows& draw) {
  require(draw.temperature >= 0.0F, "sampling: a temperature of {}; it must not be negative",
          draw.temperature);
  require(draw.top_k >= 0, "sampling: top-k of {}; 0 is off", draw.top_k);
  require(draw.top_p > 0.0F && draw.top_p <= 1.0F, "sampling: top-p of {}; above 0, at most 1",
          draw.top_p);
  const bool greedy = draw.temperature == 0.0F;
  const SampleArgs args = args_of(draw.logits, greedy ? 1.0F : 1.0F / draw.temperature);
  if (args.rows > 0) launch_draw_rows(context, args, draw);
}

}  // namespace quads::kernels::cuda
