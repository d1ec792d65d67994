"""torch.ops.quads against torchao, compressed-tensors and an emulation in plain PyTorch, on the CPU and, where there
is one, on a GPU (test_ops_cuda.py holds the two against each other)."""

import importlib
import sys

import pytest
import torch

BF16 = torch.bfloat16
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
UNIT = 2.0**-8  # of rounding to BF16, twice over: an FP32 sum may lie on either side of a tie


@pytest.fixture(scope="session")
def ops(build_dir):
    package = build_dir / "python"
    if not (package / "quads" / "libquads_ops.so").exists():
        pytest.skip(f"{package}/quads is not built (target quads_torch_ops)")
    sys.path.insert(0, str(package))
    importlib.import_module("quads")
    return torch.ops.quads


@pytest.fixture(params=DEVICES, autouse=True)
def device(request):
    """Where a test's tensors are."""
    with torch.device(request.param):
        yield request.param


def test_the_packages_documentation_has_every_operators_signature(ops):
    text = sys.modules["quads"].__doc__
    names = {
        name.removeprefix("quads::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("quads::") and not name.endswith("_backward")
    }
    assert "linear_nvfp4" in names
    for name in names:
        arguments, star = [], False
        for argument in getattr(ops, name).default._schema.arguments:
            if argument.kwarg_only and not star:
                star = True
                arguments.append("*")
            default = {"channel": '"channel"'}.get(argument.default_value, argument.default_value)
            given = argument.has_default_value()
            arguments.append(f"{argument.name}={default}" if given else argument.name)
        assert f"\n{name}({', '.join(arguments)}) -> " in text


def random(*shape, seed=0, spread=4):
    """BF16 values whose blocks of 16 differ in size by powers of two."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=generator, device="cpu")
    sizes = torch.randint(
        -spread, 1, (*shape[:-1], shape[-1] // 16), generator=generator, device="cpu")
    x = (x * torch.exp2(sizes).repeat_interleave(16, -1)).to(BF16)
    return x.to(torch.get_default_device())


# The formats, from their definitions, in FP32.


def power_of_two_scale(amax, largest):
    scale = torch.exp2(torch.ceil(torch.log2(amax / largest)))
    return torch.where(amax == 0, torch.ones_like(scale), scale)


def e2m1(x):
    """Nearest of the eight magnitudes; a tie goes to the even code."""
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    distance = (x.abs().unsqueeze(-1) - grid).abs()
    nearest = distance.min(-1, keepdim=True).values
    odd = torch.arange(8) % 2
    code = torch.where(distance == nearest, odd.float(), torch.inf).argmin(-1)
    return torch.copysign(grid[code], x)


def nvfp4(x, g):
    """x [.., k] FP32 under the global scale g (which broadcasts against [.., k / 16, 16])."""
    blocks = x.unflatten(-1, (-1, 16))
    scale = blocks.abs().amax(-1, keepdim=True) / (6 * g)
    scale = scale.clamp(max=448.0).to(torch.float8_e4m3fn).float() * g
    values = e2m1(blocks / torch.where(scale == 0, torch.ones_like(scale), scale)) * scale
    return values.flatten(-2)


def nvfp4_weight(w):
    """Each matrix [.., n, k] under its own global scale."""
    g = power_of_two_scale(w.float().abs().amax((-2, -1)), 2688.0)
    return nvfp4(w.float(), g[..., None, None, None])


def row_scale(x):
    return power_of_two_scale(x.float().abs().amax(-1), 2688.0)[..., None, None]


def nvfp4_activation(x, mask=None):
    """q1 + q2 of each row."""
    q1 = nvfp4(x.float(), row_scale(x))
    if mask is None:
        return q1
    return q1 + nvfp4((x.float() - q1) * mask, row_scale(x))


def fp8(x, rows):
    """Blocks of rows x 128 of x [m, k], both multiples of the block."""
    blocks = x.float().reshape(x.shape[0] // rows, rows, x.shape[1] // 128, 128)
    scale = power_of_two_scale(blocks.abs().amax((1, 3), keepdim=True), 448.0)
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).reshape(x.shape)


def assert_close(actual, expected, terms, k):
    """`actual` BF16 is `expected` (FP64) rounded, after FP32 sums of `k` products of which the
    magnitudes add up to `terms`."""
    error = (actual.double() - expected).abs()
    bound = UNIT * expected.abs() + k * 2.0**-24 * terms
    assert (error <= bound).all(), (error / bound).max()


def relative(actual, expected):
    return ((actual.float() - expected.float()).norm() / expected.float().norm()).item()


# Quantisers.


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_quantize_then_dequantize_is_the_emulation(ops, dtype):
    x = random(3, 5, 64).to(dtype) * 1.7
    codes, scales, g = ops.quantize_nvfp4(x)
    assert codes.shape == (3, 5, 32) and codes.dtype == torch.uint8
    assert scales.shape == (3, 5, 4) and scales.dtype == torch.float8_e4m3fn
    assert g == power_of_two_scale(x.float().abs().amax(), 2688.0)
    expected = nvfp4(x.float(), g)
    torch.testing.assert_close(ops.dequantize_nvfp4(codes, scales, g), expected, rtol=0, atol=0)


def test_codes_and_scales_are_what_torchao_dequantizes(ops):
    torchao = pytest.importorskip("torchao.prototype.mx_formats.nvfp4_tensor")
    x = random(32, 128, spread=2)
    codes, scales, g = ops.quantize_nvfp4(x, global_scale=float(x.abs().max()) / 2688.0)
    theirs = torchao.NVFP4Tensor(codes, scales, 16, torch.float32, per_tensor_scale=g).dequantize()
    torch.testing.assert_close(ops.dequantize_nvfp4(codes, scales, g), theirs, rtol=2e-7, atol=0)


def test_fake_quantize_is_that_of_compressed_tensors(ops):
    quantization = pytest.importorskip("compressed_tensors.quantization")
    forward = pytest.importorskip("compressed_tensors.quantization.lifecycle.forward")
    utils = pytest.importorskip("compressed_tensors.quantization.utils")
    x = random(32, 128, spread=2)
    g = power_of_two_scale(x.float().abs().amax(), 2688.0)
    args = quantization.QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
        scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
    )
    blocks = x.float().reshape(32, -1, 16)
    divisor = (1.0 / g).reshape(1)
    scale, zero = utils.calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, divisor)
    theirs = forward.fake_quantize(x.float(), scale, zero, args, global_scale=divisor)
    ours = ops.fake_quantize_nvfp4(x, "weight")
    torch.testing.assert_close(ours.float(), theirs, rtol=0, atol=0)


def test_fake_quantized_weights_and_activations_are_the_emulation(ops):
    w, x = random(2, 48, 96, seed=1), random(7, 96, seed=2)
    torch.testing.assert_close(
        ops.fake_quantize_nvfp4(w, "weight").float(), nvfp4_weight(w), rtol=0, atol=0)
    torch.testing.assert_close(
        ops.fake_quantize_nvfp4(x, "activation").float(), nvfp4_activation(x), rtol=0, atol=0)
    w, x = random(256, 256, seed=3), random(5, 256, seed=4)
    torch.testing.assert_close(
        ops.fake_quantize_fp8(w, "weight").float(), fp8(w, 128), rtol=0, atol=0)
    torch.testing.assert_close(
        ops.fake_quantize_fp8(x, "activation").float(), fp8(x, 1), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["fake_quantize_nvfp4", "fake_quantize_fp8"])
@pytest.mark.parametrize("mode", ["weight", "activation"])
def test_gradients_pass_straight_through_the_quantisers(ops, name, mode):
    x = random(32, 128).requires_grad_()
    y = getattr(ops, name)(x, mode)
    assert (y != x).any()
    dy = random(32, 128, seed=9)
    y.backward(dy)
    torch.testing.assert_close(x.grad, dy, rtol=0, atol=0)


@pytest.mark.parametrize("granularity, unit", [("channel", 1), ("block", 16)])
def test_rac_mask_selects_the_largest_residuals(ops, granularity, unit):
    x = random(200, 128)
    residual = (x.float() - nvfp4_activation(x)).abs() / row_scale(x)[..., 0]
    sums = (residual * 2**16).round().double().sum(0).reshape(-1, unit).sum(1)
    count = -(-sums.numel() * 3 // 10)
    expected = torch.zeros(sums.numel(), dtype=torch.bool)
    expected[sums.argsort(descending=True, stable=True)[:count]] = True
    mask = ops.rac_mask(x, 0.3, granularity)
    assert torch.equal(mask, expected.repeat_interleave(unit))


# The linear layer.


def linear_reference(x, w, mask, weight_only):
    xq = x.double() if weight_only else nvfp4_activation(x, mask).double()
    return xq, nvfp4_weight(w).double()


CASES = ["w4a4", "w4a4+rac", "w4a16"]


def linear_arguments(case, k):
    mask = None
    if case == "w4a4+rac":
        mask = torch.rand(k, generator=torch.Generator().manual_seed(5), device="cpu") < 0.4
        mask[-40:] = False
        mask = mask.to(torch.get_default_device())
    return mask, case == "w4a16"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("m, n, k", [(1, 16, 32), (70, 50, 96), (130, 300, 768)])
def test_linear_equals_a_float64_product_of_the_quantised_operands(ops, case, m, n, k):
    x, w = random(m, k, seed=1), random(n, k, seed=2)
    mask, weight_only = linear_arguments(case, k)
    y = ops.linear_nvfp4(x, w, channel_mask=mask, weight_only=weight_only)
    xq, wq = linear_reference(x, w, mask, weight_only)
    assert y.dtype == BF16 and y.shape == (m, n)
    assert_close(y, xq @ wq.T, xq.abs() @ wq.abs().T, k)


def test_compensation_brings_the_product_closer(ops):
    x, w = random(40, 256), random(64, 256, seed=1)
    exact = x.double() @ nvfp4_weight(w).double().T
    errors = [
        (ops.linear_nvfp4(x, w, channel_mask=mask).double() - exact).norm()
        for mask in (None, ops.rac_mask(x, 0.5), torch.ones(256, dtype=torch.bool))
    ]
    assert errors[0] > 1.3 * errors[1] > 1.3 * 2 * errors[2]


@pytest.mark.parametrize("case", CASES)
def test_linear_gradients_multiply_with_what_the_forward_multiplied(ops, case):
    m, n, k = 24, 40, 96
    x, w = random(2, m // 2, k, seed=1).requires_grad_(), random(n, k, seed=2).requires_grad_()
    mask, weight_only = linear_arguments(case, k)
    y = ops.linear_nvfp4(x, w, channel_mask=mask, weight_only=weight_only)
    dy = random(2, m // 2, 48, seed=3)[..., :n]  # not contiguous
    y.backward(dy)
    dy = dy.reshape(m, n).double()
    xq, wq = linear_reference(x.detach().reshape(m, k), w.detach(), mask, weight_only)
    # Roundings to BF16 (two where the CPU multiplies BF16): at most 2^-9 each.
    assert relative(x.grad.reshape(m, k), dy @ wq) < 2 * 2.0**-9
    assert relative(w.grad, dy.T @ xq) < 2 * 2.0**-9
    if not weight_only:  # and not with the unquantised operands
        assert relative(x.grad.reshape(m, k), dy @ w.detach().double()) > 0.02
        assert relative(w.grad, dy.T @ x.detach().reshape(m, k).double()) > 0.01


@pytest.mark.parametrize("case", CASES)
def test_a_row_does_not_depend_on_its_neighbours_or_the_threads(ops, case):
    x, w = random(130, 96, seed=1), random(70, 96, seed=2)
    mask, weight_only = linear_arguments(case, 96)
    options = {"channel_mask": mask, "weight_only": weight_only}
    together = ops.linear_nvfp4(x, w, **options)
    alone = torch.cat([ops.linear_nvfp4(row, w, **options) for row in x.split(1)])
    assert torch.equal(together, alone)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert torch.equal(together, ops.linear_nvfp4(x, w, **options))
    finally:
        torch.set_num_threads(threads)


# Experts.


def straight_through(x, q):
    return x + (q - x).detach()


def experts_reference(x, gate_up, down, ids, weights, precision, masks):
    """FP32 with autograd; straight-through where the operator quantises, and for the rounding of
    the intermediate activation."""

    def activation(t, mask):
        if precision in ("nvfp4", "w16a4"):
            return straight_through(t, nvfp4_activation(t.detach(), mask))
        return straight_through(t, fp8(t.detach(), 1)) if precision == "fp8" else t

    def weight(t):
        if precision in ("nvfp4", "w4a16"):
            return straight_through(t, nvfp4_weight(t.detach()))
        if precision in ("fp8", "w8a16"):
            return straight_through(t, torch.stack([fp8(m, 128) for m in t.detach()]))
        return t

    y = torch.zeros_like(x)
    wg, wd, xq = weight(gate_up), weight(down), activation(x, masks[0])
    for e in range(len(gate_up)):
        rows, choice = (ids == e).nonzero(as_tuple=True)
        gate, up = (xq[rows] @ wg[e].T).chunk(2, -1)
        h = torch.nn.functional.silu(gate) * up
        h = activation(straight_through(h, h.detach().to(BF16).float()), masks[1])
        y = y.index_add(0, rows, h @ wd[e].T * weights[rows, choice, None])
    return y


def experts_arguments(tokens=37, hidden=128, width=128, experts=5, top_k=2):
    generator = torch.Generator().manual_seed(8)
    # One of the experts is not used.
    ids = torch.rand(tokens, experts - 1, generator=generator, device="cpu").topk(top_k).indices
    weights = torch.rand(tokens, top_k, generator=generator, device="cpu")
    return (
        random(tokens, hidden, seed=1, spread=1),
        random(experts, 2 * width, hidden, seed=2, spread=1) * 0.1,
        random(experts, hidden, width, seed=3, spread=1) * 0.1,
        ids.to(torch.get_default_device()),
        weights.to(torch.get_default_device()),
    )


@pytest.mark.parametrize(
    "precision, with_masks",
    [("bf16", 0), ("fp8", 0), ("w8a16", 0), ("w4a16", 0), ("w16a4", 0), ("nvfp4", 0), ("nvfp4", 1)],
)
def test_experts_and_their_gradients_equal_the_emulation(ops, precision, with_masks):
    x, gate_up, down, ids, weights = experts_arguments()
    masks = [None, None]
    if with_masks:
        masks = [torch.arange(128) % 3 == 0, torch.arange(128) < 48]
    ours = [t.clone().requires_grad_() for t in (x, gate_up, down, weights)]
    theirs = [t.float().requires_grad_() for t in (x, gate_up, down, weights)]
    y = ops.grouped_experts(*ours[:3], ids, ours[3], precision, gate_up_mask=masks[0],
                            down_mask=masks[1])
    expected = experts_reference(*theirs[:3], ids, theirs[3], precision, masks)
    # One rounding to BF16 (2^-9 at most, about half in the norm), and, with quantised activations,
    # a few codes of the intermediate that a unit in the last place of FP32 moves.
    quantised = precision in ("fp8", "nvfp4", "w16a4")
    assert relative(y, expected) < (6e-3 if quantised else 2.5e-3)
    dy = random(*x.shape, seed=4)
    y.backward(dy)
    expected.backward(dy.float())
    for name, a, b in zip(("x", "gate_up", "down", "weights"), ours, theirs):
        assert relative(a.grad, b.grad) < 8e-3, name
    assert (ours[1].grad[4] == 0).all() and (ours[2].grad[4] == 0).all()


def test_a_token_does_not_depend_on_the_batch(ops):
    x, gate_up, down, ids, weights = experts_arguments(tokens=150)
    together = ops.grouped_experts(x, gate_up, down, ids, weights, "nvfp4")
    for t in (0, 77, 149):
        row = slice(t, t + 1)
        alone = ops.grouped_experts(x[row], gate_up, down, ids[row], weights[row], "nvfp4")
        assert torch.equal(together[row], alone)


# PyTorch's own checks: schemas, shape functions, autograd registration, tracing.


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("quantize_nvfp4", lambda: (random(4, 64),)),
        ("fake_quantize_nvfp4", lambda: (random(32, 64).requires_grad_(), "weight")),
        ("fake_quantize_fp8", lambda: (random(4, 128).requires_grad_(), "activation")),
        ("rac_mask", lambda: (random(8, 64), 0.5)),
        ("linear_nvfp4", lambda: (random(5, 64).requires_grad_(), random(48, 64).requires_grad_())),
        (
            "grouped_experts",
            lambda: tuple(
                t.requires_grad_() if t.is_floating_point() else t
                for t in experts_arguments(tokens=9, hidden=64, width=32)
            ) + ("nvfp4",),
        ),
    ],
)
def test_opcheck(ops, name, arguments):
    torch.library.opcheck(getattr(ops, name).default, arguments())


def test_dequantize_opcheck(ops):
    torch.library.opcheck(
        ops.dequantize_nvfp4.default,
        ops.quantize_nvfp4(random(4, 64)),
        # Not test_schema: it compares the arguments by allclose, which has no float8.
        test_utils=("test_faketensor", "test_aot_dispatch_dynamic", "test_autograd_registration"),
    )


def test_a_compiled_layer_gives_the_same_values_and_gradients(ops):
    def layer(x, w):
        return torch.relu(ops.linear_nvfp4(x, w, channel_mask=None, weight_only=False)).sum()

    def run(function):
        x, w = random(6, 64, seed=1).requires_grad_(), random(32, 64, seed=2).requires_grad_()
        y = function(x, w)
        y.backward()
        return y, x.grad, w.grad

    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(run(layer), run(compiled)):
        assert torch.equal(ours, theirs)


# Errors.


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda o: o.linear_nvfp4(random(4, 64).float(), random(8, 64)), "x is Float .*BFloat16"),
        (lambda o: o.linear_nvfp4(random(4, 48), random(8, 48)), "multiple of 32"),
        (lambda o: o.linear_nvfp4(random(4, 64), random(8, 96)), r"must be \[n, 64\]"),
        (lambda o: o.linear_nvfp4(random(64, 64).T, random(8, 64)), "not contiguous"),
        (lambda o: o.linear_nvfp4(random(4, 64), random(8, 64),
                                  channel_mask=torch.ones(64)), "channel_mask is Float"),
        (lambda o: o.linear_nvfp4(random(4, 64), random(8, 64),
                                  channel_mask=torch.ones(32, dtype=torch.bool)), r"must be \[64\]"),
        (lambda o: o.linear_nvfp4(random(4, 64), random(8, 64), weight_only=True,
                                  channel_mask=torch.ones(64, dtype=torch.bool)), "weight_only"),
        (lambda o: o.linear_nvfp4(with_nan(4, 64, 2), random(8, 64)), "row 2 holds a NaN"),
        (lambda o: o.linear_nvfp4(random(4, 64), with_nan(8, 64, 5)), "row 5, column 7"),
        (lambda o: o.quantize_nvfp4(with_nan(4, 64, 3)), "row 3"),
        (lambda o: o.quantize_nvfp4(random(4, 64), 0.0), "global_scale is 0"),
        (lambda o: o.quantize_nvfp4(torch.ones(4, 64, dtype=torch.int32)), "x is Int"),
        (lambda o: o.dequantize_nvfp4(torch.zeros(4, 32, dtype=torch.uint8),
                                      torch.zeros(4, 3).to(torch.float8_e4m3fn),
                                      torch.tensor(1.0)), r"must be \[4, 4\]"),
        (lambda o: o.fake_quantize_nvfp4(random(4, 64), "both"), "weight or activation"),
        (lambda o: o.rac_mask(random(4, 64), 1.5), "1.5"),
        (lambda o: o.rac_mask(random(4, 64), 0.5, "rows"), "channel or block"),
        (lambda o: experts_call(o, precision="int4"), "unknown precision 'int4'"),
        (lambda o: experts_call(o, ids=lambda t: t + 4), "there are 5 experts"),
        (lambda o: experts_call(o, ids=lambda t: -1 - t), "there are 5 experts"),
        (lambda o: experts_call(o, ids=lambda t: t.int()), "topk_ids is Int"),
        (lambda o: experts_call(o, precision="w4a16", mask=torch.ones(128, dtype=torch.bool)),
         "precision w4a16 has none"),
    ],
)
def test_errors_say_what_is_wrong(ops, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(ops)


def with_nan(rows, k, row):
    x = random(rows, k)
    x[row, 7] = torch.nan
    return x


def experts_call(ops, precision="nvfp4", ids=lambda t: t, mask=None):
    x, gate_up, down, topk_ids, weights = experts_arguments()
    return ops.grouped_experts(x, gate_up, down, ids(topk_ids), weights, precision,
                               gate_up_mask=mask)


def test_other_devices_are_refused(ops):
    x, w = random(4, 64).to_sparse(), random(8, 64)
    with pytest.raises((RuntimeError, NotImplementedError)):
        ops.linear_nvfp4(x, w)


def test_empty_batches_give_empty_results(ops):
    x, w = torch.empty(0, 64, dtype=BF16), random(8, 64)
    assert ops.linear_nvfp4(x, w).shape == (0, 8)
    assert ops.fake_quantize_nvfp4(x, "activation").shape == (0, 64)
    assert ops.fake_quantize_nvfp4(x, "weight").shape == (0, 64)
    assert ops.fake_quantize_fp8(x.unsqueeze(0), "weight").shape == (1, 0, 64)
    _, gate_up, down, ids, weights = experts_arguments()
    y = ops.grouped_experts(torch.empty(0, 128, dtype=BF16), gate_up, down, ids[:0], weights[:0],
                            "nvfp4")
    assert y.shape == (0, 128)
