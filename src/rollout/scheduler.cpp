#include "rollout/scheduler.h"

#include <algorithm>

#include "base/error.h"

namespace quads {

Scheduler::Scheduler(std::span<const Request> requests, KvCache& cache, const Limits& limits)
    : cache_(cache), limits_(limits) {
  for (const Request& request : requests) {
    Group group;
    group.request = &request;
    group.first_sequence = static_cast<int32_t>(sequences_.size());
    group.detached = request.n_samples;
    for (int32_t i = 0; i < request.n_samples; ++i) {
      Sequence s;
      s.group = static_cast<int32_t>(groups_.size());
      s.sample_index = request.first_sample + i;
      waiting_.push_back(static_cast<int32_t>(sequences_.size()));
      sequences_.push_back(std::move(s));
    }
    groups_.push_back(std::move(group));
  }
}

bool Scheduler::next_step(StepBatch& batch) {
  std::erase_if(running_, [&](int32_t id) { return sequence(id).finished; });
  admit();
  if (running_.empty()) return false;
  batch.clear();
  int64_t budget = limits_.prefill_chunk;
  // Preemption takes sequences from the end, so the list may get shorter on the way.
  for (size_t i = 0; i < running_.size(); ++i) {
    if (!add_run(running_[i], budget, batch)) break;
  }
  return true;
}

// Sequences enter in order while there are pages for what they have to compute at once, beside what
// the running ones still need for that and a reserve for their growth over some steps.
void Scheduler::admit() {
  int64_t wanted = -1;  // pages that running sequences have yet to take
  while (!waiting_.empty() && std::ssize(running_) < limits_.max_running) {
    const int32_t id = waiting_.front();
    if (!sequence(id).finished) {
      const int32_t previous = running_.empty() ? -1 : running_.back();
      if (wanted < 0) {
        wanted = 0;
        for (size_t i = 0; i < running_.size(); ++i) {
          wanted += pages_wanted(running_[i], i == 0 ? -1 : running_[i - 1]);
        }
      }
      const int64_t more = pages_wanted(id, previous);
      const int64_t reserve = std::ssize(running_) / 4;
      if (!running_.empty() && wanted + more + reserve > cache_.free_pages()) return;
      wanted += more;
      running_.push_back(id);
    }
    waiting_.pop_front();
  }
}

// Pages to be taken until all tokens of the sequence are in; `previous` is the running sequence
// before it, -1 if none.
int64_t Scheduler::pages_wanted(int32_t id, int32_t previous) {
  const Sequence& s = sequence(id);
  const Group& group = group_of(s);
  int64_t held = 0;
  if (s.attached) {
    held = std::ssize(s.pages);
  } else if (!group.pages.empty() || (previous >= 0 && sequence(previous).group == s.group)) {
    held = group.prompt_length() / kernels::kPageSize;  // to be shared
  }
  return std::max<int64_t>(0, KvCache::pages_for(length(s)) - held);
}

// False if the sequence, the last of the running ones, had to give up its place.
bool Scheduler::add_run(int32_t id, int64_t& budget, StepBatch& batch) {
  Sequence& s = sequence(id);
  Group& group = group_of(s);
  const std::vector<int32_t>& prompt = group.request->prompt;
  const int64_t prompt_length = std::ssize(prompt);
  if (!s.attached) {
    if (!group.pages.empty()) {
      attach(s);
    } else if (group.owner < 0) {
      group.owner = id;
      s.attached = true;
      --group.detached;
    } else {
      return true;  // another sample of the prompt is computing it
    }
  }
  int64_t end = s.computed < prompt_length ? prompt_length : length(s);
  if (end - s.computed > 1) {
    if (budget == 0) return true;
    end = std::min(end, s.computed + budget);
    budget -= end - s.computed;
  }
  if (!reserve(id, end)) return false;

  batch.begin_run(id);
  const int64_t counted_from = std::max(prompt_length, s.ever_computed);
  for (int64_t p = s.computed; p < end; ++p) {
    const int32_t token = p < prompt_length ? prompt[static_cast<size_t>(p)]
                                            : s.response[static_cast<size_t>(p - prompt_length)];
    batch.add_row(token, p, s.pages.data(), p >= counted_from);
  }
  const auto draw = [&](int32_t of, const Sequence& to) {
    batch.add_draw({.sequence = of,
                    .sample_index = to.sample_index,
                    .prompt_index = group.request->prompt_index,
                    .position = end});
  };
  if (end == prompt_length && !group.drawn) {
    batch.add_logits_row();
    for (int32_t i = 0; i < group.request->n_samples; ++i) {
      draw(group.first_sequence + i, sequence(group.first_sequence + i));
    }
  } else if (end > prompt_length && end == length(s)) {
    batch.add_logits_row();
    draw(id, s);
  }
  return true;
}

// Makes the pages of positions computed..end writable. False if the sequence was preempted for want
// of pages.
bool Scheduler::reserve(int32_t id, int64_t end) {
  Sequence& s = sequence(id);
  const auto first = static_cast<size_t>(s.computed / kernels::kPageSize);
  if (first < s.pages.size()) {
    while (cache_.shared(s.pages[first]) && cache_.free_pages() == 0) {
      if (!reclaim(id)) return false;
    }
    if (cache_.shared(s.pages[first])) s.pages[first] = cache_.copy_shared(s.pages[first]);
  }
  while (std::ssize(s.pages) < KvCache::pages_for(end)) {
    while (cache_.free_pages() == 0) {
      if (!reclaim(id)) return false;
    }
    s.pages.push_back(cache_.allocate());
  }
  return true;
}

// Gives up something so that `id` may get a page: the youngest sequence; if that is `id` itself,
// first the prompts that are only held for sequences to come. False if `id` had to go.
bool Scheduler::reclaim(int32_t id) {
  if (running_.back() == id) {
    const auto held = std::find_if(groups_.rbegin(), groups_.rend(),
                                   [](const Group& group) { return !group.pages.empty(); });
    if (held != groups_.rend()) {
      release(held->pages);
      return true;
    }
    require(running_.size() > 1, "a sequence of {} positions does not fit {} key-value pages",
            length(sequence(id)), cache_.pages());
  }
  const int32_t victim = running_.back();
  running_.pop_back();
  waiting_.push_front(victim);
  if (sequence(victim).attached) {
    detach(victim);
    ++group_of(sequence(victim)).detached;
    ++preemptions_;
  }
  return victim != id;
}

void Scheduler::attach(Sequence& s) {
  Group& group = group_of(s);
  s.pages = group.pages;
  for (int32_t page : s.pages) cache_.share(page);
  s.computed = group.prompt_length();
  s.attached = true;
  if (--group.detached == 0) release(group.pages);
}

void Scheduler::detach(int32_t id) {
  Sequence& s = sequence(id);
  Group& group = group_of(s);
  release(s.pages);
  s.computed = 0;
  s.attached = false;
  if (group.owner == id) group.owner = -1;
}

void Scheduler::release(std::vector<int32_t>& pages) {
  for (int32_t page : pages) cache_.release(page);
  pages.clear();
}

void Scheduler::rows_computed(const StepBatch& batch) {
  for (size_t i = 0; i < batch.runs.size(); ++i) {
    const int32_t id = batch.runs[i].sequence;
    Sequence& s = sequence(id);
    s.computed += batch.run_end(i) - batch.runs[i].row;
    s.ever_computed = std::max(s.ever_computed, s.computed);
    Group& group = group_of(s);
    if (group.owner != id || s.computed < group.prompt_length()) continue;
    group.owner = -1;
    group.drawn = true;
    if (group.detached > 0) {
      group.pages = s.pages;
      for (int32_t page : group.pages) cache_.share(page);
    }
  }
}

void Scheduler::append(int32_t id, int32_t token, float logprob) {
  Sequence& s = sequence(id);
  s.response.push_back(token);
  s.logprobs.push_back(logprob);
}

void Scheduler::finish(int32_t id, FinishReason reason) {
  Sequence& s = sequence(id);
  s.finished = true;
  s.finish = reason;
  if (s.attached) {
    detach(id);
  } else {
    Group& group = group_of(s);
    if (--group.detached == 0) release(group.pages);
  }
}

}  // namespace quads
