// The trainer as a program for tests/oracle/test_trainer.py: JSON on stdin, gradients and weights
// in safetensors files.
#include <cstdio>
#include <iostream>

#include "io/safetensors_writer.h"
#include "tests/model/tool_options.h"
#include "tool_main.h"
#include "trainer/trainer.h"

namespace quads::testing {
namespace {

using nlohmann::json;

/// The parts (Hugging Face tensors) of a flat FP32 array.
std::vector<TensorView> views_of(const Parameters& parameters, const float* flat) {
  std::vector<TensorView> views;
  for (const Parameter& p : parameters.layout().parameters) {
    for (const ParameterPart& part : p.parts) {
      TensorView& view = views.emplace_back();
      view.name = part.name;
      view.shape = p.part_shape(part);
      view.data = reinterpret_cast<const std::byte*>(flat + p.offset + part.row_begin * p.cols);
      view.nbytes = static_cast<size_t>(part.rows * p.cols) * sizeof(float);
    }
  }
  return views;
}

/// "model", a side, "sequences": [{"tokens", "prompt_length", "dlogp", "routing"}], "temperature",
/// "max_tokens", "checkpoint" -> gradients of sum dlogp logp in `out`, log-probs in `logprobs`.
void gradients(const json& in) {
  Parameters parameters = load_parameters(in.at("model").get<std::string>());
  Side::Options options = side_options(in);
  options.with_transposes = true;
  Side side(parameters, options);
  Trainer trainer(side.runtime.context(), parameters, side.model, side.blocks,
                  [&] { side.refresh(); },
                  {.adamw = {},
                   .temperature = in.value("temperature", 1.0F),
                   .max_tokens = in.value("max_tokens", 2048),
                   .checkpoint_activations = in.value("checkpoint", false)});
  std::vector<std::vector<int32_t>> tokens, routing;
  std::vector<std::vector<float>> weights;
  std::vector<TrainSequence> sequences;
  for (const json& s : in.at("sequences")) {
    tokens.push_back(s.at("tokens").get<std::vector<int32_t>>());
    weights.push_back(s.at("dlogp").get<std::vector<float>>());
    routing.push_back(s.value("routing", std::vector<int32_t>{}));
    sequences.push_back({.tokens = {}, .prompt_length = s.at("prompt_length"), .routing = {}});
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    sequences[i].tokens = tokens[i];
    sequences[i].routing = routing[i];
  }
  std::vector<float> logprobs;
  trainer.accumulate(sequences, [&](const MicroBatch& micro, std::span<float> dlogp) {
    logprobs.insert(logprobs.end(), micro.logprobs.begin(), micro.logprobs.end());
    for (size_t i = 0; i + 1 < micro.offsets.size(); ++i) {
      std::ranges::copy(weights[static_cast<size_t>(micro.first) + i],
                        dlogp.begin() + micro.offsets[i]);
    }
  });
  write_floats(in.at("logprobs").get<std::string>(), logprobs);
  write_safetensors(in.at("out").get<std::string>(),
                    views_of(parameters, trainer.optimizer().grads()));
}

/// Updates with the gradients of "grads" (a file an update), "lrs" and the options of AdamW ->
/// masters in `out`, BF16 parameters as a model in `model_out`, norms on stdout.
void optimise(const json& in) {
  Parameters parameters = load_parameters(in.at("model").get<std::string>());
  kernels::CpuRuntime runtime(kernels::best_isa(), in.value("threads", 1));
  CpuOptimizer optimizer(runtime.context(), parameters,
                         {.beta1 = in.at("beta1"),
                          .beta2 = in.at("beta2"),
                          .eps = in.at("eps"),
                          .weight_decay = in.at("weight_decay"),
                          .max_grad_norm = in.at("max_grad_norm"),
                          .bf16_masters = in.value("bf16_masters", false)});
  json results = json::array();
  const auto lrs = in.at("lrs").get<std::vector<float>>();
  const auto files = in.at("grads").get<std::vector<std::string>>();
  for (size_t step = 0; step < files.size(); ++step) {
    const TensorStore store(files[step]);
    for (const TensorView& view : views_of(parameters, optimizer.grads())) {
      store.at(view.name).copy_to(const_cast<std::byte*>(view.data));
    }
    const Optimizer::Result result = optimizer.step(lrs[step], in.value("grad_scale", 1.0F));
    results.push_back(result.grad_norm);
  }
  write_safetensors(in.at("out").get<std::string>(),
                    views_of(parameters, optimizer.state(Optimizer::State::kMaster).data()));
  save_parameters(parameters, in.at("model_out").get<std::string>());
  std::cout << results << '\n';
}

void run(const json& in) {
  const auto function = in.at("function").get<std::string>();
  if (function == "gradients") {
    gradients(in);
  } else if (function == "optimise") {
    optimise(in);
  } else {
    fail("unknown function '{}'", function);
  }
}

}  // namespace
}  // namespace quads::testing

int main() {
  return quads::tool_main([] { quads::testing::run(nlohmann::json::parse(std::cin)); });
}
