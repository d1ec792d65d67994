#include "diagnose/projection_error.h"

#include <algorithm>
#include <cmath>

#include "diagnose/trainer_logprobs.h"
#include "model/projection_walk.h"

namespace quads {
namespace {

constexpr const char* kProjections[kSites] = {"qkv", "out", "gate_up", "down", "shared_down"};

// Sums of squares of one projection.
struct Accumulator {
  double reference = 0;
  std::vector<double> difference;  // one a candidate
};

class Measurement {
 public:
  Measurement(const kernels::CpuContext& context, PackedModel& reference,
              std::span<const PackedModel* const> candidates)
      : context_(context),
        reference_(reference),
        candidates_(candidates),
        sums_(static_cast<size_t>(reference.num_layers() * kSites)) {
    for (Accumulator& sum : sums_) sum.difference.assign(candidates.size(), 0.0);
  }

  void add(const RowBatch& batch) {
    walk_projections(
        context_, reference_, batch,
        [this](int64_t layer, Site site) { return measured(layer, site); },
        [this](const Projection& p, const std::vector<float>& y) { compare(p, y); });
  }

  std::vector<ProjectionError> result() const {
    std::vector<ProjectionError> errors;
    for (int64_t layer = 0; layer < reference_.num_layers(); ++layer) {
      for (int site = 0; site < kSites; ++site) {
        if (!measured(layer, static_cast<Site>(site))) continue;
        const Accumulator& sum = sums_[static_cast<size_t>(layer * kSites + site)];
        ProjectionError& error = errors.emplace_back();
        error.layer = layer;
        error.projection = kProjections[site];
        for (double difference : sum.difference) {
          error.relative.push_back(sum.reference > 0 ? std::sqrt(difference / sum.reference) : 0);
        }
      }
    }
    return errors;
  }

 private:
  bool measured(int64_t layer, Site site) const {
    return std::ranges::any_of(
        candidates_, [&](const PackedModel* m) { return m->sites().quantised(layer, site); });
  }

  void compare(const Projection& projection, const std::vector<float>& y) {
    Accumulator& sum = sums_[static_cast<size_t>(projection.layer * kSites +
                                                 static_cast<int64_t>(projection.site))];
    for (float v : y) sum.reference += double{v} * v;
    for (size_t c = 0; c < candidates_.size(); ++c) {
      const std::vector<float> q = multiply(context_, *candidates_[c], projection);
      for (size_t i = 0; i < y.size(); ++i) {
        const double d = double{q[i]} - y[i];
        sum.difference[c] += d * d;
      }
    }
  }

  kernels::CpuContext context_;
  PackedModel& reference_;
  std::span<const PackedModel* const> candidates_;
  std::vector<Accumulator> sums_;  // [layers * kSites]
};

}  // namespace

std::vector<ProjectionError> projection_errors(const kernels::CpuContext& context,
                                               PackedModel& reference,
                                               std::span<const PackedModel* const> candidates,
                                               std::span<const Sample> samples) {
  constexpr int64_t kMaxRows = 1024;
  const kernels::FlushDenormals flush;
  std::vector<std::vector<int32_t>> tokens;
  const std::vector<TrainSequence> sequences = train_sequences(samples, tokens);
  Measurement measurement(context, reference, candidates);
  SequenceBatch batch(reference);
  for (const auto& [begin, end] : pack(sequences, kMaxRows)) {
    batch.assign(
        std::span(sequences).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        1.0F);
    measurement.add(batch.rows());
  }
  return measurement.result();
}

}  // namespace quads
