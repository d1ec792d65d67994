"""Native FP4 operands against torchao's swizzle and NVFP4Tensor, PyTorch's own shape checks, and a reader of the
buffers in plain PyTorch; their emulated product against linear_nvfp4."""

import pytest
import torch
from torch.nn.functional import ScalingType, SwizzleType
from torchao.prototype.mx_formats.kernels import f4_unpacked_to_f32, unpack_uint4
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor
from torchao.prototype.mx_formats.utils import from_blocked, to_blocked

from test_ops import BF16, UNIT, nvfp4_activation, nvfp4_weight, ops, random  # noqa: F401

E4M3 = torch.float8_e4m3fn
BLOCK = 16


def round_up(x, multiple):
    return -(-x // multiple) * multiple


def selected_blocks(mask):
    return mask.reshape(-1, BLOCK).any(1).nonzero().flatten()


def augmented(k, mask):
    return round_up(k + (BLOCK * len(selected_blocks(mask)) if mask is not None else 0), 32)


def some_mask(k):
    mask = torch.rand(k, generator=torch.Generator().manual_seed(4)) < 0.5
    mask[16:48] = False
    return mask


def quantised_weight(ops, w):
    """Each matrix under its own global scale."""
    parts = [ops.quantize_nvfp4(matrix) for matrix in w]
    return [torch.stack(t) for t in zip(*parts)]


def augment(codes, scales, extra_codes, extra_scales, mask):
    """[.., k / 2] and [.., k / 16] with the compensated blocks of `extra` behind, and zeros."""
    if mask is not None:
        blocks = selected_blocks(mask)
        extra = extra_codes.unflatten(-1, (-1, BLOCK // 2))[..., blocks, :].flatten(-2)
        codes = torch.cat([codes, extra], -1)
        scales = torch.cat([scales.view(torch.uint8), extra_scales.view(torch.uint8)[..., blocks]], -1)
    pad = codes.shape[-1] % BLOCK
    codes = torch.nn.functional.pad(codes, (0, pad))
    return codes, torch.nn.functional.pad(scales.view(torch.uint8), (0, pad // (BLOCK // 2)))


def blocked(scales):
    return to_blocked(scales.view(torch.uint8)).view(torch.uint8)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("n, k", [(16, 16), (48, 80), (272, 256)])
def test_a_weights_scales_are_torchaos_swizzle_and_compensated_blocks_are_repeated(ops, n, k, with_mask):
    codes, scales, _ = quantised_weight(ops, random(3, n, k, seed=1))
    mask = some_mask(k) if with_mask else None
    native_codes, native_scales = ops.native_fp4_weight(codes, scales, channel_mask=mask)
    columns = round_up(augmented(k, mask) // BLOCK, 4)
    assert native_codes.shape == (3, n, augmented(k, mask) // 2)
    assert native_scales.shape == (3, round_up(n, 128) * columns) and native_scales.dtype == E4M3
    expected_codes, expected_scales = augment(codes, scales, codes, scales, mask)
    assert torch.equal(native_codes, expected_codes)
    for ours, theirs in zip(native_scales, expected_scales):
        assert torch.equal(ours.view(torch.uint8), blocked(theirs))


def test_a_weight_is_an_nvfp4tensor_with_swizzled_scales(ops):
    w = random(128, 256, seed=2, spread=2)
    codes, scales, g = ops.quantize_nvfp4(w)
    native_codes, native_scales = ops.native_fp4_weight(codes[None], scales[None])
    theirs = NVFP4Tensor.to_nvfp4(w.float(), BLOCK, per_tensor_scale=g, is_swizzled_scales=True)
    assert torch.equal(native_scales[0].view(torch.uint8), theirs.scale.flatten().view(torch.uint8))
    ours = NVFP4Tensor(native_codes[0], native_scales[0].view(theirs.scale.shape), BLOCK, torch.float32,
                       per_tensor_scale=g, is_swizzled_scales=True)
    torch.testing.assert_close(ours.dequantize(), ops.dequantize_nvfp4(codes, scales, g), rtol=0, atol=0)


def rows_by_quantize_nvfp4(ops, x, mask):
    """Codes and scales of both passes of every row, and g, from the plain quantiser."""
    passes = []
    for row in x:
        amax = row.float().abs().max()
        g = torch.exp2(torch.ceil(torch.log2(amax / 2688))) if amax > 0 else torch.tensor(1.0)
        codes, scales, _ = ops.quantize_nvfp4(row[None], float(g))
        residual = row.float() - ops.dequantize_nvfp4(codes, scales, g)[0]
        second = torch.zeros_like(residual) if mask is None else torch.where(mask, residual, 0.0)
        codes2, scales2, _ = ops.quantize_nvfp4(second[None], float(g))
        passes.append((codes[0], scales[0], codes2[0], scales2[0], g))
    return [torch.stack(t) for t in zip(*passes)]


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("ends", [[5], [3, 3, 140], [0, 1, 2]])
def test_rows_are_the_plain_quantisers_with_each_groups_scales_padded_by_itself(ops, ends, with_mask):
    k = 80
    x = random(ends[-1], k, seed=3)
    mask = some_mask(k) if with_mask else None
    codes, scales, g = ops.native_fp4_rows(x, torch.tensor(ends, dtype=torch.int32), channel_mask=mask)
    codes1, scales1, codes2, scales2, row_scales = rows_by_quantize_nvfp4(ops, x, mask)
    expected_codes, expected_scales = augment(codes1, scales1, codes2, scales2, mask)
    assert torch.equal(codes, expected_codes) and torch.equal(g, row_scales)
    begins = [0] + ends[:-1]
    expected = torch.cat([blocked(expected_scales[b:e]) for b, e in zip(begins, ends) if e > b])
    flat = scales.view(torch.uint8).flatten()
    assert torch.equal(flat[: len(expected)], expected)
    assert (flat[len(expected):] == 0).all()


def operands(ops, ends, n, k, mask):
    x, w = random(ends[-1], k, seed=5), random(len(ends), n, k, seed=6)
    offsets = torch.tensor(ends, dtype=torch.int32)
    codes, scales, g = quantised_weight(ops, w)
    weight = (*ops.native_fp4_weight(codes, scales, channel_mask=mask), g)
    return x, w, (*ops.native_fp4_rows(x, offsets, channel_mask=mask), *weight, offsets)


def read(codes, scales, rows, k):
    """What a chip reads: [rows, k] of packed codes and swizzled scales."""
    values = f4_unpacked_to_f32(unpack_uint4(codes.reshape(rows, k // 2)))
    return values * from_blocked(scales, rows, k // BLOCK).float().repeat_interleave(BLOCK, 1)


SHAPES = [([1], 16, 32), ([3, 3, 140], 48, 80), ([70], 304, 768)]


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("ends, n, k", SHAPES)
def test_the_product_is_that_of_a_reader_of_the_same_buffers(ops, ends, n, k, with_mask):
    mask = some_mask(k) if with_mask else None
    x, w, args = operands(ops, ends, n, k, mask)
    y = ops.native_fp4_product(*args)
    assert y.shape == (ends[-1], n) and y.dtype == BF16
    codes, scales, g, weight_codes, weight_scales, weight_g, _ = args
    kk, columns, begin, scale_row = 2 * codes.shape[1], scales.shape[1], 0, 0
    for group, end in enumerate(ends):
        rows = end - begin
        if rows == 0:
            continue
        padded = round_up(rows, 128)
        a = read(codes[begin:end], scales[scale_row : scale_row + padded], rows, kk).double()
        b = read(weight_codes[group], weight_scales[group], n, kk).double()
        factor = g[begin:end, None].double() * weight_g[group].double()
        exact, magnitude = (a @ b.T) * factor, (a.abs() @ b.abs().T) * factor
        error = (y[begin:end].double() - exact).abs()
        assert (error <= UNIT * exact.abs() + kk // BLOCK * 2.0**-24 * magnitude).all()
        # and the operands are those of the compensated product
        xq = nvfp4_activation(x[begin:end], mask).double()
        torch.testing.assert_close(exact, xq @ nvfp4_weight(w[group]).double().T, rtol=1e-12, atol=1e-12)
        begin, scale_row = end, scale_row + padded


@pytest.mark.parametrize("with_mask", [False, True])
def test_the_product_is_linear_nvfp4s_but_for_the_order_of_sums(ops, with_mask):
    k = 768
    mask = some_mask(k) if with_mask else None
    x, w, args = operands(ops, [70], 304, k, mask)
    ours, theirs = ops.native_fp4_product(*args), ops.linear_nvfp4(x, w[0], channel_mask=mask)
    xq, wq = nvfp4_activation(x, mask), nvfp4_weight(w[0])
    magnitude = xq.abs() @ wq.abs().T
    # Each is a sum of FP32, rounded to BF16 once.
    assert ((ours.float() - theirs.float()).abs() <= 2 * UNIT * theirs.abs() + 2 * k * 2.0**-24 * magnitude).all()


def test_pytorchs_own_checks_accept_the_buffers_of_a_group(ops):
    """The shape functions of _scaled_mm; the grouped product has none for NVFP4."""
    ends, n, k = [70], 48, 80
    _, _, args = operands(ops, ends, n, k, some_mask(k))
    codes, scales, _, weight_codes, weight_scales, weight_g, _ = (t.to("meta") for t in args)
    a, b = codes.view(torch.float4_e2m1fn_x2), weight_codes[0].view(torch.float4_e2m1fn_x2).t()
    assert torch._scaled_mm(a, b, scales, weight_scales[0], out_dtype=BF16).shape == (70, n)
    recipe = [ScalingType.BlockWise1x16, ScalingType.TensorWise]
    swizzle = [SwizzleType.SWIZZLE_32_4_4, SwizzleType.NO_SWIZZLE]
    one = torch.ones((), device="meta")
    y = torch.nn.functional.scaled_mm(a, b, [scales, one], recipe, [weight_scales[0], weight_g[0]], recipe,
                                      swizzle, swizzle, output_dtype=BF16)
    assert y.shape == (70, n) and y.dtype == BF16
    with pytest.raises(RuntimeError):  # the check can fail
        torch._scaled_mm(a, b, scales[:64], weight_scales[0], out_dtype=BF16)


def test_a_nan_in_the_padding_reaches_the_product_so_it_is_zero(ops):
    _, _, args = operands(ops, [3], 16, 32, None)  # two of four columns of scales are padding
    assert torch.isfinite(ops.native_fp4_product(*args)).all()
    args[1].view(torch.uint8).flatten()[2] = 0x7F
    assert torch.isnan(ops.native_fp4_product(*args)[0]).all()


def test_opcheck(ops):
    codes, scales, _ = quantised_weight(ops, random(2, 32, 64))
    x, offsets = random(5, 64), torch.tensor([2, 5], dtype=torch.int32)
    # Not test_schema: it compares the arguments by allclose, which has no float8.
    utils = ("test_faketensor", "test_aot_dispatch_dynamic", "test_autograd_registration")
    torch.library.opcheck(ops.native_fp4_weight.default, (codes, scales), test_utils=utils)
    torch.library.opcheck(ops.native_fp4_rows.default, (x, offsets), test_utils=utils)
    _, _, args = operands(ops, [2, 5], 32, 64, None)
    torch.library.opcheck(ops.native_fp4_product.default, args, test_utils=utils)


def test_no_rows_give_no_rows(ops):
    _, _, args = operands(ops, [2, 5], 32, 64, None)
    none = ops.native_fp4_rows(torch.empty(0, 64, dtype=BF16), torch.zeros(2, dtype=torch.int32))
    y = ops.native_fp4_product(*none, *args[3:6], torch.zeros(2, dtype=torch.int32))
    assert y.shape == (0, 32)


def with_nan(x):
    x[1, 5] = torch.nan
    return x


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda o, a: o.native_fp4_rows(with_nan(random(5, 64)), a[6]), "x: row 1, column 5 is nan"),
        (lambda o, a: o.native_fp4_rows(random(5, 64), a[6].long()), "offsets is Long"),
        (lambda o, a: o.native_fp4_rows(random(6, 64), a[6]), "last offset is 5; there are 6 rows"),
        (lambda o, a: o.native_fp4_rows(random(5, 64)[:, :56].contiguous(), a[6]), "multiple of 16"),
        (lambda o, a: o.native_fp4_rows(random(5, 64), a[6], channel_mask=torch.ones(32, dtype=torch.bool)),
         r"must be \[64\]"),
        (lambda o, a: o.native_fp4_weight(a[3][:, :8].contiguous(), a[4]), "n a multiple of 16"),
        (lambda o, a: o.native_fp4_weight(a[3], a[4]), r"must be \[2, 32, 4\]"),
        (lambda o, a: o.native_fp4_product(a[0], a[1][:128], *a[2:]), r"block_scales is .*\[256, 4\]"),
        (lambda o, a: o.native_fp4_product(a[0][:, :16].contiguous(), *a[1:]), r"must be \[groups, n, 16\]"),
        (lambda o, a: o.native_fp4_product(*a[:6], a[6].flip(0)), "offsets"),
        (lambda o, a: o.native_fp4_rows(random(5, 64).to("meta"), a[6].to("meta"),
                                        channel_mask=torch.ones(64, dtype=torch.bool, device="meta")),
         "cannot be traced"),
    ],
)
def test_errors_say_what_is_wrong(ops, call, message):
    _, _, args = operands(ops, [2, 5], 32, 64, None)
    with pytest.raises(RuntimeError, match=message):
        call(ops, args)
