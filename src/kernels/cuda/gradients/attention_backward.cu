// Attention's backward: a block takes 64 queries and all their keys for dq, then a block takes 64
// keys and all their queries for dk and dv.
#include "kernels/cuda/device_math.cuh"
#include "kernels/cuda/gradients/gradient_launch.h"
#include "kernels/cuda/launch.cuh"

namespace quads::kernels::cuda {
namespace {

constexpr int kWarps = kBackwardTile / 16;
constexpr int kThreads = kWarps * 32;
constexpr int kOwn = kBackwardTile;  // rows that the block's warps share out, 16 each
constexpr int kOther = 32;           // rows that they all run over at a time
constexpr int kOtherTiles = kOther / 8;
constexpr float kLowest = -__builtin_inff();

/// `dim`: head_dim rounded up; `out`: of it, what a block computes gradients of.
template <int dim>
struct BackwardConfig {
  static constexpr int kOut = dim < 128 ? dim : 128;
  // Floats of a row in shared memory: neighbouring rows are 4 banks apart.
  static constexpr int kStride = dim + 4;
  static constexpr int kSharedBytes = (2 * kOwn + 2 * kOther) * kStride * 4;
};

__device__ __forceinline__ uint32_t round_tf32(float x) {
  uint32_t r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ void mma_16x8x8(float d[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/// Rows of BF16 or FP32 to shared memory as TF32; `row_of(r)` is null for a row of zeros, which is
/// what the columns from head_dim on are too.
template <int dim, class RowOf>
__device__ __forceinline__ void load_rows(float* to, int rows, int head_dim, RowOf row_of) {
  constexpr int kQuads = dim / 4;
  for (int i = threadIdx.x; i < rows * kQuads; i += kThreads) {
    const int r = i / kQuads;
    const int c = i % kQuads * 4;
    const auto* from = row_of(r);
    float4 x = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (from != nullptr && c < head_dim) {
      if constexpr (sizeof(*from) == 2) {
        const uint2 words = *reinterpret_cast<const uint2*>(from + c);
        x.x = __uint_as_float(words.x << 16);
        x.y = __uint_as_float(words.x & 0xFFFF0000U);
        x.z = __uint_as_float(words.y << 16);
        x.w = __uint_as_float(words.y & 0xFFFF0000U);
      } else {
        const float4 values = *reinterpret_cast<const float4*>(from + c);
        x.x = __uint_as_float(round_tf32(values.x));
        x.y = __uint_as_float(round_tf32(values.y));
        x.z = __uint_as_float(round_tf32(values.z));
        x.w = __uint_as_float(round_tf32(values.w));
      }
    }
    *reinterpret_cast<float4*>(to + r * BackwardConfig<dim>::kStride + c) = x;
  }
}

/// c [16, kOther] = the warp's 16 rows a times kOther rows b.
template <int dim>
__device__ __forceinline__ void dots(const float* a, const float* b, int lane,
                                     float (&c)[kOtherTiles][4]) {
  constexpr int kStride = BackwardConfig<dim>::kStride;
  const auto* a_at = reinterpret_cast<const uint32_t*>(a) + (lane >> 2) * kStride + (lane & 3);
  const auto* b_at = reinterpret_cast<const uint32_t*>(b) + (lane >> 2) * kStride + (lane & 3);
#pragma unroll
  for (int n = 0; n < kOtherTiles; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) c[n][e] = 0.0F;
  }
#pragma unroll 4
  for (int k = 0; k < dim; k += 8) {
    const uint32_t a0 = a_at[k];
    const uint32_t a1 = a_at[8 * kStride + k];
    const uint32_t a2 = a_at[k + 4];
    const uint32_t a3 = a_at[8 * kStride + k + 4];
#pragma unroll
    for (int n = 0; n < kOtherTiles; ++n) {
      const uint32_t* b_n = b_at + n * 8 * kStride + k;
      mma_16x8x8(c[n], a0, a1, a2, a3, b_n[0], b_n[4]);
    }
  }
}

/// sums [16, kOut] += w [16, kOther] b [kOther, kOut]. What dots gives to a thread serves as an
/// operand as it is, if rows 2 t and 2 t + 1 of b stand for the product's t and t + 4.
template <int dim>
__device__ __forceinline__ void accumulate(const float (&w)[kOtherTiles][4], const float* b,
                                           int lane,
                                           float (&sums)[BackwardConfig<dim>::kOut / 8][4]) {
  constexpr int kStride = BackwardConfig<dim>::kStride;
  const auto* at = reinterpret_cast<const uint32_t*>(b) + (lane & 3) * 2 * kStride + (lane >> 2);
#pragma unroll
  for (int j = 0; j < kOtherTiles; ++j) {
    const uint32_t a0 = round_tf32(w[j][0]);
    const uint32_t a1 = round_tf32(w[j][2]);
    const uint32_t a2 = round_tf32(w[j][1]);
    const uint32_t a3 = round_tf32(w[j][3]);
#pragma unroll
    for (int n = 0; n < BackwardConfig<dim>::kOut / 8; ++n) {
      const uint32_t* b_n = at + j * 8 * kStride + n * 8;
      mma_16x8x8(sums[n], a0, a1, a2, a3, b_n[0], b_n[kStride]);
    }
  }
}

template <int dim>
__device__ __forceinline__ void store(const float (&sums)[BackwardConfig<dim>::kOut / 8][4],
                                      float* to, int64_t stride, int rows, int columns, int lane) {
#pragma unroll
  for (int n = 0; n < BackwardConfig<dim>::kOut / 8; ++n) {
    const int c = n * 8 + (lane & 3) * 2;
    if (c >= columns) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = (lane >> 2) + half * 8;
      if (r >= rows) continue;
      *reinterpret_cast<float2*>(to + r * stride + c) =
          make_float2(sums[n][half * 2], sums[n][half * 2 + 1]);
    }
  }
}

/// Of the four lanes that share a row.
__device__ __forceinline__ float row_sum(float x) {
  x = x + __shfl_xor_sync(~0U, x, 1);
  return x + __shfl_xor_sync(~0U, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 2));
}

/// bf16(exp(s - max)) as FP32.
__device__ __forceinline__ float weight_of(float s, float largest) {
  return __uint_as_float(round_bf16(exp_f32(s - largest)) << 16);
}

/// Keys (which = 0) or values (1) of a KV head at a sequence's position.
__device__ __forceinline__ const uint16_t* kv_row(const AttentionBackward& args,
                                                  const SequenceTile& tile, int position,
                                                  int kv_head, int which) {
  const int64_t page = tile.first_page + (position >> 4);
  return reinterpret_cast<const uint16_t*>(args.kv) + page * args.shape.page_elements() +
         ((kv_head * 2 + which) * 16 + (position & 15)) * int64_t{args.shape.head_dim};
}

template <int dim>
__global__ void __launch_bounds__(kThreads)
    queries_backward(const __grid_constant__ AttentionBackward args) {
  using C = BackwardConfig<dim>;
  extern __shared__ __align__(16) float memory[];
  float* q = memory;
  float* dout = q + kOwn * C::kStride;
  float* k = dout + kOwn * C::kStride;
  float* v = k + kOther * C::kStride;
  wait_for_previous_kernel();
  const SequenceTile tile = args.tiles[blockIdx.x];
  const int head = blockIdx.y;
  const int kv_head = head / (args.shape.heads / args.shape.kv_heads);
  const int first_column = blockIdx.z * C::kOut;
  const int head_dim = args.shape.head_dim;
  const int64_t q_width = args.shape.q_width();
  const int lane = threadIdx.x & 31;
  const int own = (threadIdx.x >> 5) * 16;  // the warp's first row of the tile
  const auto own_row = [&](auto* base, int r) {
    const int position = tile.position + r;
    return position < tile.length
               ? base + (tile.first_row + position) * q_width + int64_t{head} * head_dim
               : nullptr;
  };
  load_rows<dim>(q, kOwn, head_dim,
                 [&](int r) { return own_row(reinterpret_cast<const uint16_t*>(args.q), r); });
  load_rows<dim>(dout, kOwn, head_dim, [&](int r) { return own_row(args.dout, r); });
  const int keys = min(tile.position + kOwn, tile.length);
  const auto load_keys = [&](float* to, int first, int which) {
    load_rows<dim>(to, kOther, head_dim, [&](int r) {
      return first + r < keys ? kv_row(args, tile, first + r, kv_head, which) : nullptr;
    });
  };
  const int query = tile.position + own + (lane >> 2);
  const auto seen = [&](int first, int n, int e) {
    return first + n * 8 + (lane & 3) * 2 + (e & 1) <= query + (e >> 1) * 8;
  };

  float s[kOtherTiles][4];
  float largest[2] = {kLowest, kLowest};
  for (int first = 0; first < keys; first += kOther) {
    __syncthreads();
    load_keys(k, first, 0);
    __syncthreads();
    dots<dim>(q + own * C::kStride, k, lane, s);
#pragma unroll
    for (int n = 0; n < kOtherTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (seen(first, n, e)) largest[e >> 1] = fmaxf(largest[e >> 1], s[n][e] * args.scale);
      }
    }
  }
  float dp[kOtherTiles][4];
  // s and dp of the keys from `first` on.
  const auto load_and_multiply = [&](int first) {
    __syncthreads();
    load_keys(k, first, 0);
    load_keys(v, first, 1);
    __syncthreads();
    dots<dim>(q + own * C::kStride, k, lane, s);
    dots<dim>(dout + own * C::kStride, v, lane, dp);
  };
  float sum[2] = {};
  float mean[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) largest[half] = row_max(largest[half]);
  for (int first = 0; first < keys; first += kOther) {
    load_and_multiply(first);
#pragma unroll
    for (int n = 0; n < kOtherTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!seen(first, n, e)) continue;
        const float p = weight_of(s[n][e] * args.scale, largest[e >> 1]);
        sum[e >> 1] = sum[e >> 1] + p;
        mean[e >> 1] = __fmaf_rn(p, dp[n][e], mean[e >> 1]);
      }
    }
  }
  float inverse[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    inverse[half] = __fdiv_rn(1.0F, row_sum(sum[half]));
    mean[half] = row_sum(mean[half]) * inverse[half];
    const int position = query + half * 8;
    if (blockIdx.z == 0 && (lane & 3) == 0 && position < tile.length) {
      float* stats =
          args.stats + (int64_t{tile.first_row + position} * args.shape.heads + head) * 3;
      stats[0] = largest[half];
      stats[1] = inverse[half];
      stats[2] = mean[half];
    }
  }
  float dq[C::kOut / 8][4] = {};
  for (int first = 0; first < keys; first += kOther) {
    load_and_multiply(first);
#pragma unroll
    for (int n = 0; n < kOtherTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int half = e >> 1;
        const float p = weight_of(s[n][e] * args.scale, largest[half]) * inverse[half];
        s[n][e] = seen(first, n, e) ? (p * (dp[n][e] - mean[half])) * args.scale : 0.0F;
      }
    }
    accumulate<dim>(s, k + first_column, lane, dq);
  }
  store<dim>(dq,
             args.dq + int64_t{tile.first_row + tile.position + own} * q_width +
                 int64_t{head} * head_dim + first_column,
             q_width, tile.length - tile.position - own, head_dim - first_column, lane);
}

template <int dim>
__global__ void __launch_bounds__(kThreads)
    keys_backward(const __grid_constant__ AttentionBackward args) {
  using C = BackwardConfig<dim>;
  extern __shared__ __align__(16) float memory[];
  __shared__ float stats[3][kOther];
  float* k = memory;
  float* v = k + kOwn * C::kStride;
  float* q = v + kOwn * C::kStride;
  float* dout = q + kOther * C::kStride;
  wait_for_previous_kernel();
  const SequenceTile tile = args.tiles[blockIdx.x];
  const int kv_head = blockIdx.y;
  const int group = args.shape.heads / args.shape.kv_heads;
  const int first_column = blockIdx.z * C::kOut;
  const int head_dim = args.shape.head_dim;
  const int64_t q_width = args.shape.q_width();
  const int64_t kv_width = args.shape.kv_width();
  const int lane = threadIdx.x & 31;
  const int own = (threadIdx.x >> 5) * 16;
  for (int which = 0; which < 2; ++which) {
    load_rows<dim>(which == 0 ? k : v, kOwn, head_dim, [&](int r) {
      const int position = tile.position + r;
      return position < tile.length ? kv_row(args, tile, position, kv_head, which) : nullptr;
    });
  }
  const int key = tile.position + own + (lane >> 2);
  float dk[C::kOut / 8][4] = {};
  float dv[C::kOut / 8][4] = {};
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    for (int first = tile.position; first < tile.length; first += kOther) {
      const auto query_row = [&](auto* base, int r) {
        return first + r < tile.length
                   ? base + (tile.first_row + first + r) * q_width + int64_t{head} * head_dim
                   : nullptr;
      };
      __syncthreads();
      load_rows<dim>(q, kOther, head_dim, [&](int r) {
        return query_row(reinterpret_cast<const uint16_t*>(args.q), r);
      });
      load_rows<dim>(dout, kOther, head_dim, [&](int r) { return query_row(args.dout, r); });
      for (int i = threadIdx.x; i < 3 * kOther; i += kThreads) {
        const int r = i / 3;
        stats[i % 3][r] =
            first + r < tile.length
                ? args.stats[(int64_t{tile.first_row + first + r} * args.shape.heads + head) * 3 +
                             i % 3]
                : 0.0F;
      }
      __syncthreads();
      float p[kOtherTiles][4];
      float ds[kOtherTiles][4];
      dots<dim>(k + own * C::kStride, q, lane, p);
      dots<dim>(v + own * C::kStride, dout, lane, ds);
#pragma unroll
      for (int n = 0; n < kOtherTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = n * 8 + (lane & 3) * 2 + (e & 1);
          const bool seen = key + (e >> 1) * 8 <= first + r && first + r < tile.length;
          const float probability = weight_of(p[n][e] * args.scale, stats[0][r]) * stats[1][r];
          p[n][e] = seen ? probability : 0.0F;
          ds[n][e] = seen ? (probability * (ds[n][e] - stats[2][r])) * args.scale : 0.0F;
        }
      }
      accumulate<dim>(ds, q + first_column, lane, dk);
      accumulate<dim>(p, dout + first_column, lane, dv);
    }
  }
  const int64_t at = int64_t{tile.first_row + tile.position + own} * kv_width +
                     int64_t{kv_head} * head_dim + first_column;
  const int rows = tile.length - tile.position - own;
  store<dim>(dk, args.dk + at, kv_width, rows, head_dim - first_column, lane);
  store<dim>(dv, args.dv + at, kv_width, rows, head_dim - first_column, lane);
}

template <int dim>
void run(const CudaContext& context, const AttentionBackward& args) {
  using C = BackwardConfig<dim>;
  const auto tiles = static_cast<unsigned>(args.tile_count);
  const unsigned parts = dim / C::kOut;
  launch(context, "attention's backward of queries", queries_backward<dim>,
         dim3(tiles, args.shape.heads, parts), kThreads, C::kSharedBytes, args);
  launch(context, "attention's backward of keys", keys_backward<dim>,
         dim3(tiles, args.shape.kv_heads, parts), kThreads, C::kSharedBytes, args);
}

}  // namespace

void launch_attention_backward(const CudaContext& context, const AttentionBackward& args) {
  if (args.shape.head_dim <= 32) return run<32>(context, args);
  if (args.shape.head_dim <= 64) return run<64>(context, args);
  if (args.shape.head_dim <= 128) return run<128>(context, args);
  run<256>(context, args);
}

}  // namespace quads::kernels::cuda
