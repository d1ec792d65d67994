// What an AdamW step multiplies with, on every device.
#pragma once

namespace quads::kernels {

struct AdamwParams {
  float lr, beta1, beta2, eps, weight_decay;
  float grad_scale;                          // clipping factor times 1 / normaliser
  float bias_correction1, bias_correction2;  // 1 - beta^t
};

}  // namespace quads::kernels
