#include "bench/device_train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

#include "aten/aten_engine.h"
#include "base/error.h"
#include "eval/device.h"
#include "report/progress.h"
#ifdef QUADS_HAVE_CUDA
#include "bench/requests.h"
#include "bench/shapes.h"
#include "cuda/cuda_model.h"
#include "rl/cuda_sides.h"
#include "rollout/engine.h"
#include "rollout/rac_calibration.h"
#endif

namespace quads::bench {

DeviceRecipe parse_device_recipe(const std::string& name) {
  DeviceRecipe result;
  RecipeOverrides overrides;
  size_t colon = name.find(':');
  const std::string recipe = name.substr(0, colon);
  while (colon != std::string::npos) {
    const size_t next = name.find(':', colon + 1);
    const std::string option = name.substr(colon + 1, next - colon - 1);
    require(option == "aten" || option == "floor",
            "recipe '{}': behind its name may be ':aten' and ':floor', not ':{}'", name, option);
    (option == "aten" ? result.aten : overrides.rac_scale_floor) = true;
    colon = next;
  }
  result.recipe = make_recipe(recipe, overrides);
  return result;
}

#ifdef QUADS_HAVE_CUDA
namespace {

constexpr double kPeakFlops = 989e12;

struct Step {
  double rollout, forward_backward, optimizer, quantise;
  double gap;
  int64_t rows, responses;
  double total() const { return rollout + forward_backward + optimizer + quantise; }
};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Parameters of the matrices that a row multiplies with.
double active_parameters(const ModelConfig& c) {
  const int64_t q = c.num_attention_heads * c.head_dim, kv = c.num_key_value_heads * c.head_dim;
  int64_t all = c.vocab_size * c.hidden_size;
  for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
    all += c.hidden_size * (2 * q + 2 * kv);
    if (!c.is_sparse(l)) {
      all += 3 * c.hidden_size * c.intermediate_size;
      continue;
    }
    all += c.hidden_size * c.num_experts + 3 * c.hidden_size *
                                               (c.num_experts_per_tok * c.moe_intermediate_size +
                                                c.shared_expert_intermediate_size);
  }
  return static_cast<double>(all);
}

double flops_of_row(const ModelConfig& c, double mean_length) {
  const auto width = static_cast<double>(c.num_attention_heads * c.head_dim);
  return 6 * active_parameters(c) +
         6 * static_cast<double>(c.num_hidden_layers) * width * mean_length;
}

class Run {
 public:
  Run(const ModelConfig& config, const std::string& name, const DeviceTrainBench& options)
      : options_(options) {
    const auto [recipe, aten] = parse_device_recipe(name);
    recipe_ = recipe;
    replays_ = recipe_.replays() && !aten;
    const int64_t sequences = options.prompts * options.samples;
    const int64_t context = options.prompt_len + options.response_len;
    const int64_t pages = (context + kernels::kPageSize) / kernels::kPageSize * sequences;
    const int64_t kv_memory = pages * kernels::kPageSize * config.num_hidden_layers * 2 *
                              config.num_key_value_heads * config.head_dim *
                              static_cast<int64_t>(sizeof(Bf16));
    SidesOptions sides{.trainer = {.precision = recipe_.trainer,
                                   .scope = {},
                                   .training = {},
                                   .max_context = context},
                       .rollout = recipe_.rollout,
                       .with_reference = false,
                       .max_running = sequences,
                       .prefill_chunk = kDevicePrefillChunk,
                       .kv_memory = kv_memory};
    sides.trainer.training.max_tokens =
        options.max_tokens > 0 ? options.max_tokens : default_micro_batch(config, false);
    const ForeignKernels foreign = {.on_cpu = nullptr, .on_gpu = make_aten_cuda_blocks};
    sides_ =
        make_cuda_sides(cuda::RandomParameters(config), nullptr, sides, aten ? &foreign : nullptr);
    std::fprintf(stderr, "%s: memory of the device: %s\n", name.c_str(),
                 sides_->memory_plan().c_str());
    engine_ = std::make_unique<Engine>(sides_->backend(),
                                       Engine::Options{.max_running = sequences,
                                                       .max_context = context,
                                                       .kv_memory_bytes = kv_memory,
                                                       .prefill_chunk = kDevicePrefillChunk});
    requests_ = random_requests(options.prompts, options.prompt_len, config.vocab_size);
    for (Request& r : requests_) r.n_samples = static_cast<int32_t>(options.samples);
    generate_.max_new_tokens = options.response_len;
    generate_.seed = 1;
    sums_ = std::make_unique<ResidualSums>(sides_->backend().sites(), 1);
    // As a run begins: masks from a calibration that samples.
    const bool masked = recipe_.trainer.rac.ratio > 0;
    sides_->refresh_trainer(masked ? full_masks(sides_->backend().sites()) : RacMasks{});
    GenerateOptions calibration = generate_;
    calibration.max_new_tokens = 4;
    masks_ = calibrate_masks(*engine_, requests_, calibration);
    quantise();
  }

  Step step() {
    Step step{};
    double start = now();
    const auto lap = [&] {
      cuda::check_cuda(cudaDeviceSynchronize(), "waiting for a part of a step");
      const double end = now(), elapsed = end - start;
      start = end;
      return elapsed;
    };
    sums_->clear();
    generate_.residual_sums = sums_.get();
    const std::vector<Sample> samples = engine_->generate(requests_, generate_);
    step.rollout = lap();

    std::vector<std::vector<int32_t>> tokens;
    std::vector<float> expected;
    std::vector<TrainSequence> sequences;
    for (const Sample& s : samples) {
      std::vector<int32_t>& all = tokens.emplace_back(s.prompt);
      all.insert(all.end(), s.response.begin(), s.response.end());
      expected.insert(expected.end(), s.logprobs.begin(), s.logprobs.end());
      step.responses += std::ssize(s.response);
    }
    for (const std::vector<int32_t>& all : tokens) {
      sequences.push_back({.tokens = all, .prompt_length = options_.prompt_len, .routing = {}});
      step.rows += sequences.back().rows();
    }
    start = now();
    size_t at = 0;
    sides_->trainer().accumulate(sequences, [&](const MicroBatch& micro, std::span<float> dlogp) {
      for (size_t i = 0; i < dlogp.size(); ++i) {
        step.gap = std::max(step.gap, std::fabs(double{micro.logprobs[i]} - expected[at++]));
        dlogp[i] = i % 2 == 0 ? 1e-4F : -1e-4F;
      }
    });
    step.forward_backward = lap();
    // The learning rate is 0: the work is the same every step.
    require(sides_->trainer().optimizer().step(0.0F, 1.0F).applied,
            "recipe {}: a gradient is not finite", recipe_.name);
    step.optimizer = lap();
    const Rac& rac = recipe_.rollout.rac;
    if (rac.ratio > 0 && rac.ratio < 1) masks_ = select_masks(sums_->totals(), rac);
    quantise();
    step.quantise = lap();
    require(!replays_ || step.gap == 0.0, "recipe {} has a gap of {}", recipe_.name, step.gap);
    return step;
  }

 private:
  void quantise() {
    sides_->refresh_trainer(masks_);
    sides_->sync(masks_);
  }

  const DeviceTrainBench& options_;
  Recipe recipe_;
  bool replays_;
  std::unique_ptr<Sides> sides_;
  std::unique_ptr<Engine> engine_;
  std::vector<Request> requests_;
  GenerateOptions generate_;
  std::unique_ptr<ResidualSums> sums_;
  RacMasks masks_;
};

double used_gigabytes() {
  size_t free = 0, total = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<double>(total - free) / 1e9;
}

double median(const std::vector<Step>& steps, const std::function<double(const Step&)>& part) {
  std::vector<double> values(steps.size());
  std::ranges::transform(steps, values.begin(), part);
  std::ranges::nth_element(values, values.begin() + std::ssize(values) / 2);
  return values[values.size() / 2];
}

}  // namespace

Result bench_device_train(const DeviceTrainBench& options) {
  ModelConfig config = bench_shape(options.shape);
  if (options.layers > 0) config.num_hidden_layers = options.layers;
  Result result;
  result.name = "train";
  result.notes = fmt::format(
      "Shape {} with {} layers on a GPU, random weights, {} prompts of {} tokens x {} samples of "
      "{} "
      "tokens a step; medians of {} steps. mfu: (6 x active parameters + causal attention) x rows "
      "over forward and backward, of 989 TF/s; x_first: the step's time over that of the first "
      "recipe.",
      options.shape, config.num_hidden_layers, options.prompts, options.prompt_len, options.samples,
      options.response_len, options.steps - 1);
  result.machine = {{"active_parameters", static_cast<int64_t>(active_parameters(config))}};
  double first = std::numeric_limits<double>::quiet_NaN();
  for (const std::string& name : options.recipes) {
    Run run(config, name, options);
    Progress progress({.label = name, .total = options.steps});
    std::vector<Step> steps;
    for (int64_t i = 0; i < options.steps; ++i) {
      const Step step = run.step();
      if (i > 0) steps.push_back(step);
      progress.update(i + 1, {{"step_s", format_figure(step.total())},
                              {"forward_backward_s", format_figure(step.forward_backward)}});
    }
    const auto of = [&](auto part) { return median(steps, part); };
    const double total = of([](const Step& s) { return s.total(); });
    const double passes = of([](const Step& s) { return s.forward_backward; });
    const double optimizer = of([](const Step& s) { return s.optimizer; });
    const double rollout = of([](const Step& s) { return s.rollout; });
    const auto rows = static_cast<double>(steps[0].rows);
    const double length = rows / static_cast<double>(options.prompts * options.samples);
    if (std::isnan(first)) first = total;
    result.rows.push_back(
        {.labels = {{"recipe", name}},
         .figures = {{"step_s", total},
                     {"rollout_s", rollout},
                     {"forward_backward_s", passes},
                     {"optimizer_s", optimizer},
                     {"quantise_s", of([](const Step& s) { return s.quantise; })},
                     {"rollout_tokens_per_s", static_cast<double>(steps[0].responses) / rollout},
                     {"train_tokens_per_s", rows / (passes + optimizer)},
                     {"mfu", rows * flops_of_row(config, length) / passes / kPeakFlops},
                     {"gap_max", std::ranges::max(steps, {}, &Step::gap).gap},
                     {"memory_gb", used_gigabytes()},
                     {"x_first", total / first}}});
  }
  return result;
}
#else
Result bench_device_train(const DeviceTrainBench&) { fail_without_cuda(); }
#endif

}  // namespace quads::bench
