// Sequences with keys and values in pages, for tests of attention on a device.
#pragma once

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "kernels/cuda/attention/kv_pages.h"
#include "kernels/cuda/device_array.h"
#include "numerics/bf16.h"

namespace quads::kernels::cuda {

inline constexpr uint16_t kNanBf16 = 0xFFFF;

/// Values of a position, a function of what it belongs to: a bell curve.
inline std::vector<Bf16> hashed_values(int64_t count, uint64_t of, int64_t position) {
  RandomSequence random(of, RandomStream::kTask, static_cast<uint32_t>(position));
  std::vector<Bf16> values(count);
  for (Bf16& value : values) {
    value = to_bf16((random.uniform() + random.uniform() + random.uniform() - 1.5F) * 2.0F);
  }
  return values;
}

/// Pages on the host; whatever was not written is NaN, and so are pages that nobody owns. Unused
/// entries of the tables are invalid.
struct KvProblem {
  HeadShape shape;
  int64_t max_pages;
  std::vector<int32_t> lengths;  // of the sequences
  std::vector<int32_t> table;    // [sequences][max_pages]
  std::vector<uint16_t> pages;
  int64_t page_count;

  /// Sequence s has keys and values of content s; the first `shared` positions (a multiple of 16)
  /// of all that are longer are those of content 1000, in the same pages.
  KvProblem(const HeadShape& heads, std::vector<int32_t> sequence_lengths, uint64_t placement,
            int32_t shared = 0)
      : shape(heads), max_pages(1), lengths(std::move(sequence_lengths)) {
    int64_t needed = 3 + shared / 16;
    for (const int32_t length : lengths) {
      max_pages = std::max<int64_t>(max_pages, (length + 15) / 16 + 1);
      needed += (length + 15) / 16;
    }
    page_count = needed;
    std::vector<int32_t> free(page_count);
    std::iota(free.begin(), free.end(), 0);
    RandomSequence random(placement, RandomStream::kShuffle, 0);
    for (int64_t i = page_count - 1; i > 0; --i) {
      std::swap(free[i], free[random.below(static_cast<uint32_t>(i + 1))]);
    }
    pages.assign(page_count * shape.page_elements(), kNanBf16);
    table.assign(lengths.size() * max_pages, -1);
    std::vector<int32_t> shared_pages(free.end() - shared / 16, free.end());
    free.resize(free.size() - shared / 16);
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int32_t p = 0; p * 16 < lengths[s]; ++p) {
        const bool common = lengths[s] > shared && p * 16 < shared;
        int32_t& page = table[s * max_pages + p];
        if (common) {
          page = shared_pages[p];
        } else {
          page = free.back();
          free.pop_back();
        }
        for (int32_t at = p * 16; at < std::min(lengths[s], p * 16 + 16); ++at) {
          const uint64_t content = common ? 1000 : s;
          for (const int kind : {0, 1}) {
            const auto values = hashed_values(shape.kv_width(), content * 2 + kind, at);
            for (int h = 0; h < shape.kv_heads; ++h) {
              std::memcpy(element(page, h, kind, at % 16), &values[h * shape.head_dim],
                          shape.head_dim * 2);
            }
          }
        }
      }
    }
  }

  uint16_t* element(int64_t page, int head, int kind, int slot) {
    return &pages[page * shape.page_elements() +
                  ((head * 2 + kind) * int64_t{16} + slot) * shape.head_dim];
  }
  /// Key (0) or value (1) of a position.
  float at(size_t sequence, int64_t position, int head, int kind, int d) {
    const int32_t page = table[sequence * max_pages + position / 16];
    return to_float(Bf16{element(page, head, kind, position % 16)[d]});
  }
};

/// Tokens of a batch.
struct Rows {
  std::vector<int32_t> positions, sequences;

  int64_t size() const { return static_cast<int64_t>(positions.size()); }
  void add(int32_t sequence, int32_t begin, int32_t end) {
    for (int32_t position = begin; position < end; ++position) {
      positions.push_back(position);
      sequences.push_back(sequence);
    }
  }
};

/// RowPlaces on the device.
struct DevicePlaces {
  DeviceArray<int32_t> positions, sequences, table;
  RowPlaces places;

  DevicePlaces(const Rows& rows, const std::vector<int32_t>& page_table, int64_t max_pages)
      : positions(rows.positions), sequences(rows.sequences), table(page_table) {
    places.rows = rows.size();
    places.positions = positions.data();
    places.sequences = sequences.data();
    places.page_table = table.data();
    places.max_pages = max_pages;
  }
};

}  // namespace quads::kernels::cuda
