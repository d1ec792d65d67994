// Where the tensors of a Hugging Face file lie in the flat array of parameters, under all the names
// that transformers writes them: experts one by one, or fused into one tensor a layer.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/parameters.h"

namespace quads {

/// Rows row_begin.. of a parameter.
struct TensorPiece {
  int64_t parameter, row_begin, rows;
};

struct TensorPlace {
  std::vector<int64_t> shape;
  std::vector<TensorPiece> pieces;  // one behind the other in the file's tensor
};

/// The tensors of one model, taken in one by one, in any order.
class TensorMap {
 public:
  /// `layout` is the configuration's, and must outlive this object.
  TensorMap(const ModelConfig& config, const ParameterLayout& layout);

  /// Where the tensor belongs. Error, naming it, if it is unknown, of another shape, or holds what
  /// an earlier one held already.
  const TensorPlace& take(std::string_view name, std::span<const int64_t> shape);
  /// The shape that the configuration gives the tensor; null if the model has none of that name.
  const std::vector<int64_t>* shape(const std::string& name) const;
  /// Error naming a tensor that was not taken.
  void require_complete() const;

  /// The flat array's element that element 0 of a piece becomes.
  int64_t offset_of(const TensorPiece& piece) const;

 private:
  void add(const std::string& name, TensorPlace place);

  const ParameterLayout& layout_;
  std::unordered_map<std::string, TensorPlace> places_;
  std::vector<std::vector<std::string>> taken_;  // [parameter][part] by which tensor; empty: none
};

}  // namespace quads
