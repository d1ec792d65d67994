// What the model's and the trainer's tests share: small models with every feature, one side's
// blocks, and batches of whole sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/head_block.h"
#include "model/cpu_blocks.h"

namespace quads::testing {

/// Three layers, the middle one dense; grouped queries, head_dim unlike hidden / heads, tied head,
/// a vocabulary that fills no tile.
inline ModelConfig moe_config() {
  ModelConfig c;
  c.architecture = Architecture::kQwen3Moe;
  c.vocab_size = 43;
  c.hidden_size = 64;
  c.intermediate_size = 96;
  c.num_hidden_layers = 3;
  c.num_attention_heads = 4;
  c.num_key_value_heads = 2;
  c.head_dim = 32;
  c.max_position_embeddings = 256;
  c.moe_intermediate_size = 64;
  c.num_experts = 6;
  c.num_experts_per_tok = 2;
  c.norm_topk_prob = true;
  c.mlp_only_layers = {1};
  c.tie_word_embeddings = true;
  c.initializer_range = 0.15;
  return c;
}

inline ModelConfig dense_config() {
  ModelConfig c = moe_config();
  c.architecture = Architecture::kQwen3;
  c.num_hidden_layers = 2;
  c.moe_intermediate_size = c.num_experts = c.num_experts_per_tok = 0;
  c.norm_topk_prob = false;
  c.mlp_only_layers.clear();
  c.tie_word_embeddings = false;
  return c;
}

/// A shared expert of another width, biases, no QK norm, a dense layer, head_dim unlike hidden /
/// heads, yarn.
inline ModelConfig qwen2_moe_config() {
  ModelConfig c = moe_config();
  c.architecture = Architecture::kQwen2Moe;
  c.qkv_bias = true;
  c.norm_topk_prob = false;
  c.shared_expert_intermediate_size = 96;
  c.tie_word_embeddings = false;
  c.rope.type = RopeType::kYarn;
  c.rope.factor = 4.0;
  c.rope.original_max_position_embeddings = 16;
  return c;
}

/// A QK norm over all heads, every query head with keys of its own.
inline ModelConfig olmoe_config() {
  ModelConfig c = moe_config();
  c.architecture = Architecture::kOlmoe;
  c.head_dim = 16;
  c.num_key_value_heads = 4;
  c.norm_topk_prob = false;
  c.intermediate_size = c.moe_intermediate_size;
  c.mlp_only_layers.clear();
  return c;
}

/// One key-value head for all queries.
inline ModelConfig mixtral_config() {
  ModelConfig c = moe_config();
  c.architecture = Architecture::kMixtral;
  c.num_key_value_heads = 1;
  c.intermediate_size = c.moe_intermediate_size;
  c.mlp_only_layers.clear();
  c.tie_word_embeddings = false;
  return c;
}

/// Gaussian matrices whose columns differ in size by up to 2^5 (outlier channels, as real models
/// have them), norms uniform in [0.5, 1.5), biases in [-0.5, 0.5).
inline void randomise(Parameters& parameters, uint64_t seed) {
  parameters.initialise(seed);
  RandomSequence random(seed, RandomStream::kTask, 0);
  for (const Parameter& p : parameters.layout().parameters) {
    if (!p.vector) continue;
    for (int64_t i = 0; i < p.size(); ++i) {
      if (p.initial == 0.0F) {
        parameters.values()[p.offset + i] = to_bf16(random.uniform() - 0.5F);
        continue;
      }
      const float outlier = random.below(8) == 0 ? 4.0F : 1.0F;
      const bool head = p.name.find("_norm.weight") != std::string::npos;  // q_norm, k_norm
      parameters.values()[p.offset + i] =
          to_bf16((0.5F + random.uniform()) * (head ? 1.0F : outlier));
    }
  }
}

/// Masks that select the given share of every compensated site, at random.
inline RacMasks random_masks(const PackedModel& model, const Rac& rac, uint64_t seed) {
  RacMasks masks;
  for (int64_t l = 0; l < model.num_layers(); ++l) {
    for (int s = 0; s < kSites; ++s) {
      const auto site = static_cast<Site>(s);
      if (!model.sites().quantised(l, site)) {
        masks.masks.emplace_back();
        continue;
      }
      // Golden files hold these keys.
      const int64_t key = site == Site::kSharedMid ? (int64_t{1} << 32) + l : 4 * l + s;
      RandomSequence random(seed, RandomStream::kTask, static_cast<uint64_t>(key));
      std::vector<int64_t> sums(static_cast<size_t>(model.sites().width(l, site)));
      for (int64_t& sum : sums) sum = random.below(1 << 20);
      masks.masks.push_back(select_mask(sums, rac.ratio, rac.granularity));
    }
  }
  return masks;
}

/// One side: its runtime, packed weights and blocks.
struct Side {
  struct Options {
    Precision precision = {};
    QuantizeScope scope = {};
    kernels::Isa isa = kernels::best_isa();
    int threads = 1;
    bool with_transposes = false;
    RacMasks masks = {};  // empty with compensation: random ones of its ratio
  };
  Side(const Parameters& parameters, const Options& options)
      : runtime(options.isa, options.threads),
        model(parameters, {options.precision, options.scope, options.with_transposes, nullptr}),
        blocks(runtime.context(), model),
        masks(options.masks) {
    if (options.precision.rac.ratio > 0 && masks.empty()) {
      masks = random_masks(model, options.precision.rac, 17);
    }
    refresh();
  }
  void refresh() { model.refresh(runtime.context(), masks); }

  kernels::CpuRuntime runtime;
  PackedModel model;
  CpuBlocks blocks;
  RacMasks masks;
};

/// Whole sequences laid end to end, every token predicted; pages in a scattered order.
class WholeSequences {
 public:
  WholeSequences(Side& side, const std::vector<std::vector<int32_t>>& sequences) {
    const kernels::AttentionShape& shape = side.model.attention(0).shape;
    int64_t longest = 0;
    int32_t pages = 0;
    cu_seqlens_.push_back(0);
    for (const std::vector<int32_t>& s : sequences) {
      const auto n = std::ssize(s);
      tokens_.insert(tokens_.end(), s.begin(), s.end());
      for (int64_t i = 0; i < n; ++i) {
        positions_.push_back(i);
        targets_.push_back(s[static_cast<size_t>((i + 1) % n)]);
        target_rows_.push_back(std::ssize(target_rows_));
      }
      longest = std::max(longest, n);
      std::vector<int32_t>& ids = page_ids_.emplace_back();
      for (int64_t p = 0; p < (n + kernels::kPageSize - 1) / kernels::kPageSize; ++p) {
        ids.push_back(pages++);
      }
      cu_seqlens_.push_back(cu_seqlens_.back() + n);
    }
    for (std::vector<int32_t>& ids : page_ids_) {
      for (int32_t& id : ids) id = pages - 1 - id;
    }
    for (size_t s = 0; s < sequences.size(); ++s) {
      row_pages_.insert(row_pages_.end(), sequences[s].size(), page_ids_[s].data());
    }
    kv_ = AlignedBuffer<Bf16>(pages * shape.page_elements());
    batch_.rows = std::ssize(tokens_);
    batch_.tokens = tokens_.data();
    batch_.attention = {.rows = batch_.rows,
                        .positions = positions_.data(),
                        .page_ids = row_pages_.data(),
                        .kv = kv_.data(),
                        .page_stride = shape.page_elements(),
                        .cos = side.model.cos(longest),
                        .sin = side.model.sin(longest)};
    batch_.cu_seqlens = cu_seqlens_.data();
    batch_.sequences = std::ssize(sequences);
  }

  RowBatch& batch() { return batch_; }
  int64_t begin(size_t sequence) const { return cu_seqlens_[sequence]; }
  int64_t rows() const { return batch_.rows; }
  /// Every row, each predicting the sequence's next token (the last one: its first).
  Targets targets(float inv_temperature = 1.0F) const {
    return {batch_.rows, target_rows_.data(), targets_.data(), inv_temperature};
  }

 private:
  std::vector<int32_t> tokens_, targets_;
  std::vector<int64_t> positions_, cu_seqlens_, target_rows_;
  std::vector<std::vector<int32_t>> page_ids_;
  std::vector<const int32_t*> row_pages_;
  AlignedBuffer<Bf16> kv_;
  RowBatch batch_;
};

/// The last layer's output [rows, hidden].
inline std::vector<float> run_layers(Side& side, const RowBatch& batch) {
  std::vector<float> x(static_cast<size_t>(batch.rows * side.blocks.hidden()));
  forward_layers(side.blocks, batch, x.data(), nullptr);
  return x;
}

/// Logits [rows, vocab].
inline std::vector<float> run_logits(Side& side, WholeSequences& sequences) {
  const std::vector<float> x = run_layers(side, sequences.batch());
  const int64_t vocab = side.model.config().vocab_size;
  std::vector<float> logits(static_cast<size_t>(sequences.rows() * vocab));
  std::vector<int64_t> rows(static_cast<size_t>(sequences.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  kernels::head_logits(side.runtime.context(), side.model.head(), x.data(), rows.data(),
                       sequences.rows(), logits.data());
  return logits;
}

inline std::vector<std::vector<int32_t>> random_sequences(const std::vector<int64_t>& lengths,
                                                          int64_t vocab, uint64_t seed) {
  std::vector<std::vector<int32_t>> sequences;
  for (const int64_t length : lengths) {
    RandomSequence random(seed, RandomStream::kTask, sequences.size());
    std::vector<int32_t>& s = sequences.emplace_back();
    for (int64_t i = 0; i < length; ++i) {
      s.push_back(static_cast<int32_t>(random.below(static_cast<uint32_t>(vocab))));
    }
  }
  return sequences;
}

}  // namespace quads::testing
