"""torch.ops.quads on a GPU against the same operators on the CPU: quantisers to the bit, products within the bounds of
two orders of FP32 sums."""

import pytest
import torch

from test_ops import BF16, UNIT, experts_arguments, nvfp4_activation, nvfp4_weight, ops, random  # noqa: F401

E4M3 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def device():
    """Tests say themselves where tensors are."""
    if not torch.cuda.is_available():
        pytest.skip("NOT TESTED: torch.ops.quads on a GPU: PyTorch sees none")


def to_gpu(values):
    return [v.cuda() if isinstance(v, torch.Tensor) else v for v in values]


def as_bytes(tensor):
    tensor = tensor.detach().cpu()
    return tensor if tensor.dim() == 0 else tensor.contiguous().view(torch.uint8)


def assert_same_bits(op, *args, **options):
    ours = op(*to_gpu(args), **dict(zip(options, to_gpu(options.values()))))
    theirs = op(*args, **options)
    if isinstance(ours, torch.Tensor):
        ours, theirs = (ours,), (theirs,)
    for gpu, cpu in zip(ours, theirs):
        assert gpu.is_cuda and gpu.dtype == cpu.dtype and gpu.shape == cpu.shape
        assert torch.equal(as_bytes(gpu), as_bytes(cpu))


def hostile(rows=64, k=128):
    """Every boundary of E2M1, zeros of both signs, denormals, the ends of the range, subnormal scales."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randint(-24, 25, (rows, k), generator=generator).float() / 4
    kind = torch.arange(rows) % 8
    x[kind == 0] = 0.0
    x[kind == 1] = -0.0
    x[kind == 1, 5] = 2.0**-133
    x[kind == 2] *= 2.0**-120
    x[kind == 3] *= 2.0**120
    x[kind == 4, 16:] *= 2.0**-14
    x[kind == 5, 0] += 2688.0
    x[kind == 6] *= 2.0 ** torch.randint(-12, 1, (k // 16,), generator=generator).float().repeat_interleave(16)
    return x.to(BF16)


TENSORS = {
    "spread": lambda: random(70, 256, spread=9),
    "hostile": hostile,
    "one row": lambda: random(1, 32),
    "no rows": lambda: torch.empty(0, 64, dtype=BF16),
}


@pytest.mark.parametrize("name", TENSORS)
def test_quantisers_have_the_cpus_bits(ops, name):
    x = TENSORS[name]()
    assert_same_bits(ops.quantize_nvfp4, x)
    assert_same_bits(ops.quantize_nvfp4, x.float())
    for g in (2.0**-8, 0.0123, 1e-20):
        assert_same_bits(ops.quantize_nvfp4, x[x.abs().amax(-1) < 2.0**100].float() * 1.01, g)
    for kind in ("nvfp4", "fp8"):
        quantize = getattr(ops, f"fake_quantize_{kind}")
        assert_same_bits(quantize, x, "activation")
        assert_same_bits(quantize, x.clamp(-1e6, 1e6), "weight")
    codes, scales, g = ops.quantize_nvfp4(x)
    assert_same_bits(ops.dequantize_nvfp4, codes, scales, g)
    assert_same_bits(ops.dequantize_nvfp4, codes, scales, torch.tensor(0.0123))


def test_weights_of_any_number_of_rows_and_matrices_have_the_cpus_bits(ops):
    for shape in [(1, 32), (3, 48, 96), (2, 2, 130, 160), (5, 64, 128), (600, 16, 32)]:
        for kind in ("nvfp4", "fp8"):
            assert_same_bits(getattr(ops, f"fake_quantize_{kind}"), random(*shape, spread=7), "weight")


def test_a_slice_whose_data_are_not_aligned_is_taken(ops):
    x = random(9, 64).flatten()
    gpu = x.cuda()[3:-61].view(8, 64)
    expected = ops.fake_quantize_nvfp4(x[3:-61].view(8, 64), "activation")
    assert torch.equal(ops.fake_quantize_nvfp4(gpu, "activation").cpu(), expected)


@pytest.mark.parametrize("granularity", ["channel", "block"])
def test_masks_are_the_cpus(ops, granularity):
    x = random(300, 256, spread=6)
    for ratio in (0.0, 0.3, 1.0):
        assert_same_bits(ops.rac_mask, x, ratio, granularity)


def a_mask(k):
    mask = torch.rand(k, generator=torch.Generator().manual_seed(4)) < 0.5
    mask[16:48] = False
    return mask


@pytest.mark.parametrize("ends, n, k", [([5], 16, 16), ([3, 3, 140], 48, 80), ([0, 0], 16, 64), ([70], 304, 768)])
@pytest.mark.parametrize("with_mask", [False, True])
def test_native_operands_have_the_cpus_bytes(ops, ends, n, k, with_mask):
    mask = a_mask(k) if with_mask else None
    offsets = torch.tensor(ends, dtype=torch.int32)
    assert_same_bits(ops.native_fp4_rows, random(ends[-1], k, seed=3, spread=8), offsets, channel_mask=mask)
    parts = [ops.quantize_nvfp4(w) for w in random(len(ends), n, k, seed=1)]
    codes, scales = (torch.stack([p[i] for p in parts]) for i in range(2))
    assert_same_bits(ops.native_fp4_weight, codes, scales, channel_mask=mask)


def test_the_native_product_runs_on_chips_with_fp4_units_or_names_the_capability(ops):
    ends, n, k = [3, 40], 64, 128
    offsets = torch.tensor(ends, dtype=torch.int32)
    x, w = random(ends[-1], k, seed=5), random(len(ends), n, k, seed=6)
    parts = [ops.quantize_nvfp4(matrix) for matrix in w]
    codes, scales, g = (torch.stack([p[i] for p in parts]) for i in range(3))
    args = (*ops.native_fp4_rows(x, offsets), *ops.native_fp4_weight(codes, scales), g, offsets)
    major, minor = torch.cuda.get_device_capability()
    if major < 10:
        with pytest.raises(RuntimeError, match=f"compute capability {major}.{minor} and no FP4 units"):
            ops.native_fp4_product(*to_gpu(args))
        return
    ours, emulated = ops.native_fp4_product(*to_gpu(args)).cpu().float(), ops.native_fp4_product(*args).float()
    magnitude = torch.cat([nvfp4_activation(x[b:e]).abs() @ nvfp4_weight(m).abs().T
                           for b, e, m in zip([0] + ends, ends, w)])
    assert ((ours - emulated).abs() <= 2 * UNIT * emulated.abs() + 2 * k * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize("case", ["w4a4", "w4a4+rac", "w4a16"])
@pytest.mark.parametrize("m, n, k", [(1, 16, 32), (70, 50, 96), (130, 300, 768), (513, 64, 2048)])
def test_the_linear_layer_is_the_cpus_but_for_the_order_of_sums(ops, case, m, n, k):
    x, w = random(m, k, seed=1), random(n, k, seed=2)
    options = {"channel_mask": a_mask(k) if case == "w4a4+rac" else None, "weight_only": case == "w4a16"}
    theirs = ops.linear_nvfp4(x, w, **options).float()
    gpu_options = dict(zip(options, to_gpu(options.values())))
    ours = ops.linear_nvfp4(x.cuda(), w.cuda(), **gpu_options).cpu().float()
    xq = x.float() if case == "w4a16" else nvfp4_activation(x, options["channel_mask"])
    magnitude = xq.abs() @ nvfp4_weight(w).abs().T
    assert ((ours - theirs).abs() <= 2 * UNIT * theirs.abs() + 2 * k * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize("shape", [dict(), dict(tokens=1), dict(tokens=300, hidden=96, width=32, experts=9, top_k=3)])
@pytest.mark.parametrize("precision", ["bf16", "fp8", "w8a16", "w4a16", "w16a4", "nvfp4"])
def test_experts_are_the_cpus_but_for_rounding(ops, precision, shape):
    args = experts_arguments(**shape)
    theirs = ops.grouped_experts(*args, precision).float()
    ours = ops.grouped_experts(*to_gpu(args), precision).cpu().float()
    # Sums of another order move a few codes of the intermediate activation.
    limit = 6e-3 if precision in ("fp8", "nvfp4", "w16a4") else 3e-3
    assert ((ours - theirs).norm() / theirs.norm()) < limit


def linear_operands():
    return random(64, 256, seed=1), random(96, 256, seed=2)


# A call, and the tensors that it reads.
LATE = {
    "linear w4a4": (lambda o, x, w: o.linear_nvfp4(x, w), linear_operands),
    "linear w4a4+rac": (lambda o, x, w, mask: o.linear_nvfp4(x, w, channel_mask=mask),
                        lambda: (*linear_operands(), a_mask(256))),
    "linear w4a16": (lambda o, x, w: o.linear_nvfp4(x, w, weight_only=True), linear_operands),
    "experts nvfp4": (lambda o, *t: o.grouped_experts(*t, "nvfp4"), experts_arguments),
    "experts fp8": (lambda o, *t: o.grouped_experts(*t, "fp8"), experts_arguments),
    "experts bf16": (lambda o, *t: o.grouped_experts(*t, "bf16"), experts_arguments),
    "weights nvfp4": (lambda o, w: o.fake_quantize_nvfp4(w, "weight"), lambda: (random(3, 64, 256),)),
    "weights fp8": (lambda o, w: o.fake_quantize_fp8(w, "weight"), lambda: (random(3, 64, 256),)),
    "rows": (lambda o, x: o.fake_quantize_nvfp4(x, "activation"), lambda: (random(300, 256),)),
    "mask": (lambda o, x: o.rac_mask(x, 0.5), lambda: (random(300, 256),)),
    "native rows": (lambda o, x, offsets, mask: o.native_fp4_rows(x, offsets, channel_mask=mask),
                    lambda: (random(64, 256), torch.tensor([64], dtype=torch.int32), a_mask(256))),
}


@pytest.mark.parametrize("name", LATE)
def test_results_are_right_on_a_stream_of_its_own(ops, name):
    """All that a call reads, weights and masks too, which a kernel may read before it waits for the one before it, is
    written on the same stream just before, behind enough work to be late."""
    call, make = LATE[name]
    sources = to_gpu(make())
    expected = call(ops, *sources)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        late = [torch.zeros_like(source) for source in sources]
        torch.cuda._sleep(20_000_000)
        for target, source in zip(late, sources):
            target.copy_(source)
        ours = call(ops, *late)
        torch.cuda.current_stream().synchronize()
    pairs = zip(ours, expected) if isinstance(ours, tuple) else [(ours, expected)]
    for a, b in pairs:
        assert torch.equal(as_bytes(a), as_bytes(b))


def test_workspace_is_pytorchs(ops):
    x, w = random(512, 1024).cuda(), random(512, 1024).cuda()
    ops.linear_nvfp4(x, w)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    y = ops.linear_nvfp4(x, w)
    assert torch.cuda.max_memory_allocated() - before > w.numel() // 2 + x.numel() * 2
    assert torch.cuda.memory_allocated() - before == y.numel() * 2


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda o: o.linear_nvfp4(random(4, 64).cuda(), random(8, 64)), "weight is on cpu.*cuda:0"),
        (lambda o: o.native_fp4_rows(random(5, 64).cuda(), torch.tensor([4], dtype=torch.int32).cuda()),
         "last offset is 4; there are 5 rows"),
        (lambda o: o.fake_quantize_nvfp4(random(2, 20480).cuda(), "activation"), "at most 16384"),
        (lambda o: o.grouped_experts(*to_gpu(experts_arguments()), "w16a4",
                                     gate_up_mask=torch.ones(128, dtype=torch.bool).cuda()), "only NVFP4 weights"),
        (lambda o: o.dequantize_nvfp4(torch.zeros(4, 32, dtype=torch.uint8).cuda(),
                                      torch.full((4, 4), -1.0).to(E4M3).cuda(), torch.tensor(1.0).cuda()),
         "row 0 has a block scale that is negative"),
        (lambda o: o.quantize_nvfp4(torch.full((2, 16), 3.38e38).cuda()), "rounds beyond BF16"),
    ],
)
def test_errors_say_what_is_wrong(ops, call, message):
    with pytest.raises(RuntimeError, match=message):
        call(ops)
