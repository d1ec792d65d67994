#include "trainer/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "io/atomic_dir.h"
#include "io/safetensors_writer.h"
#include "trainer/masks_file.h"

namespace quads {
namespace {

constexpr std::string_view kPrefix = "step_";

std::optional<int64_t> step_of(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  int64_t step = 0;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kPrefix.size(), end, step);
  if (error != std::errc() || rest != end) return std::nullopt;
  return step;
}

// The complete checkpoints below `root`, by step.
std::vector<std::pair<int64_t, std::filesystem::path>> checkpoints(
    const std::filesystem::path& root) {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  if (!std::filesystem::is_directory(root)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (const auto step = step_of(entry.path())) found.emplace_back(*step, entry.path());
  }
  std::ranges::sort(found);
  return found;
}

struct StateArray {
  const char* name;
  Optimizer::State which;
};
constexpr StateArray kStateArrays[] = {{"master", Optimizer::State::kMaster},
                                       {"exp_avg", Optimizer::State::kFirstMoment},
                                       {"exp_avg_sq", Optimizer::State::kSecondMoment}};

}  // namespace

void save_checkpoint(const std::filesystem::path& root, int64_t step, const Parameters& parameters,
                     Optimizer& optimizer, const RacMasks& masks, const Json& state,
                     const std::function<void(const std::filesystem::path&)>& add_files,
                     int64_t keep) {
  std::filesystem::create_directories(root);
  remove_stale_temporaries(root);
  AtomicDir directory(root / fmt::format("{}{:06}", kPrefix, step), AtomicDir::Existing::kReplace);
  save_parameters(parameters, directory.path());
  add_files(directory.path());
  const std::filesystem::path trainer = directory.path() / "trainer";
  std::filesystem::create_directory(trainer);

  std::vector<TensorView> views;
  for (const StateArray& array : kStateArrays) {
    const std::span<const float> values = optimizer.state(array.which);
    for (const Parameter& parameter : parameters.layout().parameters) {
      for (const ParameterPart& part : parameter.parts) {
        TensorView view;
        view.name = fmt::format("{}.{}", array.name, part.name);
        view.dtype = DType::kF32;
        view.shape = parameter.part_shape(part);
        view.data = reinterpret_cast<const std::byte*>(values.data() + parameter.offset +
                                                       part.row_begin * parameter.cols);
        view.nbytes = static_cast<size_t>(part.rows * parameter.cols) * sizeof(float);
        views.push_back(std::move(view));
      }
    }
  }
  write_safetensors(trainer / "optimizer.safetensors", views);

  save_masks(masks, masks_file(directory.path()));
  write_json_file(trainer / "state.json", state);
  directory.commit();

  if (keep > 0) {
    auto all = checkpoints(root);
    for (size_t i = 0; i + static_cast<size_t>(keep) < all.size(); ++i) {
      std::filesystem::remove_all(all[i].second);
    }
  }
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& root) {
  const auto all = checkpoints(root);
  if (all.empty()) return std::nullopt;
  return all.back().second;
}

Json load_checkpoint(const std::filesystem::path& checkpoint, Parameters& parameters,
                     Optimizer& optimizer, RacMasks& masks) {
  const std::filesystem::path trainer = checkpoint / "trainer";
  const ModelConfig config = load_model_config(checkpoint);
  require(config == parameters.config(), "{}: its config.json is not this run's model",
          checkpoint.string());
  const std::filesystem::path optimizer_path = trainer / "optimizer.safetensors";
  const TensorStore store(optimizer_path);
  AlignedBuffer<float> values(parameters.layout().total);
  for (const StateArray& array : kStateArrays) {
    for (const Parameter& parameter : parameters.layout().parameters) {
      for (const ParameterPart& part : parameter.parts) {
        const TensorView& view = store.at(fmt::format("{}.{}", array.name, part.name));
        require(view.dtype == DType::kF32 && view.shape == parameter.part_shape(part),
                "{}: tensor {} is {}, expected F32 [{}]", optimizer_path.string(), view.name,
                describe(view), fmt::join(parameter.part_shape(part), ", "));
        view.copy_to(values.data() + parameter.offset + part.row_begin * parameter.cols);
      }
    }
    optimizer.set_state(array.which, values.span());
  }
  optimizer.publish();

  masks = load_masks(masks_file(checkpoint), config.num_hidden_layers);
  return read_json_file(trainer / "state.json");
}

}  // namespace quads
