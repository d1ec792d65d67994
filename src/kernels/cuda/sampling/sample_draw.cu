// Draws tokens from rows whose pieces are summed: a block a row, a warp a draw.
#include <climits>

#include "base/random.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sampling/sample_sums.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kMaxPieces = pieces_of(kMaxVocab);

/// base/random.h's uniform_from_bits(random_words(seed, kSampling, prompt, sample, position)[0]).
__device__ float sampling_uniform(uint64_t seed, const DrawKey& draw) {
  const auto prompt = static_cast<uint64_t>(draw.prompt_index);
  uint32_t c0 = static_cast<uint32_t>(prompt);
  uint32_t c1 = static_cast<uint32_t>(prompt >> 32);
  uint32_t c2 = static_cast<uint32_t>(draw.sample_index);
  uint32_t c3 = static_cast<uint32_t>(draw.position);
  uint32_t k0 =
      static_cast<uint32_t>(seed) ^ (static_cast<uint32_t>(RandomStream::kSampling) * 0x85EBCA6BU);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint32_t high0 = __umulhi(0xD2511F53U, c0);
    const uint32_t high1 = __umulhi(0xCD9E8D57U, c2);
    const uint32_t low0 = 0xD2511F53U * c0;
    c0 = high1 ^ c1 ^ k0;
    c1 = 0xCD9E8D57U * c2;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return static_cast<float>(c0 >> 8) * 0x1p-24F;
}

/// The first token with the largest logit, 0 if all are NaN. By all threads of the block.
__device__ int first_maximum(const SampleArgs& args, int64_t row, float largest, int* shared) {
  constexpr int kChunk = kPiecesOfChunk * kSamplePiece;
  const int chunks = args.chunks;
  if (threadIdx.x == 0) *shared = INT_MAX;
  __syncthreads();
  for (int i = threadIdx.x; i < chunks; i += kThreads) {
    if (args.maxima[row * chunks + i] == largest) atomicMin(shared, i);
  }
  __syncthreads();
  const int first = *shared * kChunk;  // there is such a chunk
  const int end = min(first + kChunk, args.vocab);
  __syncthreads();
  if (threadIdx.x == 0) *shared = INT_MAX;
  __syncthreads();
  const float* z = args.z + row * args.ldz;
  int mine = INT_MAX;
#pragma unroll 8
  for (int i = first + static_cast<int>(threadIdx.x); i < end; i += kThreads) {
    if (z[i] == largest) mine = min(mine, i);
  }
  if (mine != INT_MAX) atomicMin(shared, mine);
  __syncthreads();
  return *shared == INT_MAX ? 0 : *shared;
}

/// `truncated`: only what args.kept says is drawn, its sums in args.others.
template <bool truncated>
__global__ void __launch_bounds__(kThreads)
    draw(const __grid_constant__ SampleArgs args, const __grid_constant__ DrawRows rows) {
  __shared__ double below[kMaxPieces + 1];
  __shared__ float shared_lse;
  __shared__ int shared_first;
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int pieces = args.pieces;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const int begin = rows.first_draw[row];
  const int end = rows.first_draw[row + 1];
  if (begin >= end) return;
  const float* z = args.z + row * args.ldz;
  if (warp == 0) {
    add_pieces((truncated ? args.others : args.sums) + row * pieces, pieces, lane, below);
  } else if (warp == 1) {
    const float lse = log_sum_exp(args, row, lane);
    if (lane == 0) shared_lse = lse;
  }
  const float largest = largest_logit(args, row, lane);
  __syncthreads();
  const float lse = shared_lse;
  const double total = below[pieces];
  if (lse != lse && threadIdx.x == 0) atomicMin(args.first_bad_row, static_cast<int32_t>(row));
  if (rows.temperature == 0.0F || !(total > 0.0)) {
    const int token = first_maximum(args, row, largest, &shared_first);
    for (int d = begin + static_cast<int>(threadIdx.x); d < end; d += kThreads) {
      rows.tokens[d] = token;
      rows.logprobs[d] = z[token] * args.inv_temperature - lse;
    }
    return;
  }
  const float m = largest * args.inv_temperature;
  Kept kept{};
  if constexpr (truncated) kept = args.kept[row];
  for (int d = begin + warp; d < end; d += kWarps) {
    const double target = sampling_uniform(rows.seed, rows.keys[d]) * total;
    // The first piece that ends beyond the target: the whole does.
    int piece = 0;
    for (int first = 0; first < pieces; first += 32) {
      const bool beyond = first + lane < pieces && below[first + lane + 1] > target;
      const uint32_t found = __ballot_sync(~0U, beyond);
      if (found == 0) continue;
      piece = first + __ffs(static_cast<int>(found)) - 1;
      break;
    }
    // Here rounding may leave the target out of reach: then it is the piece's last token.
    double sum = below[piece];
    int token = 0;
    bool reached = false;
    for (int i = 0; i < kSamplePiece && !reached; i += 32) {
      const int mine = piece * kSamplePiece + i + lane;
      float e = 0.0F;
      if (mine < args.vocab) {
        e = truncated ? kept_exponential(z[mine], mine, args.inv_temperature, m, kept)
                      : exponential(z[mine], args.inv_temperature, m, -kInfinity);
      }
      for (int j = 0; j < 32; ++j) {
        const float next = __shfl_sync(~0U, e, j);
        if (reached || !(next > 0.0F)) continue;
        token = piece * kSamplePiece + i + j;
        sum += next;
        reached = sum > target;
      }
    }
    if (lane != 0) continue;
    rows.tokens[d] = token;
    rows.logprobs[d] = z[token] * args.inv_temperature - lse;
  }
}

}  // namespace

void launch_draw(const CudaContext& context, const SampleArgs& args, const DrawRows& rows,
                 bool truncated) {
  const auto run = [&](auto* kernel) {
    launch(context, "drawing tokens", kernel, static_cast<int>(args.rows), kThreads, 0, args, rows);
  };
  if (truncated) return run(draw<true>);
  run(draw<false>);
}

}  // namespace quads::kernels::cuda
