#include "checkpoints/quantised_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "numerics/e2m1.h"
#include "numerics/e4m3.h"
#include "numerics/fp8.h"
#include "numerics/nvfp4.h"

namespace quads {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

uint8_t byte_at(const TensorView& tensor, int64_t index) {
  return static_cast<uint8_t>(tensor.data[index]);
}

// F32 or BF16; files need not be aligned.
float float_at(const TensorView& tensor, int64_t index) {
  if (tensor.dtype == DType::kBF16) {
    Bf16 value;
    std::memcpy(&value, tensor.data + 2 * index, sizeof(value));
    return to_float(value);
  }
  float value;
  std::memcpy(&value, tensor.data + 4 * index, sizeof(value));
  return value;
}

const TensorView& require_tensor(const std::optional<TensorView>& tensor, const std::string& module,
                                 const char* suffix, CheckpointFormat format) {
  require(tensor.has_value(), "tensor {}.{} is missing; a layer in the format {} has one", module,
          suffix, checkpoint_format_name(format));
  return *tensor;
}

void require_form(const TensorView& tensor, DType dtype, const std::vector<int64_t>& shape) {
  require(tensor.dtype == dtype && tensor.shape == shape, "tensor {} is {}, not {} [{}]",
          tensor.name, describe(tensor), dtype_name(dtype), fmt::join(shape, ", "));
}

// One FP32 value, as a scalar or a list of one.
float scalar(const TensorView& tensor) {
  require(tensor.dtype == DType::kF32 &&
              (tensor.shape.empty() || tensor.shape == std::vector<int64_t>{1}),
          "tensor {} is {}, not one value of F32", tensor.name, describe(tensor));
  const float value = float_at(tensor, 0);
  require(std::isfinite(value) && value > 0, "tensor {} is {}; it must be positive and finite",
          tensor.name, value);
  return value;
}

void check_fp8_scales(const TensorView& scales, int64_t n, int64_t k) {
  const int64_t rows = ceil_div(n, kFp8Block), cols = ceil_div(k, kFp8Block);
  require_form(scales, scales.dtype == DType::kBF16 ? DType::kBF16 : DType::kF32, {rows, cols});
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float scale = float_at(scales, i);
    require(std::isfinite(scale) && scale >= 0,
            "tensor {}: scale [{}, {}] is {}; it must be finite and not negative", scales.name,
            i / cols, i % cols, scale);
  }
}

void check_nvfp4_scales(const TensorView& scales, int64_t n, int64_t blocks) {
  require_form(scales, DType::kF8E4M3, {n, blocks});
  for (int64_t i = 0; i < n * blocks; ++i) {
    const uint8_t code = byte_at(scales, i);
    require(code <= kE4m3MaxCode,
            "tensor {}: row {}, block {}: the scale is {} (code {:02X}); it must be 0..448",
            scales.name, i / blocks, i % blocks, e4m3_decode(code), code);
  }
}

Bf16 checked_bf16(float value, const TensorView& codes, int64_t row, int64_t column) {
  const Bf16 rounded = to_bf16(value);
  require(std::isfinite(to_float(rounded)),
          "tensor {}: row {}, column {} is {} when dequantised; it must be finite in BF16",
          codes.name, row, column, value);
  return rounded;
}

}  // namespace

const QuantisedNames& quantised_names(CheckpointFormat format) {
  static constexpr QuantisedNames kModelOpt = {"weight", "weight_scale", "weight_scale_2",
                                               "input_scale"};
  static constexpr QuantisedNames kCompressedTensors = {
      "weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"};
  static constexpr QuantisedNames kFp8 = {"weight", "weight_scale_inv", nullptr, nullptr};
  switch (format) {
    case CheckpointFormat::kNvfp4ModelOpt:
      return kModelOpt;
    case CheckpointFormat::kNvfp4CompressedTensors:
      return kCompressedTensors;
    case CheckpointFormat::kFp8:
      break;
  }
  return kFp8;
}

bool QuantisedTensors::take(const TensorView& tensor, CheckpointFormat format) {
  const QuantisedNames& names = quantised_names(format);
  const std::string suffix = tensor.name.substr(tensor.name.rfind('.') + 1);
  const DType code_type = format == CheckpointFormat::kFp8 ? DType::kF8E4M3 : DType::kU8;
  const auto is = [&](const char* name) { return name != nullptr && suffix == name; };
  // An unquantised layer's weight has the name of two formats' codes.
  if (is(names.codes) && (suffix != "weight" || tensor.dtype == code_type)) {
    codes = tensor;
  } else if (is(names.scales)) {
    scales = tensor;
  } else if (is(names.global_scale)) {
    global_scale = tensor;
  } else if (is(names.input_scale)) {
    input_scale = tensor;
  } else {
    return false;
  }
  return true;
}

void check_quantised(const QuantisedTensors& tensors, const QuantizationConfig& config,
                     const std::string& module, int64_t n, int64_t k) {
  const QuantisedNames& names = quantised_names(config.format);
  const TensorView& codes = require_tensor(tensors.codes, module, names.codes, config.format);
  const TensorView& scales = require_tensor(tensors.scales, module, names.scales, config.format);
  if (config.format == CheckpointFormat::kFp8) {
    require_form(codes, DType::kF8E4M3, {n, k});
    check_fp8_scales(scales, n, k);
    return;
  }
  require(k % kNvfp4Block == 0, "tensor {}: rows of {} values are no blocks of 16", codes.name, k);
  require_form(codes, DType::kU8, {n, k / 2});
  check_nvfp4_scales(scales, n, k / kNvfp4Block);
  const TensorView& global =
      require_tensor(tensors.global_scale, module, names.global_scale, config.format);
  const float value = scalar(global);
  const float multiplier = global_multiplier(tensors, config.format);
  require(multiplier >= 0x1p-100F && std::isfinite(multiplier),
          "tensor {} is {}; as a multiplier it must be at least 2^-100", global.name, value);
  if (config.weights_only) {
    require(!tensors.input_scale,
            "tensor {}.{} is there, but quantization_config says that "
            "activations are not quantised",
            module, names.input_scale);
  } else {
    scalar(require_tensor(tensors.input_scale, module, names.input_scale, config.format));
  }
}

float global_multiplier(const QuantisedTensors& tensors, CheckpointFormat format) {
  const float value = float_at(*tensors.global_scale, 0);
  return format == CheckpointFormat::kNvfp4CompressedTensors ? 1.0F / value : value;
}

void dequantise(const QuantisedTensors& tensors, CheckpointFormat format, int64_t k, int64_t begin,
                int64_t count, Bf16* out) {
  const TensorView& codes = *tensors.codes;
  const TensorView& scales = *tensors.scales;
  const int64_t end = begin + count;
  if (format == CheckpointFormat::kFp8) {
    const int64_t blocks = ceil_div(k, kFp8Block);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / k, column = i % k;
      const uint8_t code = byte_at(codes, i);
      require(!e4m3_is_nan(code), "tensor {}: row {}, column {} is an E4M3 NaN (code {:02X})",
              codes.name, row, column, code);
      const float scale = float_at(scales, row / kFp8Block * blocks + column / kFp8Block);
      *out++ = checked_bf16(e4m3_decode(code) * scale, codes, row, column);
    }
    return;
  }
  const float global = float_at(*tensors.global_scale, 0);
  const bool divide = format == CheckpointFormat::kNvfp4CompressedTensors;
  for (int64_t i = begin; i < end;) {
    const int64_t block = i / kNvfp4Block;
    const float e4m3 = e4m3_decode(byte_at(scales, block));
    const float scale = divide ? e4m3 / global : e4m3 * global;
    for (; i < std::min(end, (block + 1) * kNvfp4Block); ++i) {
      const auto code = static_cast<uint8_t>(byte_at(codes, i / 2) >> (i % 2 * 4));
      *out++ = checked_bf16(e2m1_decode(code) * scale, codes, i / k, i % k);
    }
  }
}

void append_stored(const QuantisedTensors& tensors, StoredMatrix* stored) {
  const auto append = [](const TensorView& tensor, std::vector<uint8_t>& to) {
    const size_t size = to.size();
    to.resize(size + tensor.nbytes);
    tensor.copy_to(to.data() + size);
  };
  append(*tensors.codes, stored->codes);
  append(*tensors.scales, stored->block_scales);
}

}  // namespace quads
