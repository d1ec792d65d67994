"""src/rl against independent PyTorch formulas on padded batches, with gradients from autograd.

The formulas below are written from the papers and in the masked [batch, length] form that verl uses,
not in the flat form of src/rl. The program rl_tool runs ours.
"""

import itertools
import json
import subprocess

import pytest
import torch

LENGTHS = [3, 1, 7, 4]
NUM_TOKENS = sum(LENGTHS)
MAX_LENGTH = 9


@pytest.fixture(scope="session")
def rl_tool(build_dir):
    program = build_dir / "tests" / "rl" / "rl_tool"
    if not program.exists():
        pytest.skip(f"{program} is not built (set QUADS_BUILD_DIR)")

    def run(function, **inputs):
        process = subprocess.run(
            [program],
            input=json.dumps({"function": function, **inputs}),
            capture_output=True,
            text=True,
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout)

    return run


def flat(padded):
    """The response tokens of [batch, length], sequence after sequence, as FP32 values."""
    return [value for row, n in zip(padded.tolist(), LENGTHS) for value in row[:n]]


@pytest.fixture(scope="module")
def batch():
    generator = torch.Generator().manual_seed(7)
    shape = (len(LENGTHS), max(LENGTHS))

    def noise(scale):
        return scale * torch.randn(shape, generator=generator)

    mask = torch.arange(shape[1]) < torch.tensor(LENGTHS)[:, None]
    old = -torch.rand(shape, generator=generator) * 3 - 0.05
    # FP32 values, so that both sides start from the same numbers; arithmetic is in FP64.
    values = {
        "logprobs": old + noise(0.35),
        "old": old,
        "rollout": old + noise(0.7),
        "ref": old + noise(0.5),
        "advantages": torch.tensor([1.25, -0.5, -1.75, 0.8])[:, None].expand(shape),
        "token_advantages": noise(1.0),
    }
    return {"mask": mask, **{name: value.double() for name, value in values.items()}}


def masked_sum(values, mask):
    return torch.where(mask, values, 0.0).sum(dim=-1)


def aggregate(losses, mask, aggregation):
    sums = masked_sum(losses, mask)
    if aggregation == "token-mean":
        return sums.sum() / mask.sum()
    if aggregation == "sequence-mean":
        return (sums / mask.sum(dim=-1)).mean()
    return (sums / MAX_LENGTH).mean()


def surrogate(batch, logprobs, advantages, ratio, low, high):
    mask = batch["mask"]
    log_ratio = logprobs - batch["old"]
    if ratio == "sequence":
        log_ratio = (masked_sum(log_ratio, mask) / mask.sum(dim=-1))[:, None].expand_as(log_ratio)
    r = log_ratio.clamp(-20, 20).exp()
    return -torch.minimum(r * advantages, r.clamp(1 - low, 1 + high) * advantages), r


def kl_divergence(logprobs, ref, estimator):
    d = logprobs - ref
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d**2 / 2
    k3 = (-d).clamp(-20, 20).exp() - 1 + d.clamp(-20, 20)
    return k3.clamp(-10, 10) if estimator == "low_var_kl" else k3


def is_weights(batch, kind, level, low, high):
    """Weights of the policy loss and the mask of the tokens that stay in the loss."""
    mask = batch["mask"]
    log_w = batch["old"] - batch["rollout"]
    if level != "token":
        sums = masked_sum(log_w, mask)
        per_sequence = sums if level == "sequence" else sums / mask.sum(dim=-1)
        log_w = per_sequence[:, None].expand_as(log_w)
    w = log_w.clamp(-20, 20).exp()
    inside = (w >= low) & (w <= high)
    if kind == "tis":
        return w.clamp(low, high), torch.ones_like(mask), inside
    if kind == "mis":
        return w * inside, inside, inside
    return w * inside, torch.ones_like(mask), inside


def ours(rl_tool, batch, token_advantages=False, **options):
    inputs = {
        "logprobs": flat(batch["logprobs"]),
        "old_logprobs": flat(batch["old"]),
        "rollout_logprobs": flat(batch["rollout"]),
        "ref_logprobs": flat(batch["ref"]),
        "sequence_offsets": [0, *itertools.accumulate(LENGTHS)],
        "num_tokens": NUM_TOKENS,
        "num_sequences": len(LENGTHS),
        "max_response_length": MAX_LENGTH,
    }
    if token_advantages:
        inputs["token_advantages"] = flat(batch["token_advantages"])
    else:
        inputs["sequence_advantages"] = batch["advantages"][:, 0].tolist()
    return rl_tool("policy_loss", **inputs, **options)


def expect_equal(result, loss, logprobs, batch):
    loss.backward()
    assert result["loss"] == pytest.approx(loss.item(), rel=1e-12, abs=1e-13)
    assert result["grad"] == pytest.approx(flat(logprobs.grad), rel=1e-6, abs=1e-9)


ALGORITHMS = {
    "grpo": dict(ratio="token", aggregation="sequence-mean", eps_clip=0.2, eps_clip_high=0.2),
    "grpo-token-mean": dict(ratio="token", aggregation="token-mean", eps_clip=0.2, eps_clip_high=0.2),
    "dapo": dict(ratio="token", aggregation="token-mean", eps_clip=0.2, eps_clip_high=0.28),
    "dr-grpo": dict(ratio="token", aggregation="constant", eps_clip=0.2, eps_clip_high=0.2),
    "gspo": dict(ratio="sequence", aggregation="sequence-mean", eps_clip=0.03, eps_clip_high=0.04),
    "gspo-token-mean": dict(ratio="sequence", aggregation="token-mean", eps_clip=0.2, eps_clip_high=0.2),
}


@pytest.mark.parametrize("token_advantages", [False, True], ids=["sequence-A", "token-A"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_loss_and_gradient_equal_autograd(rl_tool, batch, name, token_advantages):
    options = ALGORITHMS[name]
    advantages = batch["token_advantages" if token_advantages else "advantages"]
    logprobs = batch["logprobs"].clone().requires_grad_()
    losses, r = surrogate(
        batch, logprobs, advantages, options["ratio"], options["eps_clip"], options["eps_clip_high"]
    )
    loss = aggregate(losses, batch["mask"], options["aggregation"])
    result = ours(rl_tool, batch, token_advantages, **options)
    expect_equal(result, loss, logprobs, batch)

    mask = batch["mask"]
    clipped = -r.clamp(1 - options["eps_clip"], 1 + options["eps_clip_high"]) * advantages > -r * advantages
    assert 0 < clipped[mask].sum() < NUM_TOKENS  # the case has both kinds
    assert result["clip_fraction"] == pytest.approx(clipped[mask].double().mean().item())
    assert result["ratio_mean"] == pytest.approx(r[mask].mean().item())
    assert result["ratio_max"] == pytest.approx(r[mask].max().item())
    log_ratio = (batch["logprobs"] - batch["old"])[mask]
    assert result["approx_kl"] == pytest.approx((log_ratio.exp() - 1 - log_ratio).mean().item())


@pytest.mark.parametrize("ref_shift", [0.0, 3.0, -12.0])
@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean", "constant"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "low_var_kl"])
def test_kl_term_equals_autograd(rl_tool, batch, estimator, aggregation, ref_shift):
    shifted = {**batch, "ref": (batch["ref"] + ref_shift).float().double()}
    logprobs = batch["logprobs"].clone().requires_grad_()
    losses, _ = surrogate(batch, logprobs, batch["advantages"], "token", 0.2, 0.2)
    kl = kl_divergence(logprobs, shifted["ref"], estimator)
    loss = aggregate(losses, batch["mask"], aggregation) + 0.05 * aggregate(
        kl, batch["mask"], aggregation
    )
    result = ours(rl_tool, shifted, kl=estimator, kl_coef=0.05, aggregation=aggregation)
    expect_equal(result, loss, logprobs, batch)


CORRECTIONS = [
    ("tis", "token", 0.0, 2.0),
    ("tis", "sequence", 0.0, 2.0),
    ("tis", "token", 0.5, 1.5),
    ("mis", "token", 0.5, 2.0),
    ("mis", "sequence", 0.4, 2.5),
    ("mis", "geometric", 0.9, 1.1),
    ("icepop", "token", 0.5, 2.0),
]


@pytest.mark.parametrize("ratio", ["token", "sequence"])
@pytest.mark.parametrize("kind, level, low, high", CORRECTIONS)
def test_correction_equals_autograd_with_constant_weights(
    rl_tool, batch, kind, level, low, high, ratio
):
    mask = batch["mask"]
    weights, in_loss, inside = is_weights(batch, kind, level, low, high)
    logprobs = batch["logprobs"].clone().requires_grad_()
    losses, _ = surrogate(batch, logprobs, batch["advantages"], ratio, 0.2, 0.28)
    kl = kl_divergence(logprobs, batch["ref"], "k3") * in_loss
    loss = aggregate(losses * weights, mask, "token-mean") + 0.1 * aggregate(kl, mask, "token-mean")
    result = ours(
        rl_tool,
        batch,
        ratio=ratio,
        eps_clip=0.2,
        eps_clip_high=0.28,
        aggregation="token-mean",
        kl="k3",
        kl_coef=0.1,
        correction=kind,
        correction_level=level,
        low=low,
        high=high,
    )
    expect_equal(result, loss, logprobs, batch)

    outside = (~inside)[mask].double().mean().item()
    assert 0 < outside < 1  # the case has both kinds
    name = "truncated_fraction" if kind == "tis" else "masked_fraction"
    assert result[name] == pytest.approx(outside)
    w = weights[mask]
    assert result["ess"] == pytest.approx((w.sum() ** 2 / (NUM_TOKENS * (w**2).sum())).item())


@pytest.mark.parametrize("divide_by_std", [True, False], ids=["grpo", "dr-grpo"])
def test_advantages_equal_torch_std(rl_tool, divide_by_std):
    rewards = torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    rewards[2] = 0.1  # equal rewards
    expected = rewards.double() - rewards.double().mean(dim=1, keepdim=True)
    if divide_by_std:
        expected = expected / (rewards.double().std(dim=1, keepdim=True) + 1e-6)
    expected[2] = 0
    result = rl_tool(
        "advantages", rewards=rewards.flatten().tolist(), group_size=8, divide_by_std=divide_by_std
    )
    assert result == pytest.approx(expected.flatten().tolist(), rel=1e-6, abs=1e-12)
    assert result[16:24] == [0.0] * 8


def test_gap_equals_torch(rl_tool):
    generator = torch.Generator().manual_seed(5)
    rollout = -torch.rand(1000, generator=generator) * 5
    train = rollout + 0.3 * torch.randn(1000, generator=generator)
    delta = (rollout.double() - train.double()).abs()
    log_w = train.double() - rollout.double()
    w = log_w.exp()
    result = rl_tool("gap", rollout_logprobs=rollout.tolist(), train_logprobs=train.tolist())
    assert result["max"] == delta.max().item()
    assert result["mean"] == pytest.approx(delta.mean().item(), rel=1e-13)
    assert result["p99"] == torch.quantile(delta, 0.99, interpolation="lower").item()
    assert result["kl_k3"] == pytest.approx((w - 1 - log_w).mean().item(), rel=1e-12)
    assert result["ess"] == pytest.approx((w.sum() ** 2 / (1000 * (w**2).sum())).item(), rel=1e-12)


@pytest.mark.parametrize("k", [1, 3, 16])
def test_pass_at_k_equals_binomials(rl_tool, k):
    n, correct = 16, torch.arange(17)

    def choose(n, k):
        n, k = n.double(), torch.tensor(float(k), dtype=torch.float64)
        log = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
        return torch.where(n >= k, log.exp(), 0.0)

    expected = 1 - choose(n - correct, k) / choose(torch.tensor(n), k)
    result = rl_tool("pass_at_k", correct=correct.tolist(), n=n, k=k)
    assert result["mean"] == pytest.approx(expected.mean().item())
    assert result["standard_error"] == pytest.approx((expected.std() / 17**0.5).item())


@pytest.mark.parametrize("decay", ["cosine", "linear"])
def test_learning_rate_equals_torch_schedulers(rl_tool, decay):
    warmup, total, lr = 4, 20, 3e-4
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    rise = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / warmup, 1.0, total_iters=warmup - 1)
    if decay == "cosine":
        fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - warmup, eta_min=1e-5)
    else:
        fall = torch.optim.lr_scheduler.LinearLR(
            optimizer, 1.0, 1e-5 / lr, total_iters=total - warmup
        )
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [rise, fall], [warmup])
    expected = []
    for _ in range(total + 1):
        expected.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    result = rl_tool(
        "learning_rate",
        decay=decay,
        lr=lr,
        min_lr=1e-5,
        warmup_steps=warmup,
        total_steps=total,
        steps=total + 1,
    )
    assert result == pytest.approx(expected, rel=1e-9)
