// Whether there is a GPU to run on.
#pragma once

namespace quads::cuda {

/// Error, saying what is missing, without a device that this program can use.
void require_device();

}  // namespace quads::cuda
