#include "diagnose/diagnosis.h"

#include "base/error.h"
#include "diagnose/trainer_logprobs.h"
#include "model/cpu_blocks.h"

namespace quads {
namespace {

constexpr Precision kBf16{};
constexpr Precision kW4A4{Format::kNvfp4, Format::kNvfp4, {}};
constexpr Precision kW4A16{Format::kNvfp4, Format::kBf16, {}};

std::vector<float> flat(const std::vector<std::vector<float>>& lists) {
  std::vector<float> all;
  for (const std::vector<float>& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::vector<float> logprobs_of(const std::vector<Sample>& samples) {
  std::vector<float> all;
  for (const Sample& sample : samples) {
    require(sample.finish != FinishReason::kCancelled, "stopped before all samples were drawn");
    all.insert(all.end(), sample.logprobs.begin(), sample.logprobs.end());
  }
  require(!all.empty(), "no tokens were sampled: there is nothing to diagnose");
  return all;
}

}  // namespace

std::string PairDiagnosis::dominant() const {
  std::string name;
  double largest = 0;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i].mean > largest) {
      largest = parts[i].mean;
      name = parts[i].name;
    }
  }
  return name;
}

Diagnosis diagnose(kernels::CpuRuntime& runtime, const Parameters& parameters,
                   const DiagnosisOptions& options) {
  const float temperature = options.sampling.sampling.temperature;
  require(temperature > 0, "a diagnosis samples: the temperature must be positive, not {}",
          temperature);
  require(options.rac.ratio > 0, "a diagnosis with compensation needs a ratio above 0");
  const PackedModel* share = nullptr;
  const auto engine = [&](const Precision& precision) {
    GeneratorOptions generator = options.engine;
    generator.precision = precision;
    generator.scope = options.scope;
    generator.share = share;
    auto result = std::make_unique<CpuGenerator>(runtime, parameters, generator, options.requests,
                                                 options.sampling);
    return result;
  };
  const auto bf16 = engine(kBf16);
  share = &bf16->model();
  const auto w4a16 = engine(kW4A16);
  const Precision compensated{Format::kNvfp4, Format::kNvfp4, options.rac};
  const std::unique_ptr<CpuGenerator> rollouts[] = {engine(kW4A4), engine(compensated)};

  const auto trainer = [&](CpuGenerator& engine, const std::vector<Sample>& samples) {
    const std::unique_ptr<Blocks> blocks =
        options.trainer_blocks ? options.trainer_blocks(engine.model())
                               : std::make_unique<CpuBlocks>(runtime.context(), engine.model());
    return trainer_logprobs(*blocks, engine.model(), samples, temperature);
  };

  Diagnosis diagnosis;
  for (const auto& rollout : rollouts) {
    const std::vector<Sample>& samples =
        diagnosis.samples.emplace_back(rollout->generate(options.requests, options.sampling));
    const std::vector<float> sampled = logprobs_of(samples);
    const std::vector<float> weights_only = flat(w4a16->score(samples, temperature));
    for (const bool qat : {false, true}) {
      CpuGenerator& side = qat ? *w4a16 : *bf16;
      const Stage stages[] = {
          {"rollout", sampled},
          {"w4a16", weights_only},
          {"trainer's precision", qat ? weights_only : flat(bf16->score(samples, temperature))},
          {"trainer's kernels", trainer(side, samples)}};
      PairDiagnosis& pair = diagnosis.pairs.emplace_back();
      pair.rollout = precision_name(rollout->model().precision());
      pair.trainer = precision_name(side.model().precision());
      pair.samples = diagnosis.samples.size() - 1;
      pair.deltas = differences(stages, {"delta_act", "delta_weight", "delta_num"});
      for (const Delta& delta : pair.deltas) {
        pair.parts.push_back(summarize_delta(delta, pair.deltas.back()));
      }
    }
  }

  const PackedModel* candidates[] = {&w4a16->model(), &rollouts[0]->model(), &rollouts[1]->model()};
  for (const PackedModel* model : candidates) {
    diagnosis.candidates.push_back(precision_name(model->precision()));
  }
  diagnosis.projections =
      projection_errors(runtime.context(), bf16->model(), candidates, diagnosis.samples.front());
  return diagnosis;
}

}  // namespace quads
