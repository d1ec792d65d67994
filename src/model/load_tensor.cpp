#include "model/load_tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"

namespace quads {
namespace {

float half_to_float(uint16_t h) {
  _Float16 value;
  static_assert(sizeof(value) == sizeof(h));
  std::memcpy(&value, &h, sizeof(h));
  return static_cast<float>(value);
}

// Elements of a file's tensor as BF16, a piece at a time. Other types are rounded to BF16.
void read_bf16(const TensorView& view, int64_t begin, int64_t count, Bf16* out) {
  const std::byte* data = view.data + static_cast<size_t>(begin) * dtype_size(view.dtype);
  const auto convert = [&](auto element, auto to_value) {  // files need not be aligned
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(&element, data + static_cast<size_t>(i) * sizeof(element), sizeof(element));
      out[i] = to_bf16(to_value(element));
    }
  };
  if (view.dtype == DType::kBF16) {
    std::memcpy(out, data, static_cast<size_t>(count) * sizeof(Bf16));
  } else if (view.dtype == DType::kF16) {
    convert(uint16_t{}, half_to_float);
  } else if (view.dtype == DType::kF32) {
    convert(float{}, [](float x) { return x; });
  } else {
    fail("tensor {} is {}; weights are read as BF16, F16 or F32", view.name, describe(view));
  }
}

}  // namespace

void require_finite(float x, std::string_view tensor, int64_t index, int64_t cols) {
  const bool fits = std::isfinite(x) && std::isfinite(to_float(to_bf16(x)));
  require(fits, "tensor {} holds {} at row {}, column {}", tensor, x, index / cols, index % cols);
}

void load_tensor(const TensorView& view, TensorMap& map, Parameters& parameters) {
  const TensorPlace& place = map.take(view.name, view.shape);
  int64_t read = 0;
  for (const TensorPiece& piece : place.pieces) {
    const int64_t cols = parameters.layout().at(piece.parameter).cols;
    const int64_t count = piece.rows * cols;
    Bf16* out = parameters.values() + map.offset_of(piece);
    read_bf16(view, read, count, out);
    for (int64_t i = 0; i < count; ++i) {
      require_finite(to_float(out[i]), view.name, read + i, view.shape.back());
    }
    read += count;
  }
}

void require_tied(const TensorView& head, const Parameters& parameters) {
  const ParameterLayout& layout = parameters.layout();
  const Parameter& embedding = layout.at(layout.embedding);
  bool equal = head.shape == embedding.part_shape(embedding.parts[0]);
  std::vector<Bf16> row(static_cast<size_t>(embedding.cols));
  for (int64_t r = 0; equal && r < embedding.rows; ++r) {
    read_bf16(head, r * embedding.cols, embedding.cols, row.data());
    equal = std::ranges::equal(
        row, std::span(parameters.of(layout.embedding) + r * embedding.cols, row.size()));
  }
  require(equal, "tie_word_embeddings is true, but {} differs from {}", head.name, embedding.name);
}

}  // namespace quads
