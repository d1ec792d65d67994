// What lies between checking the arguments of sampling and its kernels.
#pragma once

#include "kernels/cuda/sampling/sample_rows.h"

namespace quads::kernels::cuda {

inline constexpr int kSamplePiece = 256;   // tokens whose exponentials are summed in FP32
inline constexpr int kPiecesOfChunk = 32;  // that a block sums

constexpr int pieces_of(int64_t vocab) {
  return static_cast<int>((vocab + kSamplePiece - 1) / kSamplePiece);
}
constexpr int chunks_of(int64_t vocab) {
  return (pieces_of(vocab) + kPiecesOfChunk - 1) / kPiecesOfChunk;
}

/// The tokens that truncation leaves of a row: z >= least_logit and, of those, the ones whose
/// exponential has greater bits than `least_bits`, or these bits and a place up to last_tie.
struct Kept {
  float least_logit;
  uint32_t least_bits;
  int32_t last_tie;
};

/// Logits with the scratch's parts, each [rows, ...].
struct SampleArgs {
  const float* z;
  int64_t ldz;
  int64_t rows;
  int vocab;
  int pieces;
  int chunks;
  float inv_temperature;
  float* maxima;  // [chunks]: of the logits of each chunk
  float* sums;    // [pieces]: of exp(t - m)
  float* others;  // [pieces]: of what is kept of them, or of the entropy's terms
  float* lse;     // []
  Kept* kept;     // []
  int32_t* first_bad_row;
};

void launch_score_rows(const CudaContext& context, const SampleArgs& args, const ScoreRows& score);
void launch_draw_rows(const CudaContext& context, const SampleArgs& args, const DrawRows& draw);

/// The steps of launch_draw_rows between its sums. Whether top-k was done before top-p, and whether
/// `others` has the sums of what is kept.
void launch_keep_top_k(const CudaContext& context, const SampleArgs& args, int top_k);
void launch_keep_top_p(const CudaContext& context, const SampleArgs& args, float top_p,
                       bool after_top_k);
void launch_draw(const CudaContext& context, const SampleArgs& args, const DrawRows& draw,
                 bool truncated);

}  // namespace quads::kernels::cuda
