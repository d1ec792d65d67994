// Sampling and scoring with the FP32 reference.
#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "eval/generator.h"
#include "model/reference.h"

namespace quads {
namespace {

struct Job {
  const Request* request;
  int32_t sample_index;
};

bool contains(const std::vector<int32_t>& tokens, int32_t token) {
  return std::ranges::find(tokens, token) != tokens.end();
}

}  // namespace

std::vector<Sample> ReferenceGenerator::generate(std::span<const Request> requests,
                                                 const GenerateOptions& options) {
  const ModelConfig& config = parameters_.config();
  check_requests(requests, options, config,
                 {.max_context = max_context_, .kv_pages = KvCache::pages_for(max_context_) + 1});
  require(!options.record_routing && options.residual_sums == nullptr,
          "the FP32 reference records neither routing nor residuals");
  std::vector<Job> jobs;
  for (const Request& request : requests) {
    for (int32_t i = 0; i < request.n_samples; ++i) {
      jobs.push_back({&request, request.first_sample + i});
    }
  }
  std::vector<Sample> samples(jobs.size());
  std::mutex callbacks;
  const kernels::CpuContext context = runtime_.context();
  const float inv_temperature = logprob_inv_temperature(options.sampling.temperature);
  context.parallel_for(std::ssize(jobs), [&](int64_t task, int worker) {
    const Job& job = jobs[static_cast<size_t>(task)];
    Sample& sample = samples[static_cast<size_t>(task)];
    sample.prompt_index = job.request->prompt_index;
    sample.sample_index = job.sample_index;
    sample.prompt = job.request->prompt;
    std::vector<int32_t> tokens = sample.prompt;
    while (std::ssize(sample.response) < options.max_new_tokens) {
      if (options.cancel && options.cancel->load()) {
        sample.finish = FinishReason::kCancelled;
        break;
      }
      const std::vector<float> logits = reference_logits(parameters_, tokens);
      const float* z = logits.data() + (std::ssize(tokens) - 1) * config.vocab_size;
      const float uniform = sampling_uniform(options.seed, sample.prompt_index, sample.sample_index,
                                             std::ssize(tokens));
      const kernels::RowKernels& rows = context.rows();
      const int32_t token =
          rows.sample(z, config.vocab_size, options.sampling, uniform, context.arena(worker));
      const float logprob =
          z[token] * inv_temperature - rows.log_sum_exp(z, config.vocab_size, inv_temperature);
      tokens.push_back(token);
      sample.response.push_back(token);
      sample.logprobs.push_back(logprob);
      if (options.on_token) {
        const std::scoped_lock lock(callbacks);
        options.on_token(sample.prompt_index, sample.sample_index, token, logprob);
      }
      if (contains(options.stop_tokens, token)) {
        sample.finish = FinishReason::kStop;
        break;
      }
    }
    if (options.on_finished) {
      const std::scoped_lock lock(callbacks);
      options.on_finished(sample);
    }
  });
  return samples;
}

std::vector<std::vector<float>> ReferenceGenerator::score(std::span<const Sample> samples,
                                                          float temperature) {
  const int64_t vocab = parameters_.config().vocab_size;
  const float inv_temperature = logprob_inv_temperature(temperature);
  const kernels::CpuContext context = runtime_.context();
  std::vector<std::vector<float>> logprobs(samples.size());
  context.parallel_for(std::ssize(samples), [&](int64_t task, int) {
    const Sample& sample = samples[static_cast<size_t>(task)];
    require(!sample.prompt.empty(), "prompt {} is empty: it needs at least one token",
            sample.prompt_index);
    check_tokens(sample.prompt, vocab, "prompt", sample.prompt_index);
    check_tokens(sample.response, vocab, "response", sample.prompt_index);
    std::vector<int32_t> tokens = sample.prompt;
    tokens.insert(tokens.end(), sample.response.begin(), sample.response.end());
    const std::vector<float> logits = reference_logits(parameters_, tokens);
    for (int64_t i = std::ssize(sample.prompt); i < std::ssize(tokens); ++i) {
      const float* z = logits.data() + (i - 1) * vocab;
      logprobs[static_cast<size_t>(task)].push_back(
          z[tokens[static_cast<size_t>(i)]] * inv_temperature -
          context.rows().log_sum_exp(z, vocab, inv_temperature));
    }
  });
  return logprobs;
}

}  // namespace quads
