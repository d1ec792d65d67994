#include "trainer/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"
#include "io/atomic_dir.h"
#include "io/fingerprint.h"
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
  if (error != std::errc() || rest != end || step < 0) return std::nullopt;
  return step;
}

std::filesystem::path state_file(const std::filesystem::path& checkpoint) {
  return checkpoint / "trainer" / "state.json";
}

// What resuming reads, with sizes and hashes in trainer/checksums.json.
constexpr const char* kStateFiles[] = {"optimizer.safetensors", "masks.safetensors", "state.json"};
constexpr const char* kChecksums = "checksums.json";

void write_checksums(const std::filesystem::path& trainer) {
  Json json = Json::object();
  for (const char* name : kStateFiles) {
    const FileFingerprint file = fingerprint(trainer / name);
    json[name] = {{"bytes", file.bytes}, {"hash", file.hash}};
  }
  write_json_file(trainer / kChecksums, json);
}

void verify_checksums(const std::filesystem::path& trainer) {
  const std::filesystem::path checksums = trainer / kChecksums;
  if (!std::filesystem::exists(checksums)) return;  // saved before there were any
  const Json json = read_json_file(checksums);
  for (const char* name : kStateFiles) {
    const FileFingerprint file = fingerprint(trainer / name);
    const std::string where = fmt::format("{}: '{}'", checksums.string(), name);
    const Json entry = get<Json>(json, name, checksums.string());
    const FileFingerprint saved = {.path = file.path,
                                   .bytes = get<uint64_t>(entry, "bytes", where),
                                   .hash = get<uint64_t>(entry, "hash", where)};
    require(
        file.same_contents(saved),
        "{} has changed since it was saved ({} bytes, hash {:016x}): the checkpoint is damaged; "
        "remove {} to continue from the one before",
        describe(file), saved.bytes, saved.hash, trainer.parent_path().string());
  }
}

// The complete checkpoints below `root`, by step.
std::vector<std::pair<int64_t, std::filesystem::path>> checkpoints(
    const std::filesystem::path& root) {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  if (!std::filesystem::is_directory(root)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const auto step = step_of(entry.path());
    if (step && std::filesystem::exists(state_file(entry.path()))) {
      found.emplace_back(*step, entry.path());
    }
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

  // A state is asked for when its first tensor is written: a device's have one place on the host.
  std::vector<TensorView> views;
  std::vector<int64_t> offsets;
  for (const StateArray& array : kStateArrays) {
    for (const Parameter& parameter : parameters.layout().parameters) {
      for (const ParameterPart& part : parameter.parts) {
        TensorView view;
        view.name = fmt::format("{}.{}", array.name, part.name);
        view.dtype = DType::kF32;
        view.shape = parameter.part_shape(part);
        view.nbytes = static_cast<size_t>(part.rows * parameter.cols) * sizeof(float);
        views.push_back(std::move(view));
        offsets.push_back(parameter.offset + part.row_begin * parameter.cols);
      }
    }
  }
  const size_t of_array = views.size() / std::size(kStateArrays);
  std::span<const float> values;
  write_safetensors(trainer / "optimizer.safetensors", views, [&](size_t i) {
    if (i % of_array == 0) values = optimizer.state(kStateArrays[i / of_array].which);
    return reinterpret_cast<const std::byte*>(values.data() + offsets[i]);
  });

  save_masks(masks, masks_file(directory.path()));
  write_json_file(state_file(directory.path()), state);
  write_checksums(trainer);
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
  verify_checksums(trainer);
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
        float* to = values.data() + parameter.offset + part.row_begin * parameter.cols;
        view.copy_to(to);
        const float least = array.which == Optimizer::State::kSecondMoment
                                ? 0.0F
                                : std::numeric_limits<float>::lowest();
        const std::span<const float> read(to, static_cast<size_t>(part.rows * parameter.cols));
        const auto wrong = std::ranges::find_if(
            read, [&](float value) { return !std::isfinite(value) || value < least; });
        if (wrong != read.end()) {
          fail("{}: tensor {} holds {}, expected a finite value{}", optimizer_path.string(),
               view.name, *wrong, least == 0 ? " of at least 0" : "");
        }
      }
    }
    optimizer.set_state(array.which, values.span());
  }
  optimizer.publish();

  masks = load_masks(masks_file(checkpoint), config.num_hidden_layers);
  const std::string where = state_file(checkpoint).string();
  Json state = read_json_file(where);
  const auto step = get<int64_t>(state, "step", where);
  require(step == step_of(checkpoint), "{}: its step is {}, not that of the directory's name",
          where, step);
  return state;
}

}  // namespace quads
