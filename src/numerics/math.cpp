// Sine and cosine in FP64: reduction to |r| <= pi/4 by fused multiply-adds, then the polynomials of
// fdlibm (Sun Microsystems, k_sin.c and k_cos.c).
#include "numerics/math.h"

#include "base/error.h"

namespace quads {
namespace {

struct Reduced {
  double r;           // x - n pi/2
  unsigned quadrant;  // n mod 4
};

// pi/2 in two parts. n has at most 23 bits, so the first product cancels exactly against x and
// leaves one rounding, in the second step.
Reduced reduce_quadrant(double x) {
  require(std::fabs(x) <= 1e7, "sin/cos: argument {} is outside [-1e7, 1e7]", x);
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0;
  constexpr double kHalfPiLow = 0x1.1a62633145c07p-54;
  constexpr double kRoundToInt = 0x1.8p52;
  const double shifted = std::fma(x, kTwoOverPi, kRoundToInt);
  const double n = shifted - kRoundToInt;
  const double r = std::fma(n, -kHalfPiLow, std::fma(n, -kHalfPiHigh, x));
  return {r, static_cast<unsigned>(std::bit_cast<uint64_t>(shifted) & 3U)};
}

double sin_kernel(double r) {
  const double z = r * r;
  double p = 1.58969099521155010221e-10;
  p = std::fma(p, z, -2.50507602534068634195e-08);
  p = std::fma(p, z, 2.75573137070700676789e-06);
  p = std::fma(p, z, -1.98412698298579493134e-04);
  p = std::fma(p, z, 8.33333333332248946124e-03);
  p = std::fma(p, z, -1.66666666666666324348e-01);
  return std::fma(p, z * r, r);
}

double cos_kernel(double r) {
  const double z = r * r;
  double p = -1.13596475577881948265e-11;
  p = std::fma(p, z, 2.08757232129817482790e-09);
  p = std::fma(p, z, -2.75573143513906633035e-07);
  p = std::fma(p, z, 2.48015872894767294178e-05);
  p = std::fma(p, z, -1.38888888888741095749e-03);
  p = std::fma(p, z, 4.16666666666666019037e-02);
  return std::fma(p, z * z, std::fma(-0.5, z, 1.0));
}

double sin_of_quadrant(double r, unsigned quadrant) {
  const double magnitude = quadrant % 2 == 0 ? sin_kernel(r) : cos_kernel(r);
  return quadrant % 4 < 2 ? magnitude : -magnitude;
}

}  // namespace

double sin_f64(double x) {
  const Reduced reduced = reduce_quadrant(x);
  return sin_of_quadrant(reduced.r, reduced.quadrant);
}

double cos_f64(double x) {
  const Reduced reduced = reduce_quadrant(x);
  return sin_of_quadrant(reduced.r, reduced.quadrant + 1);
}

}  // namespace quads
