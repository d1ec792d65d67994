// The engine's steps on a GPU. Steps in which every sequence decodes one token run as a captured
// graph, one for each of a few numbers of rows; nothing is allocated between steps.
#pragma once

#include <map>
#include <memory>
#include <tuple>

#include "cuda/device_blocks.h"
#include "kernels/cuda/sampling/sample_rows.h"
#include "rollout/backend.h"

namespace quads::cuda {

class CudaBackend : public RolloutBackend {
 public:
  struct Options {
    Precision precision = {};
    QuantizeScope scope = {};
    /// The bounds of the engine that runs on the backend.
    int64_t max_running = 256;
    int64_t max_context = 4096;
    int64_t prefill_chunk = 8192;
    /// Whether kernels start while the previous one ends, and decode steps are captured. The
    /// results are the same bits.
    bool overlap = true;
    bool graphs = true;
    const StoredWeights* stored = nullptr;  // as PackedModel::Options
  };

  /// On the current device; `source` must outlive the backend. Error as CudaModel's, and with a
  /// plan of the memory if the weights do not fit.
  CudaBackend(const ParameterSource& source, const Options& options);
  ~CudaBackend() override;

  const ModelConfig& config() const override { return model_.config(); }
  const QuantisedSites& sites() const override { return model_.sites(); }
  void refresh(const RacMasks& masks) override;
  int64_t page_bytes() const override;
  void allocate_pages(int64_t pages) override;
  void copy_page(int32_t from, int32_t to) override;
  void run(StepBatch& batch, const StepOptions& options) override;
  void copy_routing(int64_t row, int32_t* out) const override;
  void finish(const StepOptions& options) override;
  int workers() const override { return 1; }

  /// From now on steps run as single launches, of which the observer is told; null: no longer.
  void observe(kernels::cuda::LaunchObserver* observer) { context_.observer = observer; }

  const CudaModel& model() const { return model_; }
  int64_t scratch_bytes() const { return blocks_.scratch_bytes(); }

 private:
  struct GraphKey {
    int64_t rows;
    bool counted, routing;
    auto operator<=>(const GraphKey&) const = default;  // NOLINT(modernize-use-nullptr)
  };
  using Graph = std::unique_ptr<CUgraphExec_st, void (*)(CUgraphExec_st*)>;
  struct Draws;

  int64_t fill_rows(const StepBatch& batch, bool decode);
  void run_rows(const DeviceRows& rows, bool decode);
  kernels::cuda::Logits logits(int64_t begin, int64_t count);
  void draw(const StepBatch& batch, const StepOptions& options);
  void score(const StepBatch& batch, const StepOptions& options);

  Options options_;
  Stream stream_;
  CudaContext context_;
  CudaModel model_;
  int64_t max_rows_;
  int64_t max_pages_;  // of a sequence
  DeviceBlocks blocks_;
  DeviceArray<float> x_;  // [rows, hidden]
  int64_t pages_ = 0;
  DeviceArray<Bf16> kv_;
  MirroredArray<int32_t> tokens_, positions_, sequences_, page_table_;
  MirroredArray<uint8_t> counted_;
  MirroredArray<int32_t> routing_;  // [layers][rows][top_k]; made when first asked for
  int64_t routing_rows_ = 0;        // of the last run
  std::unique_ptr<Draws> draws_;    // grows with what is drawn
  DeviceArray<uint8_t> sample_scratch_;
  DeviceArray<int32_t> bad_logits_;
  RacMasks masks_;
  std::map<GraphKey, Graph> graphs_;
};

}  // namespace quads::cuda
