// What samples and scores for a command: the engine under a precision, or the FP32 reference.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rollout/cpu_backend.h"
#include "rollout/engine.h"

namespace quads {

class Generator {
 public:
  virtual ~Generator() = default;
  /// As Engine::generate and Engine::score.
  virtual std::vector<Sample> generate(std::span<const Request> requests,
                                       const GenerateOptions& options) = 0;
  virtual std::vector<std::vector<float>> score(std::span<const Sample> samples,
                                                float temperature) = 0;
};

/// An engine that somebody else owns: the training loop's.
class EngineView : public Generator {
 public:
  explicit EngineView(Engine& engine) : engine_(engine) {}
  std::vector<Sample> generate(std::span<const Request> requests,
                               const GenerateOptions& options) override {
    return engine_.generate(requests, options);
  }
  std::vector<std::vector<float>> score(std::span<const Sample> samples,
                                        float temperature) override {
    return engine_.score(samples, temperature);
  }

 private:
  Engine& engine_;
};

struct GeneratorOptions {
  Precision precision{};
  QuantizeScope scope{};
  int64_t max_running = 512;  // sequences decoded at once
  int64_t max_context = 0;    // positions of the longest prompt with its response
  int64_t kv_memory_bytes = int64_t{64} << 20;
  int64_t prefill_chunk = 512;            // as in Engine::Options
  const PackedModel* share = nullptr;     // as in PackedModel::Options
  const StoredWeights* stored = nullptr;  // likewise
  std::optional<RacMasks> masks = {};     // taken if they fit, instead of a calibration
};

/// An engine on a backend under a precision, its masks in place.
class EngineGenerator : public Generator {
 public:
  std::vector<Sample> generate(std::span<const Request> requests,
                               const GenerateOptions& options) override {
    return engine_->generate(requests, options);
  }
  std::vector<std::vector<float>> score(std::span<const Sample> samples,
                                        float temperature) override {
    return engine_->score(samples, temperature);
  }
  const RacMasks& masks() const { return masks_; }
  /// Whether those are the options'.
  bool has_given_masks() const { return has_given_masks_; }

 protected:
  const Engine& engine() const { return *engine_; }
  /// Makes the engine, and brings the backend's weights in place. Where the precision compensates a
  /// share of the channels and no masks are given, they are made by sampling `calibration` as
  /// `sampling` says.
  void start(RolloutBackend& backend, const GeneratorOptions& options,
             std::span<const Request> calibration, const GenerateOptions& sampling);

 private:
  std::unique_ptr<Engine> engine_;
  RacMasks masks_;
  bool has_given_masks_ = false;
};

/// On a CPU.
class CpuGenerator : public EngineGenerator {
 public:
  /// `parameters` and `runtime` must outlive this object.
  CpuGenerator(kernels::CpuRuntime& runtime, const Parameters& parameters,
               const GeneratorOptions& options, std::span<const Request> calibration,
               const GenerateOptions& sampling);

  PackedModel& model() { return model_; }

 private:
  PackedModel model_;
  CpuBackend backend_;
};

/// Samples from reference_logits with the engine's draws: slow (every token computes its whole
/// sequence again), unrounded. No routing, no residual sums. Samples are spread over the threads;
/// on_token is called as tokens come, one call at a time.
class ReferenceGenerator : public Generator {
 public:
  ReferenceGenerator(kernels::CpuRuntime& runtime, const Parameters& parameters,
                     int64_t max_context)
      : runtime_(runtime), parameters_(parameters), max_context_(max_context) {}

  std::vector<Sample> generate(std::span<const Request> requests,
                               const GenerateOptions& options) override;
  std::vector<std::vector<float>> score(std::span<const Sample> samples,
                                        float temperature) override;

 private:
  kernels::CpuRuntime& runtime_;
  const Parameters& parameters_;
  int64_t max_context_;
};

/// Error, beginning with `where`, if a prompt with the longest response is longer than the model's
/// max_position_embeddings.
void require_positions(const ModelConfig& config, int64_t prompt_tokens, int64_t response_tokens,
                       const std::string& where);

/// Positions that the longest of the requests needs with a response of `max_new_tokens`.
int64_t context_of(std::span<const Request> requests, int64_t max_new_tokens);

}  // namespace quads
