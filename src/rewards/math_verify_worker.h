// The program that asks math-verify.
#pragma once

#include <string_view>

namespace quads {

/// workers/math_verify_worker.py, for `python3 -c`: no installed file has to be found.
extern const std::string_view kMathVerifyWorker;

}  // namespace quads
