#include "cuda/cuda_blocks.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "cuda/cuda_blocks_parts.h"
#include "kernels/cuda/sampling/sample_rows.h"
#include "rollout/kv_cache.h"

namespace quads::cuda {

namespace k = kernels::cuda;

CudaBlocks::CudaBlocks(cudaStream_t stream, const CudaModel& model, int64_t max_logits)
    : model_(model),
      layout_(model.config()),
      context_(k::make_context(stream)),
      max_logits_(max_logits),
      batch_(std::make_unique<Batch>()),
      head_(std::make_unique<HeadRows>()),
      first_bad_row_(1) {}

CudaBlocks::~CudaBlocks() = default;

float* CudaBlocks::activations(int64_t elements) {
  if (activations_.size() < elements) {
    activations_ = {};
    activations_ = DeviceArray<float>(elements);
  }
  return activations_.data();
}

int64_t CudaBlocks::logits_rows() const {
  const int64_t fitting = std::max<int64_t>(max_logits_ / model_.config().vocab_size, 1);
  return std::min(max_rows_, fitting);
}

void CudaBlocks::take(const RowBatch& batch) {
  const ModelConfig& c = model_.config();
  require(batch.cu_seqlens != nullptr && batch.cu_seqlens[0] == 0 &&
              batch.cu_seqlens[batch.sequences] == batch.rows,
          "a batch of {} rows: on a GPU blocks take whole sequences", batch.rows);
  check_cuda(cudaStreamSynchronize(context_.stream), "waiting for the batch before");
  Batch& b = *batch_;
  b.taken = nullptr;
  if (batch.rows > max_rows_) {
    scratch_.reset();
    forward_.reset();
    max_rows_ = batch.rows;
    // Whole sequences are runs of rows, whose attention needs no scratch for any context.
    forward_ = std::make_unique<DeviceBlocks>(model_, max_rows_, logits_rows(), k::kAttentionSplit);
    sample_scratch_ = DeviceArray<uint8_t>(k::sample_scratch(logits_rows(), c.vocab_size));
  }
  int64_t longest = 0, pages = 0, tiles = 0;
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t n = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
    require(n >= 0 && n <= model_.max_positions(),
            "a sequence of {} tokens: the model on the GPU was made for {}", n,
            model_.max_positions());
    longest = std::max(longest, n);
    pages += KvCache::pages_for(n);
    tiles += (n + k::kBackwardTile - 1) / k::kBackwardTile;
  }
  const int64_t max_pages = KvCache::pages_for(longest);
  for (MirroredArray<int32_t>* rows : {&b.tokens, &b.positions, &b.sequences, &b.rows_by_token}) {
    rows->resize(batch.rows);
  }
  b.page_table.resize(batch.sequences * max_pages);
  b.tiles.resize(tiles);
  int32_t page = 0;
  k::SequenceTile* tile = b.tiles.host();
  for (int64_t s = 0; s < batch.sequences; ++s) {
    const int64_t begin = batch.cu_seqlens[s], n = batch.cu_seqlens[s + 1] - begin;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t token = batch.tokens[begin + i];
      require(token >= 0 && token < c.vocab_size, "token {} is outside the vocabulary of {}", token,
              c.vocab_size);
      b.tokens.host()[begin + i] = token;
      b.positions.host()[begin + i] = static_cast<int32_t>(i);
      b.sequences.host()[begin + i] = static_cast<int32_t>(s);
    }
    for (int64_t i = 0; i < n; i += k::kBackwardTile) {
      *tile++ = {.first_row = static_cast<int32_t>(begin),
                 .first_page = page,
                 .length = static_cast<int32_t>(n),
                 .position = static_cast<int32_t>(i)};
    }
    // Entries behind a sequence's own pages are never followed.
    std::iota(b.page_table.host() + s * max_pages, b.page_table.host() + (s + 1) * max_pages, page);
    page += static_cast<int32_t>(KvCache::pages_for(n));
  }
  // Rows by token, in rising order.
  std::vector<int32_t> next(static_cast<size_t>(c.vocab_size));
  for (int64_t r = 0; r < batch.rows; ++r) ++next[static_cast<size_t>(batch.tokens[r])];
  const int64_t distinct = std::ranges::count_if(next, [](int32_t n) { return n > 0; });
  b.distinct.resize(distinct);
  b.first_row.resize(distinct + 1);
  int32_t begin = 0;
  int64_t at = 0;
  for (size_t token = 0; token < next.size(); ++token) {
    const int32_t count = next[token];
    next[token] = begin;
    if (count == 0) continue;
    b.distinct.host()[at] = static_cast<int32_t>(token);
    b.first_row.host()[at++] = begin;
    begin += count;
  }
  b.first_row.host()[distinct] = begin;
  for (int64_t r = 0; r < batch.rows; ++r) {
    b.rows_by_token.host()[next[static_cast<size_t>(batch.tokens[r])]++] = static_cast<int32_t>(r);
  }
  for (const MirroredArray<int32_t>* input : {&b.tokens, &b.positions, &b.sequences, &b.page_table,
                                              &b.distinct, &b.first_row, &b.rows_by_token}) {
    input->upload(context_.stream);
  }
  b.tiles.upload(context_.stream);
  if (batch.replay_routing != nullptr) {
    b.routing.resize(c.num_hidden_layers * batch.rows * c.num_experts_per_tok);
    for (int64_t l = 0; l < c.num_hidden_layers; ++l) {
      const int64_t width = batch.rows * c.num_experts_per_tok;
      const int32_t* from = batch.replay_routing + l * width;
      const auto outside = [&](int32_t e) { return e < 0 || e >= c.num_experts; };
      const bool sparse = c.is_sparse(l);
      require(!sparse || std::none_of(from, from + width, outside),
              "the routing to replay names experts that layer {} does not have", l);
      std::copy_n(from, width, b.routing.host() + l * width);
    }
    b.routing.upload(context_.stream);
  }
  const int64_t elements = pages * forward_->shape().page_elements();
  if (kv_.size() < elements) {
    kv_ = {};
    kv_ = DeviceArray<Bf16>(elements);
    kv_.clear(context_.stream);  // a page's unused positions are numbers
  }
  b.rows = batch.rows;
  b.pages = pages;
  b.device = {};
  b.device.tokens = b.tokens.device();
  b.device.places = {.rows = batch.rows,
                     .positions = b.positions.device(),
                     .sequences = b.sequences.device(),
                     .page_table = b.page_table.device(),
                     .max_pages = max_pages};
  b.device.max_context = longest;
  b.device.tile = AttentionTile::kRuns;
  if (batch.replay_routing != nullptr) b.device.replay_routing = b.routing.device();
  b.taken = batch.tokens;
}

void CudaBlocks::require_taken(const RowBatch& batch) const {
  require(batch_->taken == batch.tokens && batch_->rows == batch.rows,
          "a batch of {} rows was not embedded before its other blocks", batch.rows);
}

void CudaBlocks::take(const Targets& targets) {
  require(forward_ != nullptr, "targets before a batch was embedded");
  for (MirroredArray<int32_t>* input : {&head_->rows, &head_->targets})
    input->resize(targets.count);
  for (int64_t i = 0; i < targets.count; ++i) {
    const int32_t token = targets.tokens[i];
    require(token >= 0 && token < model_.config().vocab_size,
            "token {} is outside the vocabulary of {}", token, model_.config().vocab_size);
    head_->rows.host()[i] = static_cast<int32_t>(targets.rows[i]);
    head_->targets.host()[i] = token;
  }
  head_->rows.upload(context_.stream);
  head_->targets.upload(context_.stream);
}

void CudaBlocks::embed(const RowBatch& batch, float* x) {
  take(batch);
  forward_->embed(context_, batch_->device, x);
}

void CudaBlocks::attention_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  require_taken(batch);
  forward_->attention(context_, layer, batch_->device, kv_.data(), batch_->pages, x, y);
}

void CudaBlocks::ffn_forward(int64_t layer, const RowBatch& batch, const float* x, float* y) {
  require_taken(batch);
  forward_->ffn(context_, layer, batch_->device, x, y);
  if (batch.record_routing == nullptr || !model_.config().is_sparse(layer)) return;
  const int64_t width = batch.rows * model_.config().num_experts_per_tok;
  check_cuda(cudaMemcpyAsync(batch.record_routing + layer * width, forward_->ids(),
                             static_cast<size_t>(width) * sizeof(int32_t), cudaMemcpyDeviceToHost,
                             context_.stream),
             "recording routing");
  check_cuda(cudaStreamSynchronize(context_.stream), "recording routing");
}

void CudaBlocks::head_forward(const Targets& targets, const float* x, int64_t, float* logp,
                              float* entropy) {
  if (targets.count == 0) return;
  take(targets);
  head_->logp.resize(targets.count);
  head_->entropy.resize(targets.count);
  const int64_t vocab = model_.config().vocab_size, step = logits_rows();
  for (int64_t begin = 0; begin < targets.count; begin += step) {
    const int64_t rows = std::min(step, targets.count - begin);
    const float* logits = forward_->logits(context_, x, head_->rows.device() + begin, rows);
    k::score_rows(context_,
                  {.logits = {.z = logits,
                              .ldz = vocab,
                              .rows = rows,
                              .vocab = vocab,
                              .scratch = sample_scratch_.data(),
                              .first_bad_row = first_bad_row_.data()},
                   .inv_temperature = targets.inv_temperature,
                   .targets = head_->targets.device() + begin,
                   .logp = head_->logp.device() + begin,
                   .entropy = entropy == nullptr ? nullptr : head_->entropy.device() + begin});
  }
  head_->logp.download(context_.stream);
  if (entropy != nullptr) head_->entropy.download(context_.stream);
  check_cuda(cudaStreamSynchronize(context_.stream), "computing log-probabilities");
  std::copy_n(head_->logp.host(), targets.count, logp);
  if (entropy != nullptr) std::copy_n(head_->entropy.host(), targets.count, entropy);
}

}  // namespace quads::cuda
