#include "trainer/masks_file.h"

#include <algorithm>

#include "base/error.h"
#include "io/safetensors_writer.h"
#include "io/tensor_store.h"

namespace quads {
namespace {

std::string name_of(size_t i) { return fmt::format("layer{}.site{}", i / kSites, i % kSites); }

}  // namespace

std::filesystem::path masks_file(const std::filesystem::path& checkpoint) {
  return checkpoint / "trainer" / "masks.safetensors";
}

void save_masks(const RacMasks& masks, const std::filesystem::path& file) {
  std::vector<TensorView> views;
  for (size_t i = 0; i < masks.masks.size(); ++i) {
    TensorView& view = views.emplace_back();
    view.name = name_of(i);
    view.dtype = DType::kU8;
    view.shape = {std::ssize(masks.masks[i])};
    view.data = reinterpret_cast<const std::byte*>(masks.masks[i].data());
    view.nbytes = masks.masks[i].size();
  }
  write_safetensors(file, views);
}

RacMasks load_masks(const std::filesystem::path& file, int64_t num_layers) {
  const TensorStore store(file);
  RacMasks masks;
  if (store.tensors().empty()) return masks;
  for (size_t i = 0; i < static_cast<size_t>(num_layers) * kSites; ++i) {
    const TensorView& view = store.at(name_of(i));
    require(view.dtype == DType::kU8, "{}: tensor {} is {}, expected U8", file.string(), view.name,
            describe(view));
    std::vector<uint8_t>& mask = masks.masks.emplace_back(view.nbytes);
    view.copy_to(mask.data());
    const auto wrong = std::ranges::find_if(mask, [](uint8_t value) { return value > 1; });
    if (wrong != mask.end()) {
      fail("{}: tensor {} holds {}, expected 0 or 1", file.string(), view.name, *wrong);
    }
  }
  return masks;
}

}  // namespace quads
