// The bandwidth that a GPU's memory reaches, which figures on it are held against.
#pragma once

namespace quads::bench {

/// Bytes read and written a second by copies of 2 GiB within the device. Needs a device.
double copy_bandwidth();

}  // namespace quads::bench
