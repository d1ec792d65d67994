#include "cuda/cuda_backend.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/cpu/attention_kernels.h"
#include "rollout/kv_cache.h"

namespace quads::cuda {

namespace k = kernels::cuda;

namespace {

// Logits held at a time, in rows: a decode step's of most engines, and little memory.
constexpr int64_t kLogitsRows = 256;

// Captured graphs are for these numbers of rows: the waste is at most a third, an eighth from 32
// up.
int64_t graph_rows(int64_t rows) {
  if (rows <= 4) return rows;
  int64_t step = 2;
  while (step * 8 < rows) step *= 2;
  return (rows + step - 1) / step * step;
}

}  // namespace

// What is drawn and scored in a step; the arrays grow with it.
struct CudaBackend::Draws {
  explicit Draws(int64_t capacity)
      : capacity(capacity),
        logits_rows(capacity),
        first_draw(capacity + 1),
        targets(capacity),
        keys(capacity),
        tokens(capacity),
        logprobs(capacity) {}
  int64_t capacity;
  MirroredArray<int32_t> logits_rows, first_draw, targets;
  MirroredArray<k::DrawKey> keys;
  MirroredArray<int32_t> tokens;
  MirroredArray<float> logprobs;
};

CudaBackend::CudaBackend(const ParameterSource& source, const Options& options)
    : options_(options),
      context_(k::make_context(stream_.get())),
      model_(stream_.get(), source, options.precision, options.scope, options.max_context,
             options.stored),
      max_rows_(std::max(options.max_running + options.prefill_chunk, options.max_context)),
      max_pages_(KvCache::pages_for(options.max_context)),
      blocks_(model_, max_rows_, std::min(max_rows_, kLogitsRows), options.max_context),
      x_(max_rows_ * source.config().hidden_size),
      tokens_(max_rows_),
      positions_(max_rows_),
      sequences_(max_rows_),
      page_table_(max_rows_ * max_pages_),
      counted_(max_rows_),
      routing_(max_rows_ * source.config().num_hidden_layers * source.config().num_experts_per_tok),
      draws_(std::make_unique<Draws>(max_rows_)),
      sample_scratch_(k::sample_scratch(blocks_.max_logits_rows(), source.config().vocab_size)),
      bad_logits_(1) {
  context_.overlap = options.overlap;
  x_.clear(stream_.get());
}

CudaBackend::~CudaBackend() = default;

void CudaBackend::refresh(const RacMasks& masks) {
  // Graphs hold how many blocks are compensated; the weights' addresses stay.
  if (model_.sites().compensated() && masks != masks_) {
    graphs_.clear();
    masks_ = masks;
  }
  model_.refresh(masks);
}

int64_t CudaBackend::page_bytes() const {
  return config().num_hidden_layers * blocks_.shape().page_elements() *
         static_cast<int64_t>(sizeof(Bf16));
}

void CudaBackend::allocate_pages(int64_t pages) {
  graphs_.clear();
  kv_ = {};
  kv_ = DeviceArray<Bf16>(pages * page_bytes() / static_cast<int64_t>(sizeof(Bf16)));
  pages_ = pages;
}

void CudaBackend::copy_page(int32_t from, int32_t to) {
  const int64_t elements = blocks_.shape().page_elements();
  const auto pitch = static_cast<size_t>(pages_ * elements) * sizeof(Bf16);
  check_cuda(cudaMemcpy2DAsync(kv_.data() + to * elements, pitch, kv_.data() + from * elements,
                               pitch, static_cast<size_t>(elements) * sizeof(Bf16),
                               static_cast<size_t>(config().num_hidden_layers),
                               cudaMemcpyDeviceToDevice, stream_.get()),
             "copying a page");
}

// Returns the number of rows with padding.
int64_t CudaBackend::fill_rows(const StepBatch& batch, bool decode) {
  const int64_t count = batch.rows(), vocab = config().vocab_size;
  const int64_t padded = decode ? std::min(graph_rows(count), max_rows_) : count;
  for (size_t run = 0; run < batch.runs.size(); ++run) {
    const int64_t begin = batch.runs[run].row, end = batch.run_end(run);
    for (int64_t r = begin; r < end; ++r) {
      const auto i = static_cast<size_t>(r);
      require(batch.tokens[i] >= 0 && batch.tokens[i] < vocab,
              "token {} is outside the vocabulary of {}", batch.tokens[i], vocab);
      tokens_.host()[r] = batch.tokens[i];
      positions_.host()[r] = static_cast<int32_t>(batch.positions[i]);
      sequences_.host()[r] = static_cast<int32_t>(run);
      counted_.host()[r] = batch.counted[i];
    }
    const int64_t pages = batch.positions[static_cast<size_t>(end - 1)] / kernels::kPageSize + 1;
    std::copy_n(batch.page_ids[static_cast<size_t>(begin)], pages,
                page_table_.host() + static_cast<int64_t>(run) * max_pages_);
  }
  for (int64_t r = count; r < padded; ++r) {
    tokens_.host()[r] = 0;
    positions_.host()[r] = -1;
    sequences_.host()[r] = 0;
    counted_.host()[r] = 0;
  }
  const cudaStream_t stream = stream_.get();
  tokens_.upload(padded, stream);
  positions_.upload(padded, stream);
  sequences_.upload(padded, stream);
  counted_.upload(padded, stream);
  page_table_.upload(std::ssize(batch.runs) * max_pages_, stream);
  return padded;
}

void CudaBackend::run_rows(const DeviceRows& rows, bool decode) {
  if (!decode || !options_.graphs || context_.observer != nullptr) {
    blocks_.forward(context_, rows, kv_.data(), pages_, x_.data());
    return;
  }
  const GraphKey key{rows.places.rows, rows.counted != nullptr, rows.record_routing != nullptr};
  auto found = graphs_.find(key);
  if (found == graphs_.end()) {
    const cudaStream_t stream = stream_.get();
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
               "capturing a step");
    cudaGraph_t captured = nullptr;
    try {
      blocks_.forward(context_, rows, kv_.data(), pages_, x_.data());
    } catch (...) {
      cudaStreamEndCapture(stream, &captured);
      if (captured != nullptr) cudaGraphDestroy(captured);
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream, &captured), "capturing a step");
    cudaGraphExec_t instance = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&instance, captured, 0);
    cudaGraphDestroy(captured);
    check_cuda(made, "making a graph of a step");
    found =
        graphs_.emplace(key, Graph(instance, [](CUgraphExec_st* g) { cudaGraphExecDestroy(g); }))
            .first;
  }
  check_cuda(cudaGraphLaunch(found->second.get(), stream_.get()), "launching a step");
}

void CudaBackend::run(StepBatch& batch, const StepOptions& options) {
  const int64_t count = batch.rows();
  require(count <= max_rows_, "a step of {} rows: the backend was made for {}", count, max_rows_);
  const bool decode = count == std::ssize(batch.runs) && count <= options_.max_running;
  const int64_t most =
      std::max({std::ssize(batch.draws), std::ssize(batch.target_rows), int64_t{1}});
  if (most > draws_->capacity) draws_ = std::make_unique<Draws>(most * 3 / 2);

  const int64_t padded = fill_rows(batch, decode);
  DeviceRows rows;
  rows.tokens = tokens_.device();
  rows.places = {.rows = padded,
                 .positions = positions_.device(),
                 .sequences = sequences_.device(),
                 .page_table = page_table_.device(),
                 .max_pages = max_pages_};
  rows.max_context = options_.max_context;
  rows.tile = decode ? AttentionTile::kRow : AttentionTile::kRuns;
  if (options.residual_sums != nullptr) rows.counted = counted_.device();
  if (options.record_routing) rows.record_routing = routing_.device();
  routing_rows_ = padded;
  run_rows(rows, decode);
  draw(batch, options);
  score(batch, options);
  if (options.record_routing) {
    routing_.download(padded * routing_width(), stream_.get());
  }
  stream_.wait("running a step");

  for (size_t i = 0; i < batch.draws.size(); ++i) {
    batch.draws[i].token = draws_->tokens.host()[static_cast<int64_t>(i)];
    batch.draws[i].logprob = draws_->logprobs.host()[static_cast<int64_t>(i)];
  }
  if (batch.draws.empty()) {
    std::copy_n(draws_->logprobs.host(), batch.target_rows.size(), batch.target_logprobs.data());
  }
}

// Logits of the rows [begin, begin + count) that draws_ lists.
k::Logits CudaBackend::logits(int64_t begin, int64_t count) {
  return {.z = blocks_.logits(context_, x_.data(), draws_->logits_rows.device() + begin, count),
          .ldz = config().vocab_size,
          .rows = count,
          .vocab = config().vocab_size,
          .scratch = sample_scratch_.data(),
          .first_bad_row = bad_logits_.data()};
}

void CudaBackend::draw(const StepBatch& batch, const StepOptions& options) {
  const int64_t count = std::ssize(batch.logits_rows);
  if (count == 0) return;
  const cudaStream_t stream = stream_.get();
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    draws_->logits_rows.host()[i] = static_cast<int32_t>(batch.logits_rows[at]);
    draws_->first_draw.host()[i] = static_cast<int32_t>(batch.first_draw[at]);
  }
  draws_->first_draw.host()[count] = static_cast<int32_t>(batch.draws.size());
  for (int64_t i = 0; i < std::ssize(batch.draws); ++i) {
    const Draw& d = batch.draws[static_cast<size_t>(i)];
    draws_->keys.host()[i] = {d.prompt_index, d.sample_index, static_cast<int32_t>(d.position)};
  }
  draws_->logits_rows.upload(count, stream);
  draws_->first_draw.upload(count + 1, stream);
  draws_->keys.upload(std::ssize(batch.draws), stream);
  for (int64_t begin = 0; begin < count; begin += blocks_.max_logits_rows()) {
    const int64_t part = std::min(blocks_.max_logits_rows(), count - begin);
    k::draw_rows(context_, {.logits = logits(begin, part),
                            .temperature = options.sampling.temperature,
                            .top_k = options.sampling.top_k,
                            .top_p = options.sampling.top_p,
                            .seed = options.seed,
                            .first_draw = draws_->first_draw.device() + begin,
                            .keys = draws_->keys.device(),
                            .tokens = draws_->tokens.device(),
                            .logprobs = draws_->logprobs.device()});
  }
  draws_->tokens.download(std::ssize(batch.draws), stream);
  draws_->logprobs.download(std::ssize(batch.draws), stream);
}

void CudaBackend::score(const StepBatch& batch, const StepOptions& options) {
  const int64_t count = std::ssize(batch.target_rows);
  if (count == 0) return;
  require(batch.draws.empty(), "a step either draws tokens or scores them");
  const cudaStream_t stream = stream_.get();
  for (int64_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i);
    draws_->logits_rows.host()[i] = static_cast<int32_t>(batch.target_rows[at]);
    draws_->targets.host()[i] = batch.target_tokens[at];
  }
  draws_->logits_rows.upload(count, stream);
  draws_->targets.upload(count, stream);
  for (int64_t begin = 0; begin < count; begin += blocks_.max_logits_rows()) {
    const int64_t part = std::min(blocks_.max_logits_rows(), count - begin);
    k::score_rows(context_,
                  {.logits = logits(begin, part),
                   .inv_temperature = logprob_inv_temperature(options.sampling.temperature),
                   .targets = draws_->targets.device() + begin,
                   .logp = draws_->logprobs.device() + begin});
  }
  draws_->logprobs.download(count, stream);
}

void CudaBackend::copy_routing(int64_t row, int32_t* out) const {
  const int64_t top_k = config().num_experts_per_tok;
  for (int64_t layer = 0; layer < config().num_hidden_layers; ++layer) {
    int32_t* to = out + layer * top_k;
    if (config().is_sparse(layer)) {
      std::copy_n(routing_.host() + (layer * routing_rows_ + row) * top_k, top_k, to);
    } else {
      std::fill_n(to, top_k, -1);
    }
  }
}

void CudaBackend::finish(const StepOptions& options) {
  if (options.residual_sums == nullptr) return;
  const std::vector<std::vector<int64_t>> sums = model_.take_residual_sums();
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].empty()) continue;
    options.residual_sums->add(static_cast<int64_t>(i) / kSites, static_cast<Site>(i % kSites),
                               sums[i].data());
  }
}

}  // namespace quads::cuda
