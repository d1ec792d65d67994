#include "rollout/engine.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace quads {
namespace {

int64_t kv_pages(const RolloutBackend& backend, const Engine::Options& options) {
  require(options.max_running >= 1, "max_running is {}: it must be at least 1",
          options.max_running);
  require(options.max_context >= 1, "max_context is {}: it must be at least 1",
          options.max_context);
  require(options.prefill_chunk >= 1, "prefill_chunk is {}: it must be at least 1",
          options.prefill_chunk);
  require(options.kv_pages >= 0, "kv_pages is {}: it must be at least 1, or 0 to go by memory",
          options.kv_pages);
  if (options.kv_pages > 0) return options.kv_pages;
  const int64_t bytes = backend.page_bytes();
  require(options.kv_memory_bytes >= bytes,
          "{} bytes for keys and values: one page of {} positions takes {}",
          options.kv_memory_bytes, kernels::kPageSize, bytes);
  // One more a sequence: a prompt's last page may be held beside the copies of it.
  const int64_t usable = options.max_running * (KvCache::pages_for(options.max_context) + 1);
  return std::min(options.kv_memory_bytes / bytes, usable);
}

Sample make_sample(Sequence& s, const Group& group, bool with_routing) {
  Sample sample;
  sample.prompt_index = group.request->prompt_index;
  sample.sample_index = s.sample_index;
  sample.prompt = group.request->prompt;
  sample.response = std::move(s.response);
  sample.logprobs = std::move(s.logprobs);
  if (with_routing) {
    sample.routing = group.routing;
    sample.routing.insert(sample.routing.end(), s.routing.begin(), s.routing.end());
  }
  sample.finish = s.finish;
  return sample;
}

}  // namespace

Engine::Engine(RolloutBackend& backend, const Options& options)
    : backend_(backend), options_(options), cache_(backend, kv_pages(backend, options)) {}

void Engine::run(const RolloutBackend::StepOptions& options) {
  backend_.run(batch_, options);
  for (const Draw& draw : batch_.draws) {
    require(std::isfinite(draw.logprob),
            "prompt {}, sample {}: the log-probability of the token at position {} is {}: the "
            "model's activations are not finite",
            draw.prompt_index, draw.sample_index, draw.position, draw.logprob);
  }
}

void Engine::check(std::span<const Request> requests, const GenerateOptions& options) const {
  check_requests(requests, options, backend_.config(), {options_.max_context, cache_.pages()});
}

std::vector<Sample> Engine::generate(std::span<const Request> requests,
                                     const GenerateOptions& options) {
  check(requests, options);
  cache_.clear();
  Scheduler scheduler(requests, cache_, {options_.max_running, options_.prefill_chunk});
  const RolloutBackend::StepOptions step{.sampling = options.sampling,
                                         .seed = options.seed,
                                         .residual_sums = options.residual_sums,
                                         .record_routing = options.record_routing,
                                         .max_context = options_.max_context};
  std::vector<Sample> samples(scheduler.sequences().size());
  const auto deliver = [&](int32_t id) {
    Sequence& s = scheduler.sequence(id);
    Sample& sample = samples[static_cast<size_t>(id)];
    sample = make_sample(s, scheduler.group_of(s), options.record_routing);
    if (options.on_finished) options.on_finished(sample);
  };
  const auto finish = [&](int32_t id, FinishReason reason) {
    scheduler.finish(id, reason);
    deliver(id);
  };

  if (options.max_new_tokens == 0) {
    for (int32_t id = 0; id < std::ssize(samples); ++id) finish(id, FinishReason::kLength);
  }
  const auto cancelled = [&] { return options.cancel && options.cancel->load(); };
  while (!cancelled() && scheduler.next_step(batch_)) {
    run(step);
    if (options.record_routing) record_routing(scheduler);
    scheduler.rows_computed(batch_);
    for (const Draw& draw : batch_.draws) {
      scheduler.append(draw.sequence, draw.token, draw.logprob);
      if (options.on_token) {
        options.on_token(draw.prompt_index, draw.sample_index, draw.token, draw.logprob);
      }
      const bool stop =
          std::ranges::find(options.stop_tokens, draw.token) != options.stop_tokens.end();
      if (stop ||
          std::ssize(scheduler.sequence(draw.sequence).response) == options.max_new_tokens) {
        finish(draw.sequence, stop ? FinishReason::kStop : FinishReason::kLength);
      }
    }
  }
  for (int32_t id = 0; id < std::ssize(samples); ++id) {
    if (!scheduler.sequence(id).finished) finish(id, FinishReason::kCancelled);
  }
  backend_.finish(step);
  preemptions_ = scheduler.preemptions();
  return samples;
}

// Appends the routing of rows computed for the first time.
void Engine::record_routing(Scheduler& scheduler) {
  const int64_t width = backend_.routing_width();
  if (width == 0) return;
  for (size_t i = 0; i < batch_.runs.size(); ++i) {
    Sequence& s = scheduler.sequence(batch_.runs[i].sequence);
    Group& group = scheduler.group_of(s);
    for (int64_t row = batch_.runs[i].row; row < batch_.run_end(i); ++row) {
      const int64_t position = batch_.positions[static_cast<size_t>(row)];
      const bool prompt = position < group.prompt_length();
      std::vector<int32_t>& out = prompt ? group.routing : s.routing;
      const auto at =
          static_cast<size_t>((prompt ? position : position - group.prompt_length()) * width);
      if (at < out.size()) continue;
      out.resize(at + static_cast<size_t>(width));
      backend_.copy_routing(row, out.data() + at);
    }
  }
}

std::vector<std::vector<float>> Engine::score(std::span<const Sample> samples, float temperature) {
  for (const Sample& s : samples) {
    require(!s.prompt.empty(), "prompt {} is empty: it needs at least one token", s.prompt_index);
    check_tokens(s.prompt, backend_.config().vocab_size, "prompt", s.prompt_index);
    check_tokens(s.response, backend_.config().vocab_size, "response", s.prompt_index);
    const int64_t length = std::ssize(s.prompt) + std::ssize(s.response);
    const int64_t limit = std::min(options_.max_context, cache_.pages() * kernels::kPageSize);
    require(length <= limit, "prompt {}, sample {}: {} tokens exceed the context of {}",
            s.prompt_index, s.sample_index, length, limit);
  }
  const RolloutBackend::StepOptions step{.sampling = {.temperature = temperature},
                                         .max_context = options_.max_context};
  std::vector<std::vector<float>> logprobs(samples.size());
  for (size_t first = 0; first < samples.size();) {
    // As many whole sequences as the chunk and the pages take, at least one.
    cache_.clear();
    batch_.clear();
    std::vector<std::vector<int32_t>> pages;
    size_t next = first;
    for (; next < samples.size(); ++next) {
      const Sample& s = samples[next];
      const int64_t prompt = std::ssize(s.prompt), length = prompt + std::ssize(s.response);
      if (next > first && (batch_.rows() + length > options_.prefill_chunk ||
                           KvCache::pages_for(length) > cache_.free_pages())) {
        break;
      }
      if (s.response.empty()) continue;
      std::vector<int32_t>& ids = pages.emplace_back();
      for (int64_t p = 0; p < KvCache::pages_for(length); ++p) ids.push_back(cache_.allocate());
      batch_.begin_run(static_cast<int32_t>(next));
      for (int64_t p = 0; p + 1 < length; ++p) {
        const auto at = static_cast<size_t>(p < prompt ? p : p - prompt);
        batch_.add_row(p < prompt ? s.prompt[at] : s.response[at], p, ids.data(), false);
        if (p + 1 >= prompt) batch_.add_target(s.response[static_cast<size_t>(p + 1 - prompt)]);
      }
    }
    if (batch_.rows() > 0) run(step);
    for (size_t i = 0; i < batch_.runs.size(); ++i) {
      const auto begin = batch_.target_logprobs.begin() + batch_.runs[i].target;
      const auto sequence = static_cast<size_t>(batch_.runs[i].sequence);
      logprobs[sequence].assign(begin, begin + std::ssize(samples[sequence].response));
    }
    first = next;
  }
  return logprobs;
}

}  // namespace quads
