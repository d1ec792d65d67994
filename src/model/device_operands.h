// What another engine's blocks need of a model that lies on a GPU: values that it multiplies with,
// the quantiser of its activations, and a stream to run on. No header of that engine's, and none of
// CUDA's, is behind this one.
#pragma once

#include <cstdint>

#include "model/parameters.h"
#include "model/sites.h"

struct CUstream_st;

namespace quads {

class DeviceOperands {
 public:
  virtual ~DeviceOperands() = default;
  virtual const QuantisedSites& sites() const = 0;
  virtual const ParameterLayout& layout() const = 0;
  /// All work is ordered by it.
  virtual CUstream_st* stream() const = 0;
  /// A parameter's BF16 values [rows, cols] on the device, as the precision rounds them. Matrices
  /// of a layer's experts lie at equal distances. The address stays, the values change with every
  /// update.
  virtual const Bf16* weight(int64_t parameter) const = 0;
  /// [max_positions][head_dim / 2] on the device.
  virtual const float* cos() const = 0;
  virtual const float* sin() const = 0;
  virtual int64_t max_positions() const = 0;
  /// What rows x [rows, width] stand for when they are quantised to `format`, each row by itself;
  /// BF16 on the device, queued on the stream.
  virtual void fake_quantise(const Bf16* x, int64_t rows, int64_t width, Format format,
                             Bf16* values) const = 0;
  /// Bytes that the engine may allocate on the device.
  virtual int64_t memory() const = 0;
};

}  // namespace quads
