// Which paths the code under test took.
#pragma once

namespace quads {

/// Forgets the paths of the last input.
void start_coverage();

/// Whether code compiled with -fsanitize-coverage=trace-pc has, since start_coverage(), gone from
/// one place to another as never before, or oftener (in steps of powers of two). Always false if
/// nothing was compiled so.
bool found_new_paths();

}  // namespace quads
