"""The trainer against PyTorch: gradients of the whole model by autograd, the optimizer by AdamW."""

import json
import subprocess

import numpy
import pytest
import torch
import transformers
from autograd_model import Model, Precision
from safetensors.torch import load_file, save_file
from test_model import CONFIGS, random_model

torch.set_num_threads(1)
RNG = numpy.random.default_rng(11)
# Lengths about a page of 16, prompts of one token and of all but one.
SEQUENCES = [
    dict(
        tokens=[int(t) for t in RNG.integers(0, 43, size=length)],
        prompt_length=prompt,
        dlogp=[float(x) for x in RNG.normal(size=length - prompt)],
    )
    for length, prompt in [(17, 4), (2, 1), (33, 1), (40, 39), (9, 5)]
]
TEMPERATURE = 0.7


@pytest.fixture(scope="session")
def trainer_tool(build_dir):
    program = build_dir / "tests" / "trainer" / "trainer_tool"
    if not program.exists():
        pytest.skip(f"{program} is not built (set QUADS_BUILD_DIR)")

    def run(**request):
        process = subprocess.run(
            [program], input=json.dumps(request, default=str), capture_output=True, text=True
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout) if process.stdout else None

    return run


@pytest.fixture
def our_gradients(trainer_tool, tmp_path):
    """(log-probs, gradients by name) of SEQUENCES."""

    def run(model, precision, sequences=SEQUENCES, **options):
        trainer_tool(
            function="gradients",
            model=model,
            precision=precision,
            sequences=sequences,
            temperature=TEMPERATURE,
            logprobs=tmp_path / "logprobs.f32",
            out=tmp_path / "gradients.safetensors",
            **options,
        )
        logprobs = torch.from_numpy(numpy.fromfile(tmp_path / "logprobs.f32", dtype=numpy.float32))
        return logprobs, load_file(tmp_path / "gradients.safetensors")

    return run


def masked_logprobs(logits_of, sequences=SEQUENCES):
    """Log-probs of the predicted tokens of the sequences, and sum dlogp logp."""
    logprobs, loss = [], 0.0
    for s in sequences:
        logits = logits_of(s["tokens"][:-1]) / TEMPERATURE
        chosen = logits.log_softmax(-1).gather(1, torch.tensor(s["tokens"][1:])[:, None])[:, 0]
        chosen = chosen[s["prompt_length"] - 1 :]
        loss = loss + (chosen * torch.tensor(s["dlogp"])).sum()
        logprobs.append(chosen.detach())
    return torch.cat(logprobs), loss


def leaves(directory):
    """The stored tensors as FP64 leaves."""
    tensors = load_file(directory / "model.safetensors")
    return {name: t.double().requires_grad_() for name, t in tensors.items()}


def autograd(config, directory, precision, sequences=SEQUENCES):
    """(log-probs, gradients, routing [sequences] as TrainSequence has it)."""
    weights = leaves(directory)
    model = Model(config, weights, precision)
    logprobs, loss = masked_logprobs(model.logits, sequences)
    loss.backward()
    gradients = {
        n: torch.zeros_like(w) if w.grad is None else w.grad for n, w in weights.items()
    }
    top_k = getattr(config, "num_experts_per_tok", 0)
    routing = [
        torch.stack(
            [torch.zeros(len(s["tokens"]) - 1, top_k) if ids is None else ids for ids in layers], 1
        )
        .int()
        .flatten()
        .tolist()
        for s, layers in zip(sequences, model.routing)
    ]
    return logprobs, gradients, routing


def relative_errors(ours, expected):
    assert ours.keys() == expected.keys()
    errors = {}
    for name, reference in expected.items():
        norm = reference.norm().item()
        difference = (ours[name].double() - reference).norm().item()
        errors[name] = difference / norm if norm > 0 else difference  # an idle expert: exactly 0
    return errors


def assert_close(ours, expected, bound):
    errors = relative_errors(ours, expected)
    worst = max(errors, key=errors.get)
    assert errors[worst] < bound, (worst, errors[worst])


def with_routing(routing, sequences=SEQUENCES):
    return [s | dict(routing=r) for s, r in zip(sequences, routing)]


def untouched_sequences(difference):
    """Those whose log-probs all agree. FP32 sums against FP64: where a sum lies next to a rounding
    boundary, the neighbour is taken, a four-bit code may move, and all that follows in that sequence
    with it; elsewhere nothing is left."""
    lengths = [len(s["dlogp"]) for s in SEQUENCES]
    return [s for s, d in zip(SEQUENCES, difference.split(lengths)) if d.max() < 1e-5]


def stored_gradients(model, directory):
    """A model's gradients under the names of the files' tensors (which split the fused experts)."""
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.grad)
    model.save_pretrained(directory)
    return {n: t.double() for n, t in load_file(directory / "model.safetensors").items()}


@pytest.fixture(params=CONFIGS)
def saved(request, tmp_path):
    """(configuration, transformers' model, its directory)."""
    config = CONFIGS[request.param]
    model = random_model(config, seed=2)
    directory = tmp_path / request.param
    model.save_pretrained(directory)
    return config, model, directory


def test_the_autograd_model_has_transformers_gradients(saved, tmp_path):
    """The yardstick of the tests below, in FP64, itself held against transformers in FP32."""
    config, model, directory = saved
    _, loss = masked_logprobs(lambda tokens: model(torch.tensor([tokens])).logits[0])
    loss.backward()
    expected = stored_gradients(model, tmp_path / "gradients")
    _, gradients, _ = autograd(config, directory, Precision(exact=True))
    assert_close(gradients, expected, 1e-4)


def test_bf16_gradients_are_nearer_to_fp32_than_transformers_in_bf16(
    saved, our_gradients, tmp_path
):
    config, _, directory = saved
    expected_logprobs, expected, routing = autograd(config, directory, Precision(exact=True))
    in_bf16 = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.bfloat16)
    _, loss = masked_logprobs(lambda tokens: in_bf16(torch.tensor([tokens])).logits[0].float())
    loss.backward()
    theirs = relative_errors(stored_gradients(in_bf16, tmp_path / "theirs"), expected)
    logprobs, gradients = our_gradients(directory, "bf16", with_routing(routing))
    ours = relative_errors(gradients, expected)
    assert (logprobs - expected_logprobs).abs().max() < 0.1
    assert numpy.median(list(ours.values())) < numpy.median(list(theirs.values()))
    # Without a norm of queries and keys the scores are larger, and their errors with them.
    normed = any("q_norm" in name for name in expected)
    assert max(ours.values()) < (4e-2 if normed else 8e-2)


FORMATS = {
    "bf16": dict(),
    "w4a16": dict(weights="nvfp4"),
    "w16a4": dict(activations="nvfp4"),
    "nvfp4": dict(weights="nvfp4", activations="nvfp4"),
    "fp8": dict(weights="fp8", activations="fp8"),
    "nvfp4-rac": dict(weights="nvfp4", activations="nvfp4"),
}


def site_widths(config, layer, model, linears):
    sparse = model.sparse(layer)
    hidden = config.hidden_size
    inner = config.intermediate_size
    if sparse:  # OLMoE and Mixtral call it intermediate_size
        inner = getattr(config, "moe_intermediate_size", inner)
    shared = config.shared_expert_intermediate_size if model.shared(layer) else 0
    widths = [hidden, config.num_attention_heads * model.head_dim, hidden, inner, shared]
    return [w if linears or (sparse and s in (2, 3)) else 0 for s, w in enumerate(widths)]


def random_masks(config, linears, granularity, ratio):
    rng = numpy.random.default_rng(5)
    model = Model(config, {}, None)
    masks = []
    for layer in range(config.num_hidden_layers):
        for width in site_widths(config, layer, model, linears):
            unit = 16 if granularity == "block" else 1
            units = numpy.zeros(width // unit, dtype=int)
            units[rng.permutation(len(units))[: int(numpy.ceil(ratio * len(units)))]] = 1
            masks.append(numpy.repeat(units, unit).tolist())
    return masks


@pytest.mark.parametrize(
    "name, quantize",
    [("bf16", "experts")] + [(n, q) for n in FORMATS if n != "bf16" for q in ("experts", "linears")],
)
def test_straight_through_gradients_equal_autograd_with_the_same_rounding(
    saved, our_gradients, name, quantize
):
    config, _, directory = saved
    linears = quantize == "linears"
    options, masks = {}, None
    if name == "nvfp4-rac":
        granularity = "block" if linears else "channel"
        masks = random_masks(config, linears, granularity, 0.5)
        options = dict(ratio=0.5, granularity=granularity, masks=masks)
        masks = [m or None for m in masks]
    precision = Precision(**FORMATS[name], linears=linears, masks=masks)
    expected_logprobs, expected, routing = autograd(config, directory, precision)
    logprobs, ours = our_gradients(
        directory, name, with_routing(routing), quantize=quantize, **options
    )
    difference = (logprobs - expected_logprobs).abs()
    assert difference.quantile(0.2) < 2e-6
    same = untouched_sequences(difference)
    assert len(same) >= 2
    if len(same) < len(SEQUENCES):
        _, expected, routing = autograd(config, directory, precision, same)
        _, ours = our_gradients(
            directory, name, with_routing(routing, same), quantize=quantize, **options
        )
    # Operands of the backward's products are BF16: 2^-9 each, of either sign.
    assert_close(ours, expected, 1e-2)


def test_compensation_masks_decide_the_gradients(saved, our_gradients):
    """What the test above rests on: other masks are seen."""
    config, _, directory = saved
    masks = random_masks(config, True, "channel", 0.5)
    flipped = [[1 - m for m in mask] for mask in masks]
    request = dict(quantize="linears", ratio=0.5, granularity="channel")
    _, expected = our_gradients(directory, "nvfp4-rac", masks=masks, **request)
    _, other = our_gradients(directory, "nvfp4-rac", masks=flipped, **request)
    assert numpy.median(list(relative_errors(other, expected).values())) > 2e-2


@pytest.mark.parametrize("quantize", ["experts", "linears"])
def test_high_precision_layers_are_left_alone(saved, our_gradients, quantize):
    config, _, directory = saved
    last = config.num_hidden_layers - 1
    request = dict(quantize=quantize, first=1, last=last)
    _, ours = our_gradients(directory, "nvfp4", **request)
    _, bf16 = our_gradients(directory, "bf16")
    assert all(torch.equal(ours[name], bf16[name]) for name in bf16)


ADAMW = dict(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, max_grad_norm=1.0)


def optimise(trainer_tool, tmp_path, saved, **options):
    """Ours and torch.optim.AdamW's masters after four updates with the same gradients."""
    config, _, directory = saved
    generator = torch.Generator().manual_seed(4)
    weights = {
        n: t.clone().requires_grad_() for n, t in load_file(directory / "model.safetensors").items()
    }
    norms = [t for n, t in weights.items() if t.dim() == 1]
    matrices = [t for n, t in weights.items() if t.dim() == 2]
    settings = ADAMW | options
    optimizer = torch.optim.AdamW(
        [
            dict(params=matrices, weight_decay=settings["weight_decay"]),
            dict(params=norms, weight_decay=0.0),
        ],
        betas=(settings["beta1"], settings["beta2"]),
        eps=settings["eps"],
    )
    files, their_norms = [], []
    lrs, sizes = [1e-2, 5e-3, 5e-3, 1e-3], [1e-3, 3.0, 1e-2, 1e-4]  # below and above the clip
    scale = settings.get("grad_scale", 1.0)
    for step, (lr, size) in enumerate(zip(lrs, sizes)):
        gradients = {
            n: size * torch.randn(t.shape, generator=generator) for n, t in weights.items()
        }
        files.append(tmp_path / f"{step}.safetensors")
        save_file(gradients, files[-1])
        for name, tensor in weights.items():
            tensor.grad = gradients[name] * scale
        limit = settings["max_grad_norm"] or float("inf")
        their_norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), limit).item())
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    (tmp_path / "out").mkdir(exist_ok=True)
    norms = trainer_tool(
        function="optimise",
        model=directory,
        grads=files,
        lrs=lrs,
        out=tmp_path / "masters.safetensors",
        model_out=tmp_path / "out",
        **settings,
    )
    published = load_file(tmp_path / "out" / "model.safetensors")
    masters = load_file(tmp_path / "masters.safetensors")
    return masters, published, {n: t.detach() for n, t in weights.items()}, norms, their_norms


@pytest.mark.parametrize(
    "options",
    [dict(), dict(max_grad_norm=0.0), dict(grad_scale=0.125), dict(weight_decay=0.0, threads=2)],
    ids=["clipped", "unclipped", "scaled", "no decay, two threads"],
)
def test_updates_equal_adamw(saved, trainer_tool, tmp_path, options):
    masters, published, expected, norms, their_norms = optimise(
        trainer_tool, tmp_path, saved, **options
    )
    assert norms == pytest.approx(their_norms, rel=1e-5)
    for name, tensor in expected.items():
        # Four updates of at most 1e-2 a step; FP32 rounding of the weight and of the update.
        torch.testing.assert_close(masters[name], tensor, rtol=1e-6, atol=2e-7, msg=name)
        assert torch.equal(published[name], masters[name].bfloat16()), name


def test_bf16_masters_are_the_parameters(saved, trainer_tool, tmp_path):
    masters, published, expected, _, _ = optimise(trainer_tool, tmp_path, saved, bf16_masters=True)
    for name, tensor in expected.items():
        assert torch.equal(masters[name], published[name].float()), name
        # Rounded four times, by at most half a unit in the last place of BF16 each.
        bound = 4 * 2**-8 * tensor.abs().max().item() + 1e-4
        assert (masters[name] - tensor).abs().max() < bound, name
    assert any(not torch.equal(masters[n], t) for n, t in expected.items())
