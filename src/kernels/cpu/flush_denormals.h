// The floating-point mode that every CPU kernel runs in.
#pragma once

#include <immintrin.h>

namespace quads::kernels {

/// While alive, this thread treats FP32 denormal operands as zero and flushes denormal results, as
/// AMX's tdpbf16ps always does: so the other code paths give AMX's bits.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

}  // namespace quads::kernels
