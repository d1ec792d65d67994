// Top-k and top-p: which tokens of a row are kept. A block a row, by radix selection; both are off
// in training, so that they are simple rather than fast.
#include <climits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sampling/sample_sums.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kThreads = 1024;

/// Rising with the value, NaN as its bits are: the CPU's.
__device__ __forceinline__ uint32_t order_key(float x) {
  const uint32_t u = __float_as_uint(x);
  return (u & 0x80000000U) != 0 ? ~u : u | 0x80000000U;
}
__device__ __forceinline__ float from_order_key(uint32_t key) {
  return __uint_as_float((key & 0x80000000U) != 0 ? key & 0x7FFFFFFFU : ~key);
}

/// By a warp: the digit at which the counts, added from the highest one down, reach *k (1 or more,
/// at most their sum); *k becomes what of it falls to that digit.
__device__ uint32_t digit_of_rank(const uint32_t* counts, int digits, uint32_t* k, int lane) {
  for (int highest = digits - 1;; highest -= 32) {
    const uint32_t count = counts[highest - lane];
    uint32_t sum = count;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t other = __shfl_up_sync(~0U, sum, d);
      if (lane >= d) sum += other;
    }
    const uint32_t reached = __ballot_sync(~0U, sum >= *k);
    if (reached != 0) {
      const int at = __ffs(static_cast<int>(reached)) - 1;
      *k -= __shfl_sync(~0U, sum - count, at);
      return static_cast<uint32_t>(highest - at);
    }
    *k -= __shfl_sync(~0U, sum, 31);
  }
}

/// The k-th largest logit, in digits of 11, 11 and 10 bits.
__global__ void __launch_bounds__(kThreads)
    keep_top_k(const __grid_constant__ SampleArgs args, int top_k) {
  __shared__ uint32_t counts[2048];
  __shared__ uint32_t found;
  const int64_t row = blockIdx.x;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* z = args.z + row * args.ldz;
  uint32_t prefix = 0;  // the bits decided so far
  uint32_t decided = 0;
  auto k = static_cast<uint32_t>(top_k);
  for (const int shift : {21, 10, 0}) {
    const int digits = shift == 0 ? 1024 : 2048;
    for (int i = threadIdx.x; i < digits; i += kThreads) counts[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < args.vocab; i += kThreads) {
      const uint32_t key = order_key(z[i]);
      if ((key & decided) == prefix) atomicAdd(&counts[key >> shift & (digits - 1)], 1U);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      const uint32_t digit = digit_of_rank(counts, digits, &k, static_cast<int>(threadIdx.x));
      if (threadIdx.x == 0) found = digit;
    }
    __syncthreads();
    prefix |= found << shift;
    decided |= static_cast<uint32_t>(digits - 1) << shift;
  }
  if (threadIdx.x == 0) args.kept[row] = {from_order_key(prefix), 0, INT_MAX};
}

/// Exponentials with the same leading bits: their sum, exactly. The leading bits hold all of the
/// exponent, so that sums of the bits behind them are sums of multiples of one unit.
struct Masses {
  uint32_t counts[1024];
  uint32_t low[1024];   // sums of bits 0..9
  uint32_t high[1024];  // and of 10..19

  __device__ void add(uint32_t bits, int shift) {
    const uint32_t digit = bits >> shift & 1023U;
    const uint32_t rest = bits & ((1U << shift) - 1);
    atomicAdd(&counts[digit], 1U);
    if (shift > 0) atomicAdd(&low[digit], rest & 1023U);
    if (shift > 10) atomicAdd(&high[digit], rest >> 10);
  }
  __device__ double of(uint32_t prefix, uint32_t digit, int shift) const {
    if (counts[digit] == 0) return 0.0;
    const uint32_t least = prefix | digit << shift;
    const double unit = ldexp(1.0, static_cast<int>(least >> 23) - 150);
    const auto rest = static_cast<double>(uint64_t{high[digit]} * 1024 + low[digit]);
    return counts[digit] * static_cast<double>(__uint_as_float(least)) + rest * unit;
  }
};

/// The least value that is kept, by its bits, 10 at a time from the top; then its last tie.
__global__ void __launch_bounds__(kThreads)
    keep_top_p(const __grid_constant__ SampleArgs args, float top_p, bool after_top_k) {
  __shared__ Masses masses;
  __shared__ double shared_total;
  __shared__ uint32_t shared_prefix;
  __shared__ uint32_t kept_ties;  // 0: all of them
  __shared__ uint32_t of_warp[kThreads / 32];
  const int64_t row = blockIdx.x;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int pieces = args.pieces;
  wait_for_previous_kernel();
  let_next_kernel_start();
  const float* z = args.z + row * args.ldz;
  const float m = largest_logit(args, row, lane) * args.inv_temperature;
  Kept kept{after_top_k ? args.kept[row].least_logit : -kInfinity, 0, INT_MAX};
  if (warp == 0) {
    const float* sums = (after_top_k ? args.others : args.sums) + row * pieces;
    const double total = add_pieces(sums, pieces, lane, nullptr);
    if (lane == 0) shared_total = total;
  }
  __syncthreads();
  if (!(shared_total > 0.0)) {  // nothing is drawn from it
    if (threadIdx.x == 0) args.kept[row] = kept;
    return;
  }
  const double mass = static_cast<double>(top_p) * shared_total;
  const auto bits_of = [&](int i) {
    return __float_as_uint(exponential(z[i], args.inv_temperature, m, kept.least_logit));
  };
  uint32_t prefix = 0;
  uint32_t decided = 0;
  double above = 0.0;  // of the values above the digits decided so far; by warp 0
  for (const int shift : {20, 10, 0}) {
    masses.counts[threadIdx.x] = masses.low[threadIdx.x] = masses.high[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < args.vocab; i += kThreads) {
      const uint32_t bits = bits_of(i);
      if (bits != 0 && (bits & decided) == prefix) masses.add(bits, shift);
    }
    __syncthreads();
    if (warp == 0) {
      // From the highest digit down until `mass` is reached; the last digit with any mass is taken
      // if rounding leaves the sum short.
      uint32_t digit = 0;
      double above_digit = above;
      bool reached = false;
      for (int highest = 1023; highest >= 0 && !reached; highest -= 32) {
        const double mine = masses.of(prefix, static_cast<uint32_t>(highest - lane), shift);
        for (int i = 0; i < 32; ++i) {
          const double next = __shfl_sync(~0U, mine, i);
          if (reached || !(next > 0.0)) continue;
          digit = static_cast<uint32_t>(highest - i);
          above = above_digit;
          above_digit += next;
          reached = above_digit >= mass;
        }
      }
      if (lane == 0) shared_prefix = prefix | digit << shift;
    }
    __syncthreads();
    prefix = shared_prefix;
    decided |= 1023U << shift;
  }
  if (threadIdx.x == 0) {
    const uint32_t ties = masses.counts[prefix & 1023U];
    const double value = __uint_as_float(prefix);
    uint32_t taken = 1;
    for (above += value; taken < ties && above < mass; ++taken) above += value;
    kept_ties = taken == ties ? 0 : taken;
  }
  __syncthreads();
  kept.least_bits = prefix;
  if (kept_ties == 0) {
    if (threadIdx.x == 0) args.kept[row] = kept;
    return;
  }
  uint32_t before = 0;  // ties
  for (int first = 0; before < kept_ties; first += kThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool tie = i < args.vocab && bits_of(i) == prefix;
    const uint32_t in_warp = __ballot_sync(~0U, tie);
    if (lane == 0) of_warp[warp] = __popc(in_warp);
    __syncthreads();
    uint32_t rank = before + __popc(in_warp & ((1U << lane) - 1));
    for (int w = 0; w < kThreads / 32; ++w) {
      if (w < warp) rank += of_warp[w];
      before += of_warp[w];
    }
    if (tie && rank == kept_ties - 1) {
      kept.last_tie = i;
      args.kept[row] = kept;
    }
    __syncthreads();
  }
}

}  // namespace

void launch_keep_top_k(const CudaContext& context, const SampleArgs& args, int top_k) {
  launch(context, "top-k", keep_top_k, static_cast<int>(args.rows), kThreads, 0, args, top_k);
}

void launch_keep_top_p(const CudaContext& context, const SampleArgs& args, float top_p,
                       bool after_top_k) {
  launch(context, "top-p", keep_top_p, static_cast<int>(args.rows), kThreads, 0, args, top_p,
         after_top_k);
}

}  // namespace quads::kernels::cuda
