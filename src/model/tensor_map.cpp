#include "model/tensor_map.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

TensorMap::TensorMap(const ModelConfig& config, const ParameterLayout& layout) : layout_(layout) {
  for (int64_t i = 0; i < std::ssize(layout_.parameters); ++i) {
    const Parameter& p = layout_.at(i);
    taken_.emplace_back(p.parts.size());
    for (const ParameterPart& part : p.parts) {
      add(part.name, {p.part_shape(part), {{i, part.row_begin, part.rows}}});
    }
  }
  // transformers 5 keeps a layer's experts in one tensor, and may save them so; Mixtral's then has
  // the folder "mlp" too.
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (!config.is_sparse(l)) continue;
    const std::string mlp = fmt::format("model.layers.{}.mlp.", l);
    const ParameterLayout::Layer& layer = layout_.layers[static_cast<size_t>(l)];
    const auto fuse = [&](const char* name, const std::vector<int64_t>& experts) {
      const Parameter& first = layout_.at(experts[0]);
      TensorPlace place{{config.num_experts, first.rows, first.cols}, {}};
      for (int64_t e = 0; e < config.num_experts; ++e) {
        place.pieces.push_back({experts[static_cast<size_t>(e)], 0, first.rows});
      }
      add(mlp + name, std::move(place));
    };
    fuse("experts.gate_up_proj", layer.gate_up);
    fuse("experts.down_proj", layer.down);
    if (config.architecture == Architecture::kMixtral) {
      const Parameter& router = layout_.at(layer.router);
      add(mlp + "gate.weight",
          {router.part_shape(router.parts[0]), {{layer.router, 0, router.rows}}});
    }
  }
}

void TensorMap::add(const std::string& name, TensorPlace place) {
  places_.emplace(name, std::move(place));
}

const TensorPlace& TensorMap::take(std::string_view name, std::span<const int64_t> shape) {
  const std::string key(name);
  const auto found = places_.find(key);
  require(found != places_.end(), "tensor {} is not part of this model", name);
  const TensorPlace& place = found->second;
  require(std::ranges::equal(shape, place.shape),
          "tensor {} has shape [{}], the configuration says [{}]", name, fmt::join(shape, ", "),
          fmt::join(place.shape, ", "));
  for (const TensorPiece& piece : place.pieces) {
    const std::vector<ParameterPart>& parts = layout_.at(piece.parameter).parts;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].row_begin < piece.row_begin ||
          parts[i].row_begin >= piece.row_begin + piece.rows) {
        continue;
      }
      std::string& by = taken_[static_cast<size_t>(piece.parameter)][i];
      require(by != key, "tensor {} is given twice", name);
      require(by.empty(), "tensor {} holds what tensor {} held already", name, by);
      by = key;
    }
  }
  return place;
}

const std::vector<int64_t>* TensorMap::shape(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &found->second.shape;
}

void TensorMap::require_complete() const {
  for (size_t p = 0; p < taken_.size(); ++p) {
    for (size_t i = 0; i < taken_[p].size(); ++i) {
      require(!taken_[p][i].empty(), "tensor {} is missing", layout_.parameters[p].parts[i].name);
    }
  }
}

int64_t TensorMap::offset_of(const TensorPiece& piece) const {
  const Parameter& p = layout_.at(piece.parameter);
  return p.offset + piece.row_begin * p.cols;
}

}  // namespace quads
