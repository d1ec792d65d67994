"""The operators of Quads for PyTorch: `import quads`, then `torch.ops.quads.linear_nvfp4(...)` etc.

Tensors are in BF16 unless said otherwise, on the CPU or, where the build has CUDA, all on one GPU (docs/gpu.md has the
limits there). All but the first two have straight-through gradients (rac_mask has none). A row of what linear_nvfp4
and grouped_experts give depends on that row of x alone.

quantize_nvfp4(x, global_scale=None) -> (codes, block_scales, global_scale)
    x [.., k] BF16 or FP32, k a multiple of 16. codes uint8 [.., k / 2], block_scales float8_e4m3fn [.., k / 16],
    global_scale FP32 []; without global_scale the power of two that the tensor's largest value asks for.
dequantize_nvfp4(codes, block_scales, global_scale) -> x
    The inverse, FP32 [.., k].
fake_quantize_nvfp4(x, mode) -> y
fake_quantize_fp8(x, mode) -> y
    x rounded as mode says: "weight" (one global scale; FP8: blocks of 128 x 128) or "activation" (scales of each
    row).
rac_mask(x, ratio, granularity="channel") -> mask
    bool [k]: the share `ratio` of the channels ("channel"), or of blocks of 16 ("block"), on which quantising x
    [.., k] leaves the largest residuals.
linear_nvfp4(x, weight, *, channel_mask=None, weight_only=False) -> y
    x [.., k], weight [n, k] -> y [.., n] in W4A4, k a multiple of 32; the channels of channel_mask (bool [k]) are
    compensated. weight_only: x is not quantised (W4A16).
grouped_experts(x, gate_up, down, topk_ids, topk_weights, precision, *, gate_up_mask=None, down_mask=None) -> y
    The routed experts of a layer: x [tokens, hidden], gate_up [experts, 2 * width, hidden], down
    [experts, hidden, width], topk_ids int64 and topk_weights FP32 [tokens, top_k]. precision: "bf16", "fp8", "w8a16",
    "nvfp4", "w4a16" or "w16a4"; the masks (bool [hidden], [width]) say what is compensated.

Products on chips with FP4 units. Operands are laid out as torch's _scaled_mm and _scaled_grouped_mm take them
(packed codes, swizzled and padded block scales); compensated blocks are repeated behind K, with a global scale a row
of x. On the CPU the product is emulated from the same buffers. It has not run on such a chip. None of the three has
gradients; with a mask the first two cannot be traced.

native_fp4_weight(codes, block_scales, *, channel_mask=None) -> (codes, block_scales)
    A weight as quantize_nvfp4 gives it, codes [groups, n, k / 2], block_scales [groups, n, k / 16], n a multiple of 16.
native_fp4_rows(x, offsets, *, channel_mask=None) -> (codes, block_scales, row_scales)
    x [rows, k] BF16 sorted by group, offsets int32 [groups] where each group ends; row_scales FP32 [rows].
native_fp4_product(codes, block_scales, row_scales, weight_codes, weight_block_scales, weight_global_scales, offsets) -> y
    The rows of each group times its weight, [rows, n] BF16; weight_global_scales FP32 [groups].

The build puts this package and its library together into <build>/python.
"""

import pathlib

import torch

torch.ops.load_library(pathlib.Path(__file__).with_name("libquads_ops.so"))
