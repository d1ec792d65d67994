// What the tile kernels do with a format's weights: from a slice in shared memory to the A operands
// of four m16k16 products, raw words first and decoded later, or as they are.
#pragma once

#include "kernels/cuda/experts/decode.cuh"
#include "kernels/cuda/experts/fragment_plain.h"
#include "kernels/cuda/experts/fragment_weights.h"
#include "kernels/cuda/ptx.cuh"

namespace quads::kernels::cuda {

/// Every decoder: load(slice, half, lane) takes what a thread needs of 64 k of a slice;
/// decode(pair, a0, a1) gives fragments 2 pair and 2 pair + 1 of them. One with kPlain has
/// load_fragments(slice, half, lane, a) in their place: what it loads needs no decoding. Operands
/// are BF16, or FP16 if kFormat says so.
template <WeightFormat format>
struct AnyNvfp4Decoder {
  static constexpr WeightFormat kFormat = format;
  static constexpr bool kPlain = false;
  uint4 codes;
  uint2 scales;

  __device__ __forceinline__ void load(uint32_t slice, int half, int lane) {
    codes = load_shared_16(slice + half * 512 + lane * 16);
    scales = load_shared_8(slice + 1024 + (lane >> 2) * 16 + half * 8);
  }
  __device__ __forceinline__ void decode(int pair, uint32_t a0[4], uint32_t a1[4]) const {
    const uint32_t first = pair == 0 ? codes.x : codes.z;
    const uint32_t second = pair == 0 ? codes.y : codes.w;
    const uint32_t scale = pair == 0 ? scales.x : scales.y;
    if constexpr (format == WeightFormat::kNvfp4Fp16) {
      decode_blocks_fp16(first, second, scale, a0, a1);
    } else {
      decode_blocks(first, second, scale, a0, a1);
    }
  }
};
using Nvfp4Decoder = AnyNvfp4Decoder<WeightFormat::kNvfp4>;
using Nvfp4Fp16Decoder = AnyNvfp4Decoder<WeightFormat::kNvfp4Fp16>;

struct Fp8Decoder {
  static constexpr WeightFormat kFormat = WeightFormat::kFp8;
  static constexpr bool kPlain = false;
  uint4 codes[2];
  uint2 scales;  // of rows g and g + 8, pairs

  __device__ __forceinline__ void load(uint32_t slice, int half, int lane) {
    codes[0] = load_shared_16(slice + half * 1024 + lane * 16);
    codes[1] = load_shared_16(slice + half * 1024 + 512 + lane * 16);
    scales = load_shared_8(slice + 16 * kStageK);
  }
  __device__ __forceinline__ void decode_fragment(uint32_t first, uint32_t second,
                                                  uint32_t a[4]) const {
    decode_e4m3_pairs(first, &a[0], &a[1]);
    decode_e4m3_pairs(second, &a[2], &a[3]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t scale = i % 2 == 0 ? scales.x : scales.y;
      a[i] = as_bits(__hmul2_rn(as_pair(a[i]), as_pair(scale)));
    }
  }
  __device__ __forceinline__ void decode(int pair, uint32_t a0[4], uint32_t a1[4]) const {
    decode_fragment(codes[pair].x, codes[pair].y, a0);
    decode_fragment(codes[pair].z, codes[pair].w, a1);
  }
};

struct Bf16Decoder {
  static constexpr WeightFormat kFormat = WeightFormat::kBf16;
  static constexpr bool kPlain = true;

  static __device__ __forceinline__ void load_fragments(uint32_t slice, int half, int lane,
                                                        uint32_t a[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 words = load_shared_16(slice + (half * 4 + i) * 512 + lane * 16);
      a[i][0] = words.x;
      a[i][1] = words.y;
      a[i][2] = words.z;
      a[i][3] = words.w;
    }
  }
};

}  // namespace quads::kernels::cuda
