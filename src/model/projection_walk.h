// A model's forward one linear layer at a time, for whoever looks at each layer's input and output.
#pragma once

#include <functional>
#include <vector>

#include "model/blocks.h"
#include "model/packed_model.h"

namespace quads {

/// A linear layer and rows that go through it.
struct Projection {
  int64_t layer;
  Site site;       // of its input
  int64_t expert;  // 0 in attention and dense layers; the shared expert is number `experts`
  const Bf16* x;   // [rows, input width]
  int64_t rows;
};

/// Layers and sites whose projections are to be shown.
using ProjectionFilter = std::function<bool(int64_t layer, Site site)>;
/// With the output [rows, n], FP32.
using ProjectionVisitor = std::function<void(const Projection&, const std::vector<float>& y)>;

/// The projection's output in `model`, [rows, n].
std::vector<float> multiply(const kernels::CpuContext& context, const PackedModel& model,
                            const Projection& projection);
int64_t input_width(const PackedModel& model, const Projection& projection);

/// Runs `batch`, whole sequences from position 0, through `model`. Overwrites the batch's KV
/// scratch. Slow: every part that is shown is computed twice.
void walk_projections(const kernels::CpuContext& context, const PackedModel& model,
                      const RowBatch& batch, const ProjectionFilter& wanted,
                      const ProjectionVisitor& visitor);

}  // namespace quads
