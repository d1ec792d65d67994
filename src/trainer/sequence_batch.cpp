#include "trainer/sequence_batch.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace quads {

std::vector<std::pair<int64_t, int64_t>> pack(std::span<const TrainSequence> sequences,
                                              int64_t max_tokens) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t begin = 0, used = 0;
  for (int64_t i = 0; i < std::ssize(sequences); ++i) {
    const int64_t rows = sequences[static_cast<size_t>(i)].rows();
    if (i > begin && used + rows > max_tokens) {
      ranges.emplace_back(begin, i);
      begin = i;
      used = 0;
    }
    used += rows;
  }
  if (begin < std::ssize(sequences)) ranges.emplace_back(begin, std::ssize(sequences));
  return ranges;
}

void SequenceBatch::assign(std::span<const TrainSequence> sequences, float inv_temperature) {
  tokens_.clear();
  positions_.clear();
  target_rows_.clear();
  target_tokens_.clear();
  cu_seqlens_.assign(1, 0);
  int64_t pages = 0, longest = 0;
  for (const TrainSequence& s : sequences) {
    require(s.prompt_length >= 1 && s.targets() >= 1,
            "a sequence of {} tokens with a prompt of {} has nothing to train on", s.tokens.size(),
            s.prompt_length);
    const int64_t begin = std::ssize(tokens_), n = s.rows();
    tokens_.insert(tokens_.end(), s.tokens.begin(), s.tokens.end() - 1);
    for (int64_t i = 0; i < n; ++i) positions_.push_back(i);
    for (int64_t p = s.prompt_length; p <= n; ++p) {
      target_rows_.push_back(begin + p - 1);
      target_tokens_.push_back(s.tokens[static_cast<size_t>(p)]);
    }
    cu_seqlens_.push_back(begin + n);
    pages += (n + kernels::kPageSize - 1) / kernels::kPageSize;
    longest = std::max(longest, n);
  }
  const int64_t rows = std::ssize(tokens_);
  page_ids_.resize(static_cast<size_t>(pages));
  std::iota(page_ids_.begin(), page_ids_.end(), 0);
  row_pages_.clear();
  const int32_t* next = page_ids_.data();
  for (const TrainSequence& s : sequences) {
    row_pages_.insert(row_pages_.end(), static_cast<size_t>(s.rows()), next);
    next += (s.rows() + kernels::kPageSize - 1) / kernels::kPageSize;
  }
  rows_ = {};
  rows_.rows = rows;
  rows_.tokens = tokens_.data();
  rows_.attention = {.rows = rows, .positions = positions_.data(), .page_ids = row_pages_.data()};
  if (host_) {
    const int64_t page = host_->attention(0).shape.page_elements();
    if (kv_.size() < pages * page) kv_ = AlignedBuffer<Bf16>(pages * page);
    rows_.attention.kv = kv_.data();
    rows_.attention.page_stride = page;
    rows_.attention.cos = host_->cos(longest);
    rows_.attention.sin = host_->sin(longest);
  }
  rows_.cu_seqlens = cu_seqlens_.data();
  rows_.sequences = std::ssize(sequences);

  const bool replay = !sequences.empty() && !sequences.front().routing.empty();
  if (replay) {
    const int64_t layers = config_.num_hidden_layers, top_k = config_.num_experts_per_tok;
    routing_.resize(static_cast<size_t>(layers * rows * top_k));
    int64_t row = 0;
    for (const TrainSequence& s : sequences) {
      require(std::ssize(s.routing) == s.rows() * layers * top_k,
              "recorded routing has {} entries for {} positions, {} layers and top-{}",
              s.routing.size(), s.rows(), layers, top_k);
      for (int64_t i = 0; i < s.rows(); ++i, ++row) {
        for (int64_t l = 0; l < layers; ++l) {
          std::copy_n(s.routing.begin() + (i * layers + l) * top_k, top_k,
                      routing_.begin() + (l * rows + row) * top_k);
        }
      }
    }
    rows_.replay_routing = routing_.data();
  }
  targets_ = {.count = std::ssize(target_rows_),
              .rows = target_rows_.data(),
              .tokens = target_tokens_.data(),
              .inv_temperature = inv_temperature};
}

}  // namespace quads
