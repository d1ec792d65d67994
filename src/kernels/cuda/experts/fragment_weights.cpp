// Weights to fragments and back, on the CPU.
#include "kernels/cuda/experts/fragment_weights.h"

#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/cuda/experts/fragment_codes_fp16.h"
#include "kernels/cuda/experts/paired_rows.h"
#include "numerics/e4m3.h"

namespace quads::kernels::cuda {
namespace {

constexpr int kNoBlock = -1;  // a position behind the end of K

void require_fragment_shape(int64_t rows, int64_t k, size_t bytes) {
  require(rows >= 0 && rows % kTileRows == 0 && k >= 0 && k % kNvfp4Block == 0,
          "fragments of a weight [{}, {}]: rows must be a multiple of 64, k of 16", rows, k);
  require(static_cast<int64_t>(bytes) == fragment_bytes(rows, k),
          "fragments of a weight [{}, {}] are {} bytes, not {}", rows, k, fragment_bytes(rows, k),
          bytes);
}

// The block of 16 channels at every position of the padded K.
std::vector<int> blocks_by_position(std::span<const int32_t> block_position, int64_t k) {
  const int64_t blocks = k / kNvfp4Block;
  std::vector<int> result(stages_of(k) * (kStageK / kNvfp4Block), kNoBlock);
  require(block_position.empty() || static_cast<int64_t>(block_position.size()) == blocks,
          "{} block positions for {} blocks", block_position.size(), blocks);
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t position = block_position.empty() ? block : block_position[block];
    require(position >= 0 && position < blocks && result[position] == kNoBlock,
            "block {} has position {}; positions are a permutation of 0..{}", block, position,
            blocks - 1);
    result[position] = static_cast<int>(block);
  }
  return result;
}

// Where the codes of thread 4 g + t for two blocks (one k32), and their scales, lie.
struct FragmentPlace {
  int64_t first_row;   // of the slice of 16
  int first_position;  // of the two blocks
  uint8_t* slice;
  int k32;  // in the stage

  uint8_t* words(int thread) const { return slice + (k32 / 2) * 512 + thread * 16 + (k32 % 2) * 8; }
  uint8_t* scales(int g) const { return slice + 1024 + g * 16 + k32 * 4; }
};

template <class Visit>
void for_each_place(int64_t rows, int64_t k, uint8_t* data, Visit visit) {
  const int stages = stages_of(k);
  for (int64_t slice = 0; slice < rows / 16; ++slice) {
    for (int stage = 0; stage < stages; ++stage) {
      uint8_t* at = data + (slice / 4 * stages + stage) * kTileBytes + slice % 4 * kSliceBytes;
      for (int k32 = 0; k32 < 4; ++k32)
        visit(FragmentPlace{slice * 16, stage * 8 + k32 * 2, at, k32});
    }
  }
}

int64_t source_row(const Nvfp4Matrix& w, const FragmentForm& form, int64_t row) {
  return form.paired ? paired_row(row, w.rows) : row;
}

// Row and channel in the block of pair `pair` (0..3) of thread 4 g + t.
int pair_row(int g, int pair) { return g + (pair & 1) * 8; }
int pair_channel(int t, int pair) { return t * 2 + (pair >> 1) * 8; }

void pack_place(const Nvfp4Matrix& w, const std::vector<int>& blocks, const FragmentForm& form,
                const FragmentPlace& place) {
  const bool fp16 = form.format == WeightFormat::kNvfp4Fp16;
  const int64_t blocks_of_row = w.k / kNvfp4Block;
  const auto scale = [&](int64_t row, int block) -> uint32_t {
    return block == kNoBlock ? 0 : w.block_scales[row * blocks_of_row + block];
  };
  for (int g = 0; g < 8; ++g) {
    uint32_t encoded[2][2];
    for (int j = 0; j < 2; ++j) {
      for (int half = 0; half < 2; ++half) {
        const int block = blocks[place.first_position + j];
        encoded[j][half] =
            encode_scale(scale(source_row(w, form, place.first_row + g + half * 8), block));
      }
    }
    uint32_t word = scale_word(encoded[0][0], encoded[0][1], encoded[1][0], encoded[1][1]);
    if (fp16) word = scale_word_fp16(word);
    std::memcpy(place.scales(g), &word, sizeof(word));
    for (int t = 0; t < 4; ++t) {
      uint32_t pairs[8] = {};
      for (int i = 0; i < 8; ++i) {
        const int block = blocks[place.first_position + i / 4];
        const int64_t row = source_row(w, form, place.first_row + pair_row(g, i % 4));
        if (scale(row, block) == 0) continue;
        const int64_t channel = int64_t{block} * kNvfp4Block + pair_channel(t, i % 4);
        const uint32_t byte = w.packed[(row * w.k + channel) / 2];
        pairs[i] =
            fp16 ? masked_pair_fp16(byte & 0xFU, byte >> 4) : masked_pair(byte & 0xFU, byte >> 4);
      }
      const CodeWords words =
          fp16 ? CodeWords{encode_pairs_fp16(pairs), encode_pairs_fp16(pairs + 4)}
               : encode_pairs(pairs);
      std::memcpy(place.words(g * 4 + t), &words, sizeof(words));
    }
  }
}

uint32_t code_of(uint32_t half, bool fp16) {
  return (half >> (fp16 ? 9 : 6) & 7U) | (half >> 15 & 1U) << 3;
}

void unpack_place(const std::vector<int>& blocks, const FragmentForm& form,
                  const FragmentPlace& place, Nvfp4Matrix* w) {
  const bool fp16 = form.format == WeightFormat::kNvfp4Fp16;
  const int64_t blocks_of_row = w->k / kNvfp4Block;
  for (int g = 0; g < 8; ++g) {
    uint32_t word;
    std::memcpy(&word, place.scales(g), sizeof(word));
    if (fp16) word = rotate_right(word, 3);
    for (int j = 0; j < 2; ++j) {
      const int block = blocks[place.first_position + j];
      if (block == kNoBlock) continue;
      const uint32_t pair = j == 0 ? decode_scale_even(word) : decode_scale_odd(word);
      for (int half = 0; half < 2; ++half) {
        const uint32_t e4m3 = restore_scale(pair >> (half * 16 + 4) & 0xFFU);
        const int64_t row = source_row(*w, form, place.first_row + g + half * 8);
        require(e4m3 <= kE4m3MaxCode, "row {}, block {}: not a packed scale", row, block);
        w->block_scales[row * blocks_of_row + block] = static_cast<uint8_t>(e4m3);
      }
    }
    for (int t = 0; t < 4; ++t) {
      CodeWords words;
      std::memcpy(&words, place.words(g * 4 + t), sizeof(words));
      uint32_t pairs[8];
      if (fp16) {
        decode_pairs_fp16(words.first, pairs);
        decode_pairs_fp16(words.second, pairs + 4);
      } else {
        decode_pairs(words.first, words.second, pairs);
      }
      for (int i = 0; i < 8; ++i) {
        const int block = blocks[place.first_position + i / 4];
        if (block == kNoBlock) continue;
        const int64_t row = source_row(*w, form, place.first_row + pair_row(g, i % 4));
        const int64_t channel = int64_t{block} * kNvfp4Block + pair_channel(t, i % 4);
        w->packed[(row * w->k + channel) / 2] =
            static_cast<uint8_t>(code_of(pairs[i], fp16) | code_of(pairs[i] >> 16, fp16) << 4);
      }
    }
  }
}

}  // namespace

void pack_fragments(const Nvfp4Matrix& w, std::span<const int32_t> block_position,
                    std::span<uint8_t> out, const FragmentForm& form) {
  require_fragment_shape(w.rows, w.k, out.size());
  const auto codes = static_cast<int64_t>(w.packed.size());
  const auto scales = static_cast<int64_t>(w.block_scales.size());
  require(codes == w.rows * w.k / 2 && scales == w.rows * w.k / kNvfp4Block,
          "{} packed bytes and {} block scales do not make [{}, {}] in blocks of 16", codes, scales,
          w.rows, w.k);
  for (int64_t i = 0; i < scales; ++i) {
    require(w.block_scales[i] <= kE4m3MaxCode, "block scale {:02X}: it must be 00..7E",
            w.block_scales[i]);
  }
  const std::vector<int> blocks = blocks_by_position(block_position, w.k);
  for_each_place(w.rows, w.k, out.data(),
                 [&](const FragmentPlace& place) { pack_place(w, blocks, form, place); });
}

Nvfp4Matrix unpack_fragments(std::span<const uint8_t> packed, int64_t rows, int64_t k,
                             float global_scale, std::span<const int32_t> block_position,
                             const FragmentForm& form) {
  require_fragment_shape(rows, k, packed.size());
  Nvfp4Matrix w{rows, k, global_scale, std::vector<uint8_t>(rows * k / 2),
                std::vector<uint8_t>(rows * k / kNvfp4Block)};
  const std::vector<int> blocks = blocks_by_position(block_position, k);
  std::vector<uint8_t> data(packed.begin(), packed.end());
  for_each_place(rows, k, data.data(),
                 [&](const FragmentPlace& place) { unpack_place(blocks, form, place, &w); });
  return w;
}

}  // namespace quads::kernels::cuda
