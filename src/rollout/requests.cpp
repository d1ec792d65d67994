#include "rollout/requests.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "rollout/kv_cache.h"

namespace quads {

void check_tokens(std::span<const int32_t> tokens, int64_t vocab, const char* what,
                  int64_t prompt_index) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    require(tokens[i] >= 0 && tokens[i] < vocab,
            "prompt {}: token {} at position {} of the {} is outside the vocabulary of {}",
            prompt_index, tokens[i], i, what, vocab);
  }
}

void check_requests(std::span<const Request> requests, const GenerateOptions& options,
                    const ModelConfig& config, const RequestLimits& limits) {
  const kernels::SamplingParams& s = options.sampling;
  require(std::isfinite(s.temperature) && s.temperature >= 0,
          "temperature is {}: it must be 0 (greedy) or more", s.temperature);
  require(s.top_k >= 0, "top_k is {}: it must be 0 (off) or more", s.top_k);
  require(s.top_p > 0 && s.top_p <= 1, "top_p is {}: it must be in (0, 1]", s.top_p);
  require(options.max_new_tokens >= 0, "max_new_tokens is {}: it must be 0 or more",
          options.max_new_tokens);

  struct Range {
    int64_t prompt_index, begin, end;
  };
  std::vector<Range> ranges;
  ranges.reserve(requests.size());
  for (const Request& r : requests) {
    require(r.prompt_index >= 0, "prompt index {}: it must be 0 or more", r.prompt_index);
    require(!r.prompt.empty(), "prompt {} is empty: it needs at least one token", r.prompt_index);
    require(r.n_samples >= 1, "prompt {}: {} samples asked for, at least 1 is needed",
            r.prompt_index, r.n_samples);
    require(
        r.first_sample >= 0 && r.first_sample <= std::numeric_limits<int32_t>::max() - r.n_samples,
        "prompt {}: first sample index {} is out of range", r.prompt_index, r.first_sample);
    check_tokens(r.prompt, config.vocab_size, "prompt", r.prompt_index);
    const int64_t length = std::ssize(r.prompt);
    require(options.max_new_tokens <= limits.max_context - length,
            "prompt {}: its {} tokens and up to {} new ones exceed the context of {}",
            r.prompt_index, length, options.max_new_tokens, limits.max_context);
    // The last token is never fed.
    const int64_t pages =
        KvCache::pages_for(length + std::max<int64_t>(options.max_new_tokens, 1) - 1);
    require(pages <= limits.kv_pages,
            "prompt {}: its {} tokens and up to {} new ones need {} key-value pages, there are {}",
            r.prompt_index, length, options.max_new_tokens, pages, limits.kv_pages);
    ranges.push_back({r.prompt_index, r.first_sample, int64_t{r.first_sample} + r.n_samples});
  }
  std::ranges::sort(ranges, [](const Range& a, const Range& b) {
    return std::pair(a.prompt_index, a.begin) < std::pair(b.prompt_index, b.begin);
  });
  for (size_t i = 1; i < ranges.size(); ++i) {
    require(ranges[i].prompt_index != ranges[i - 1].prompt_index ||
                ranges[i].begin >= ranges[i - 1].end,
            "prompt {}: sample {} is asked for twice", ranges[i].prompt_index, ranges[i].begin);
  }
}

}  // namespace quads
