// Tables of rotary position embedding, the same bits on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace quads::kernels {

/// theta^(2 i / head_dim) for i below head_dim / 2: the default RoPE of Hugging Face's models turns
/// dimension i by position / wavelength[i]. Error unless 1 <= theta <= 1e12 and head_dim is even,
/// 2..256.
std::vector<double> rope_wavelengths(double theta, int64_t head_dim);

/// magnitude * cos and sin of position * inv_freq[i]. inv_freq is FP32, the angle is an FP32
/// product, its cosine and sine are those of numerics/math.h, times the magnitude and rounded to
/// FP32. Grows on demand; not for concurrent use.
class RopeTable {
 public:
  /// Most positions a table can have: beyond, an angle would leave the range of sin_f64.
  static constexpr int64_t kMaxPositions = 10'000'000;

  /// inv_freq [head_dim / 2].
  RopeTable(std::vector<float> inv_freq, double magnitude);
  /// The default: inv_freq[i] = 1 / rope_wavelengths[i], magnitude 1.
  RopeTable(double theta, int64_t head_dim);

  /// FP32 [positions][head_dim / 2]. Valid until a call that asks for more positions than any
  /// before. Error above kMaxPositions.
  const float* cos(int64_t positions);
  const float* sin(int64_t positions);

 private:
  void grow(int64_t positions);

  std::vector<float> inv_freq_;  // [head_dim / 2]
  double magnitude_;
  int64_t positions_ = 0;
  std::vector<float> cos_, sin_;
};

}  // namespace quads::kernels
