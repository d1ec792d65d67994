// The engine's steps on a CPU: how the threads share a step's rows, and the pages in host memory.
#pragma once

#include "base/aligned_buffer.h"
#include "kernels/cpu/context.h"
#include "model/cpu_blocks.h"
#include "rollout/backend.h"

namespace quads {

/// How a step is spread over the threads; the results are the same bits.
enum class Schedule : uint8_t {
  kAuto,      // by the size of the model
  kByRows,    // each thread takes whole sequences through the whole model
  kTogether,  // the threads share every block's work
};

class CpuBackend : public RolloutBackend {
 public:
  /// Both must outlive the backend; `model` must be refreshed before anything runs.
  CpuBackend(kernels::CpuRuntime& runtime, PackedModel& model, Schedule schedule = Schedule::kAuto)
      : runtime_(runtime), model_(model), schedule_(schedule) {}

  const ModelConfig& config() const override { return model_.config(); }
  const QuantisedSites& sites() const override { return model_.sites(); }
  void refresh(const RacMasks& masks) override { model_.refresh(runtime_.context(), masks); }
  int64_t page_bytes() const override;
  void allocate_pages(int64_t pages) override;
  void copy_page(int32_t from, int32_t to) override;
  void run(StepBatch& batch, const StepOptions& options) override;
  void copy_routing(int64_t row, int32_t* out) const override;
  void finish(const StepOptions&) override {}
  int workers() const override { return runtime_.num_threads(); }

  /// A layer's page, [page_elements] of the attention's shape.
  Bf16* page(int64_t layer, int64_t index) {
    return pool_.data() + layer * layer_stride() + index * page_elements();
  }

 private:
  /// Whole runs: rows, logits rows and targets [begin, end).
  struct Part {
    int64_t row, row_end;
    int64_t logits_row, logits_row_end;
    int64_t target, target_end;
  };
  void cut(const StepBatch& batch, int64_t num_parts);
  void run_part(const kernels::CpuContext& context, StepBatch& batch, const Part& part,
                const StepOptions& options);
  void draw_tokens(const kernels::CpuContext& context, StepBatch& batch, const Part& part,
                   const StepOptions& options);
  int64_t page_elements() const { return model_.attention(0).shape.page_elements(); }
  int64_t layer_stride() const { return pages_ * page_elements(); }

  kernels::CpuRuntime& runtime_;
  PackedModel& model_;
  Schedule schedule_;
  int64_t pages_ = 0;
  AlignedBuffer<Bf16> pool_;  // [layers][pages][page_elements]
  std::vector<Part> parts_;
  AlignedBuffer<float> x_;        // [rows][hidden]
  std::vector<int32_t> routing_;  // a part after the other, each [layers][its rows][top_k]
  const float* cos_ = nullptr;
  const float* sin_ = nullptr;
};

}  // namespace quads
