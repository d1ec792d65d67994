#include "kernels/native_fp4/pack.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/native_fp4/layout.h"
#include "numerics/nvfp4.h"
#include "numerics/rac.h"

namespace quads::kernels::native_fp4 {
namespace {

constexpr int64_t kBlockBytes = kBlock / 2;

// One row's blocks: main, then the compensated ones of `second`, to its codes and scales.
void put_row(std::span<const uint8_t> main_codes, std::span<const uint8_t> main_scales,
             std::span<const uint8_t> second_codes, std::span<const uint8_t> second_scales,
             const AugmentedK& k, int64_t row, uint8_t* codes, std::span<uint8_t> scales) {
  const int64_t columns = scale_columns(k.augmented);
  const int64_t blocks = k.k / kBlock;
  std::ranges::copy(main_codes, codes);
  for (int64_t block = 0; block < blocks; ++block) {
    scales[static_cast<size_t>(scale_offset(row, block, columns))] =
        main_scales[static_cast<size_t>(block)];
  }
  for (int64_t i = 0; i < std::ssize(k.selected); ++i) {
    const int64_t from = k.selected[static_cast<size_t>(i)];
    std::copy_n(second_codes.begin() + from * kBlockBytes, kBlockBytes,
                codes + (blocks + i) * kBlockBytes);
    scales[static_cast<size_t>(scale_offset(row, blocks + i, columns))] =
        second_scales[static_cast<size_t>(from)];
  }
}

void require_size(int64_t size, int64_t expected, std::string_view what) {
  require(size == expected, "native FP4: {} has {} elements; it must have {}", what, size,
          expected);
}

}  // namespace

void require_offsets(std::span<const int32_t> offsets, int64_t rows) {
  require(!offsets.empty(), "native FP4: no groups");
  int32_t begin = 0;
  for (size_t group = 0; group < offsets.size(); ++group) {
    require(offsets[group] >= begin, "native FP4: offsets[{}] is {}; it must be at least {}", group,
            offsets[group], begin);
    begin = offsets[group];
  }
  require(begin == rows, "native FP4: the last offset is {}; there are {} rows", begin, rows);
}

void pack_weight(std::span<const uint8_t> codes, std::span<const uint8_t> block_scales, int64_t n,
                 const AugmentedK& k, std::span<uint8_t> packed_codes,
                 std::span<uint8_t> packed_scales) {
  require_size(std::ssize(codes), n * k.k / 2, "a weight's codes");
  require_size(std::ssize(block_scales), n * k.k / kBlock, "a weight's block scales");
  require_size(std::ssize(packed_codes), n * k.augmented / 2, "a packed weight's codes");
  require_size(std::ssize(packed_scales), round_up(n, kTileRows) * scale_columns(k.augmented),
               "a packed weight's block scales");
  std::ranges::fill(packed_codes, uint8_t{0});
  std::ranges::fill(packed_scales, uint8_t{0});
  for (int64_t row = 0; row < n; ++row) {
    const auto row_codes =
        codes.subspan(static_cast<size_t>(row * k.k / 2), static_cast<size_t>(k.k / 2));
    const auto row_scales = block_scales.subspan(static_cast<size_t>(row * k.k / kBlock),
                                                 static_cast<size_t>(k.k / kBlock));
    put_row(row_codes, row_scales, row_codes, row_scales, k, row,
            packed_codes.data() + row * k.augmented / 2, packed_scales);
  }
}

void pack_rows(std::span<const float> x, std::span<const int32_t> offsets, const AugmentedK& k,
               std::span<const uint8_t> mask, const PackedRows& out, std::string_view where) {
  const int64_t rows = std::ssize(out.row_scales), columns = scale_columns(k.augmented);
  require_offsets(offsets, rows);
  require_size(std::ssize(x), rows * k.k, where);
  require_size(std::ssize(out.codes), rows * k.augmented / 2, "packed rows' codes");
  require_size(std::ssize(out.scales), scale_rows_bound(rows, std::ssize(offsets)) * columns,
               "packed rows' block scales");
  const std::vector<uint8_t> none(mask.empty() ? static_cast<size_t>(k.k) : 0, 0);
  const std::span<const uint8_t> compensated = mask.empty() ? std::span(none) : mask;
  std::ranges::fill(out.codes, uint8_t{0});
  std::ranges::fill(out.scales, uint8_t{0});
  int64_t row = 0, first_scale_row = 0;
  for (const int32_t end : offsets) {
    const int64_t begin = row, group_rows = end - begin;
    const std::span<uint8_t> scales =
        out.scales.subspan(static_cast<size_t>(first_scale_row * columns),
                           static_cast<size_t>(round_up(group_rows, kTileRows) * columns));
    for (; row < end; ++row) {
      const auto values = x.subspan(static_cast<size_t>(row * k.k), static_cast<size_t>(k.k));
      const float g = global_scale_pow2(checked_amax(values, 1, k.k, where, row));
      const CompensatedRow q = compensate_row(values, g, compensated, false, where, row);
      put_row(pack_nibbles(q.main.codes), q.main.block_scales, pack_nibbles(q.correction.codes),
              q.correction.block_scales, k, row - begin, out.codes.data() + row * k.augmented / 2,
              scales);
      out.row_scales[static_cast<size_t>(row)] = g;
    }
    first_scale_row += round_up(group_rows, kTileRows);
  }
}

}  // namespace quads::kernels::native_fp4
