#include "model/parameter_files.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "model/load_tensor.h"

namespace quads {
namespace {

// Elements read before their pages are given back: 8 MiB of FP32.
constexpr int64_t kAtOnce = int64_t{2} << 20;

}  // namespace

ParameterFiles::ParameterFiles(const ModelConfig& config, const std::filesystem::path& directory)
    : config_(config), layout_(config_), map_(config_, layout_), store_(directory) {}

void ParameterFiles::add(const TensorView& view) {
  if (config_.tie_word_embeddings && view.name == "lm_head.weight") {
    tied_head_ = &view;
    return;
  }
  add(view.name, view.shape, [this, &view](int64_t begin, int64_t count, Bf16* out) {
    read_tensor(view, begin, count, out);
    const size_t size = dtype_size(view.dtype);
    store_.release(
        {view.data + static_cast<size_t>(begin) * size, static_cast<size_t>(count) * size});
  });
  require_readable(view);
}

void ParameterFiles::add(std::string_view name, std::span<const int64_t> shape, ReadElements read) {
  int64_t begin = 0;
  for (const TensorPiece& piece : map_.take(name, shape).pieces) {
    const int64_t count = piece.rows * layout_.at(piece.parameter).cols;
    stretches_.push_back({map_.offset_of(piece), count, tensors_.size(), begin});
    begin += count;
  }
  tensors_.push_back(std::move(read));
}

void ParameterFiles::finish() {
  map_.require_complete();
  std::ranges::sort(stretches_, {}, &Stretch::offset);
  if (tied_head_) require_tied();
}

void ParameterFiles::require_tied() const {
  const Parameter& embedding = layout_.at(layout_.embedding);
  bool equal = tied_head_->shape == embedding.part_shape(embedding.parts[0]);
  std::vector<Bf16> ours(equal ? std::min(kAtOnce, embedding.size()) : 0), head(ours.size());
  for (int64_t begin = 0; equal && begin < embedding.size(); begin += kAtOnce) {
    const int64_t count = std::min(kAtOnce, embedding.size() - begin);
    read_elements(embedding.offset + begin, count, ours.data());
    read_tensor(*tied_head_, begin, count, head.data());
    equal = std::equal(ours.begin(), ours.begin() + count, head.begin());
  }
  store_.release({tied_head_->data, tied_head_->nbytes});
  require(equal, "tie_word_embeddings is true, but {} differs from {}", tied_head_->name,
          embedding.name);
}

void ParameterFiles::read_elements(int64_t offset, int64_t count, Bf16* out) const {
  const int64_t end = offset + count;
  auto stretch = std::ranges::upper_bound(stretches_, offset, {}, &Stretch::offset);
  if (stretch != stretches_.begin()) --stretch;
  while (offset < end) {
    const bool in_front = stretch != stretches_.end() && stretch->offset > offset;
    if (stretch == stretches_.end() || in_front) {  // padding
      const int64_t next = in_front ? std::min(end, stretch->offset) : end;
      out = std::fill_n(out, next - offset, Bf16{});
      offset = next;
      continue;
    }
    const int64_t skipped = offset - stretch->offset;
    const int64_t here = std::min({stretch->count - skipped, end - offset, kAtOnce});
    if (here <= 0) {
      ++stretch;
      continue;
    }
    tensors_[stretch->tensor](stretch->begin + skipped, here, out);
    out += here;
    offset += here;
  }
}

void ParameterFiles::read(int64_t offset, int64_t count, Bf16* out) const {
  naming_directory([&] { read_elements(offset, count, out); });
}

std::unique_ptr<ParameterFiles> open_parameters(const std::filesystem::path& directory) {
  auto files = std::make_unique<ParameterFiles>(load_model_config(directory), directory);
  files->naming_directory([&] {
    for (const TensorView& view : files->store().tensors()) files->add(view);
    files->finish();
  });
  return files;
}

}  // namespace quads
