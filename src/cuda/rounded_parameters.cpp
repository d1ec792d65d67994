#include "cuda/rounded_parameters.h"

#include <algorithm>

#include "base/error.h"
#include "kernels/cuda/gradients/moe_gradients.h"
#include "kernels/cuda/quantize/dequantize_weights.h"
#include "kernels/cuda/quantize/quantize_rows.h"
#include "kernels/cuda/quantize/quantize_weights.h"

namespace quads::cuda {

namespace k = kernels::cuda;

namespace {

// Activations are quantised so many rows at a time: their image stays small, and in the cache.
constexpr int32_t kImageRows = 16384;

// Quantised matrices of a layer, those of one shape at equal distances together.
std::vector<std::vector<PackedParameter>> grouped(const ParameterLayout& layout,
                                                  const QuantisedSites& sites, int64_t layer) {
  std::vector<std::vector<PackedParameter>> groups;
  const auto joins = [&](const std::vector<PackedParameter>& group, const PackedParameter& next) {
    const Parameter &first = layout.at(group[0].index), &p = layout.at(next.index);
    if (group[0].format != next.format || first.rows != p.rows || first.cols != p.cols) {
      return false;
    }
    const int64_t step = p.offset - layout.at(group.back().index).offset;
    return group.size() == 1 || step == layout.at(group[1].index).offset - first.offset;
  };
  for (const PackedParameter& p : packed_parameters(layout, sites, layer)) {
    if (p.format == WeightFormat::kBf16) continue;
    const auto found = std::ranges::find_if(groups, [&](const auto& g) { return joins(g, p); });
    if (found == groups.end()) {
      groups.push_back({p});
    } else {
      found->push_back(p);
    }
  }
  return groups;
}

int64_t image_elements(const QuantisedSites& sites) {
  int64_t width = 0;
  for (int64_t l = 0; l < sites.num_layers(); ++l) {
    for (int s = 0; s < kSites; ++s) {
      width = std::max(width, sites.width(l, static_cast<Site>(s)));
    }
  }
  return kImageRows * k::stages_of(width) * k::kStageK;
}

}  // namespace

RoundedParameters::RoundedParameters(cudaStream_t stream, const DeviceParameters& values,
                                     const Precision& precision, const QuantizeScope& scope,
                                     int64_t max_positions, int64_t memory)
    : context_(k::make_context(stream)),
      values_(values),
      sites_{values.config(), precision, scope},
      rope_(values.config(), max_positions, stream),
      memory_(memory),
      first_bad_row_(1) {  // required, though not looked at: the sums would not be finite
  require(precision.rac.ratio == 0, "precision {} compensates residuals: rounded weights do not",
          precision_name(precision));
  for (const Parameter& p : layout().parameters) weights_.push_back(values.values() + p.offset);
  int64_t fragments = 0, most = 0, matrices = 0;
  for (int64_t l = 0; l < sites_.num_layers(); ++l) {
    for (const std::vector<PackedParameter>& group : grouped(layout(), sites_, l)) {
      const Parameter& first = layout().at(group[0].index);
      const auto count = std::ssize(group);
      Group& to = groups_.emplace_back();
      to.format = group[0].format;
      to.n = first.rows;
      to.k = first.cols;
      to.values = DeviceArray<Bf16>(count * to.n * to.k);
      for (const PackedParameter& p : group) {
        weights_[static_cast<size_t>(p.index)] =
            to.values.data() + std::ssize(to.parameters) * to.n * to.k;
        to.parameters.push_back(p.index);
      }
      fragments = std::max(fragments, count * k::fragment_bytes(to.n, to.k, to.format));
      most = std::max(most, count);
      matrices += count;
    }
  }
  fragments_ = DeviceArray<uint8_t>(fragments);
  global_scales_ = DeviceArray<float>(matrices);  // kept: the next refresh begins with them
  global_scales_.clear(stream);
  amax_bits_ = DeviceArray<uint32_t>(matrices);
  scratch_ = DeviceArray<uint32_t>(most);
  if (precision.activations == Format::kBf16) return;
  image_ = DeviceArray<Bf16>(image_elements(sites_));
  std::vector<k::ImageRow> rows(kImageRows);
  for (int32_t r = 0; r < kImageRows; ++r) {
    rows[static_cast<size_t>(r)] = {.base = 0, .padded_rows = kImageRows, .index = r, .unused = 0};
  }
  image_rows_ = DeviceArray<k::ImageRow>(kImageRows);
  image_rows_.upload(rows, stream);
  check_cuda(cudaStreamSynchronize(stream), "preparing scratch memory");
}

void RoundedParameters::refresh() {
  uint32_t* amax = amax_bits_.data();
  float* scales = global_scales_.data();
  for (const Group& group : groups_) {
    const Parameter& first = layout().at(group.parameters[0]);
    const auto matrices = static_cast<int>(group.parameters.size());
    k::quantize_weights(
        context_, {.format = group.format,
                   .matrices = matrices,
                   .w = values_.values() + first.offset,
                   .stride = matrices > 1 ? layout().at(group.parameters[1]).offset - first.offset
                                          : first.padded_size(),
                   .n = group.n,
                   .k = group.k,
                   .fragments = fragments_.data(),
                   .global_scales = scales,
                   .amax_bits = amax,
                   .scratch = scratch_.data()});
    k::dequantize_weights(context_, {.format = group.format,
                                     .matrices = matrices,
                                     .n = group.n,
                                     .k = group.k,
                                     .fragments = fragments_.data(),
                                     .global_scales = scales,
                                     .values = group.values.data()});
    amax += matrices;
    scales += matrices;
  }
  std::vector<uint32_t> bits(static_cast<size_t>(amax_bits_.size()));
  check_cuda(cudaMemcpyAsync(bits.data(), amax_bits_.data(), amax_bits_.bytes(),
                             cudaMemcpyDeviceToHost, context_.stream),
             "copying from the device");
  // Where nothing is rounded, too: others read the optimizer's values on streams of their own.
  check_cuda(cudaStreamSynchronize(context_.stream), "rounding the weights");
  size_t next = 0;
  for (const Group& group : groups_) {
    for (const int64_t index : group.parameters) {
      require_quantisable(values_, index, bits[next++], group.format);
    }
  }
}

void RoundedParameters::fake_quantise(const Bf16* x, int64_t rows, int64_t width, Format format,
                                      Bf16* values) const {
  for (int64_t begin = 0; begin < rows; begin += kImageRows) {
    const int64_t part = std::min<int64_t>(kImageRows, rows - begin);
    k::quantize_rows(context_, {.format = device_format(format, {}),
                                .x = x + begin * width,
                                .ldx = width,
                                .rows = part,
                                .k = width,
                                .image_rows = image_rows_.data(),
                                .q1 = image_.data(),
                                .first_bad_row = first_bad_row_.data()});
    k::image_values(context_, {.q1 = image_.data(),
                               .image_rows = image_rows_.data(),
                               .rows = part,
                               .k = width,
                               .values = values + begin * width});
  }
}

int64_t rounded_bytes(const ParameterLayout& layout, const QuantisedSites& sites) {
  int64_t values = 0, fragments = 0;
  for (int64_t l = 0; l < sites.num_layers(); ++l) {
    for (const std::vector<PackedParameter>& group : grouped(layout, sites, l)) {
      const Parameter& p = layout.at(group[0].index);
      values += std::ssize(group) * p.size() * static_cast<int64_t>(sizeof(Bf16));
      fragments = std::max(fragments,
                           std::ssize(group) * k::fragment_bytes(p.rows, p.cols, group[0].format));
    }
  }
  const bool images = sites.precision.activations != Format::kBf16;
  return values + fragments + (images ? image_elements(sites) * int64_t{sizeof(Bf16)} : 0);
}

}  // namespace quads::cuda
