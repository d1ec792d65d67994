// Sums over the vocabulary, log-probabilities and entropies.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sampling/sample_sums.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kChunk = kPiecesOfChunk * kSamplePiece;  // tokens
constexpr int kRowWarps = 4;                           // rows that a block of sums adds up

/// The largest logit of a chunk; NaN is passed over.
__global__ void __launch_bounds__(kThreads) chunk_maxima(const __grid_constant__ SampleArgs args) {
  __shared__ float of_warp[kThreads / 32];
  const int chunks = args.chunks;
  const int64_t row = blockIdx.x / chunks;
  const int first = static_cast<int>(blockIdx.x - row * chunks) * kChunk;
  const int end = min(first + kChunk, args.vocab);
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* z = args.z + row * args.ldz;
  float largest = -kInfinity;
#pragma unroll 8
  for (int i = first + threadIdx.x; i < end; i += kThreads) largest = greater(z[i], largest);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) largest = greater(__shfl_xor_sync(~0U, largest, d), largest);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const float other : of_warp) largest = greater(other, largest);
  args.maxima[blockIdx.x] = largest;
}

/// What is added up: exp(t - m), the same where it is kept, or the terms of the entropy.
enum class Terms { kAll, kKept, kEntropy };

template <Terms terms>
__global__ void __launch_bounds__(kThreads) sum_pieces(const __grid_constant__ SampleArgs args) {
  const int chunks = args.chunks;
  const int pieces = args.pieces;
  const int64_t row = blockIdx.x / chunks;
  const int chunk = static_cast<int>(blockIdx.x - row * chunks);
  const int lane = threadIdx.x & 15;  // of a half warp, which has a piece
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* z = args.z + row * args.ldz;
  const float m = largest_logit(args, row, threadIdx.x & 31) * args.inv_temperature;
  Kept kept{};
  if constexpr (terms == Terms::kKept) kept = args.kept[row];
  const float lse = terms == Terms::kEntropy ? args.lse[row] : 0.0F;
  for (int p = threadIdx.x / 16; p < kPiecesOfChunk; p += kThreads / 16) {
    const int piece = chunk * kPiecesOfChunk + p;
    float logits[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int token = piece * kSamplePiece + i * 16 + lane;
      logits[i] = token < args.vocab ? z[token] : -kInfinity;
    }
    float sum = 0.0F;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int token = piece * kSamplePiece + i * 16 + lane;
      if (token >= args.vocab) continue;
      if constexpr (terms == Terms::kAll) {
        sum = sum + exponential(logits[i], args.inv_temperature, m, -kInfinity);
      } else if constexpr (terms == Terms::kKept) {
        sum = sum + kept_exponential(logits[i], token, args.inv_temperature, m, kept);
      } else {
        const float t = logits[i] * args.inv_temperature;
        const float probability = exp_f32(t - lse);
        // p log p -> 0 with p: without this a -Inf logit would give 0 * Inf.
        sum = __fmaf_rn(probability, probability == 0.0F ? 0.0F : lse - t, sum);
      }
    }
    sum = reduce_sum_16(sum);
    float* sums = terms == Terms::kAll ? args.sums : args.others;
    if (lane == 0 && piece < pieces) sums[row * pieces + piece] = sum;
  }
}

template <Terms terms>
void launch_sum_pieces(const CudaContext& context, const SampleArgs& args) {
  launch(context, "summing a vocabulary", sum_pieces<terms>,
         static_cast<int>(args.rows * args.chunks), kThreads, 0, args);
}

/// By a warp a row: lse and the target's log-probability.
__global__ void __launch_bounds__(kRowWarps * 32)
    score(const __grid_constant__ SampleArgs args, const __grid_constant__ ScoreRows rows) {
  const int lane = threadIdx.x & 31;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + (threadIdx.x >> 5);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.rows) return;
  const float lse = log_sum_exp(args, row, lane);
  if (lane != 0) return;
  const int target = rows.targets[row];
  const bool there = target >= 0 && target < args.vocab;
  const float logp = there ? args.z[row * args.ldz + target] * args.inv_temperature - lse
                           : __uint_as_float(0x7FC00000U);
  args.lse[row] = lse;
  rows.logp[row] = logp;
  if (logp != logp) atomicMin(args.first_bad_row, static_cast<int32_t>(row));
}

__global__ void __launch_bounds__(kRowWarps * 32)
    add_entropies(const __grid_constant__ SampleArgs args, float* entropy) {
  const int lane = threadIdx.x & 31;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kRowWarps + (threadIdx.x >> 5);
  wait_for_previous_kernel();
  let_next_kernel_start();
  if (row >= args.rows) return;
  const int pieces = args.pieces;
  const double sum = add_pieces(args.others + row * pieces, pieces, lane, nullptr);
  if (lane == 0) entropy[row] = static_cast<float>(sum);
}

void launch_sums(const CudaContext& context, const SampleArgs& args) {
  launch(context, "largest logits", chunk_maxima, static_cast<int>(args.rows * args.chunks),
         kThreads, 0, args);
  launch_sum_pieces<Terms::kAll>(context, args);
}

}  // namespace

void launch_score_rows(const CudaContext& context, const SampleArgs& args, const ScoreRows& rows) {
  const int blocks = static_cast<int>((args.rows + kRowWarps - 1) / kRowWarps);
  launch_sums(context, args);
  launch(context, "log-probabilities", score, blocks, kRowWarps * 32, 0, args, rows);
  if (rows.entropy == nullptr) return;
  launch_sum_pieces<Terms::kEntropy>(context, args);
  launch(context, "entropies", add_entropies, blocks, kRowWarps * 32, 0, args, rows.entropy);
}

void launch_draw_rows(const CudaContext& context, const SampleArgs& args, const DrawRows& draw) {
  launch_sums(context, args);
  const bool greedy = draw.temperature == 0.0F;
  const bool top_k = !greedy && draw.top_k > 0 && draw.top_k < args.vocab;
  const bool top_p = !greedy && draw.top_p < 1.0F;
  if (top_k) {
    launch_keep_top_k(context, args, draw.top_k);
    launch_sum_pieces<Terms::kKept>(context, args);
  }
  if (top_p) {
    launch_keep_top_p(context, args, draw.top_p, top_k);
    launch_sum_pieces<Terms::kKept>(context, args);
  }
  launch_draw(context, args, draw, top_k || top_p);
}

}  // namespace quads::kernels::cuda
