"""quads quantize, and rolling out from what it wrote."""

import json

import pytest
import torch
from safetensors.torch import load_file

from small_task import TASK
from test_rollout import read_lines, write_lines

NVFP4 = ("nvfp4-modelopt", "nvfp4-compressed-tensors")


def quantised(quads, base, out, format, *options):
    quads("quantize", "--model", base, "--format", format, "--out", out, *options)
    return out


@pytest.mark.parametrize("format", NVFP4)
def test_rolling_out_from_the_files_codes_is_rolling_out_from_the_model(
    quads, base, tmp_path, format
):
    checkpoint = quantised(quads, base, tmp_path / "q", format, "--weights-only")
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}, {"prompt": "3*4="}])
    for precision in ("w4a16", "nvfp4", "nvfp4-rac50"):
        options = ["--prompts", prompts, "--precision", precision, "--n-samples-per-prompt", 4]
        outs = [tmp_path / f"{precision}-{i}.jsonl" for i in range(2)]
        quads("rollout", "--model", base, "--out", outs[0], *options)
        quads("rollout", "--model", checkpoint, "--out", outs[1], *options, "--weights-as-stored")
        assert read_lines(outs[0]) == read_lines(outs[1])


def test_every_format_evaluates(quads, base, tmp_path):
    for format in (*NVFP4, "fp8"):
        options = [] if format == "fp8" else ["--weights-only"]
        checkpoint = quantised(quads, base, tmp_path / format, format, *options)
        assert (checkpoint / "tokenizer.json").read_bytes() == (
            base / "tokenizer.json"
        ).read_bytes()
        quads("eval", "--model", checkpoint, *TASK, "--problems", 4)


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def dequantised(tensors, module):
    """The module's weight as its format says, FP32 products rounded once to BF16."""
    scale = tensors.get(f"{module}.weight_scale")
    if scale is None:  # FP8: blocks of 128 x 128
        weight = tensors[f"{module}.weight"].float()
        blocks = tensors[f"{module}.weight_scale_inv"]
        rows, cols = (torch.arange(n) // 128 for n in weight.shape)
        return (weight * blocks[rows][:, cols]).bfloat16()
    if f"{module}.weight_packed" in tensors:
        codes = tensors[f"{module}.weight_packed"]
        scale = scale.float() / tensors[f"{module}.weight_global_scale"]
    else:
        codes = tensors[f"{module}.weight"]
        scale = scale.float() * tensors[f"{module}.weight_scale_2"]
    codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(1).int()
    values = E2M1[codes & 7] * torch.where(codes & 8 > 0, -1.0, 1.0)
    return (values * scale.repeat_interleave(16, dim=1)).bfloat16()


@pytest.mark.parametrize("format", (*NVFP4, "fp8"))
def test_training_starts_from_the_dequantised_weights_and_goes_on_from_there(
    quads, base, tmp_path, format
):
    options = [] if format == "fp8" else ["--weights-only", "--global-scale", "amax"]
    checkpoint = quantised(quads, base, tmp_path / "q", format, *options)
    stored = load_file(checkpoint / "model.safetensors")
    ends = ".weight_scale_inv" if format == "fp8" else ".weight_scale"
    modules = [name.removesuffix(ends) for name in stored if name.endswith(ends)]
    assert len(modules) == 2 * 4 * 3

    def train(out, lr):
        quads(
            "train", "--load", checkpoint, "--out", out, *TASK, "--recipe", "quads-aligned", "--num-rollout", 2,
            "--rollout-batch-size", 8, "--n-samples-per-prompt", 4, "--rollout-max-response-len", 8,
            "--rollout-max-context-len", 32, "--rollout-temperature", 3, "--verify-interval", 1, "--lr", lr,
        )  # fmt: skip
        assert all(row["gap/verified_max"] == 0 for row in read_lines(out / "metrics.jsonl"))
        step = out / "checkpoints" / "step_000002"
        assert "quantization_config" not in json.loads((step / "config.json").read_text())
        return load_file(step / "model.safetensors")

    start = train(tmp_path / "still", 0)
    for module in modules:
        assert torch.equal(start[f"{module}.weight"], dequantised(stored, module))
    before = load_file(base / "model.safetensors")
    assert start.keys() == before.keys()
    changed = {name for name in before if not torch.equal(before[name], start[name])}
    assert changed == {f"{module}.weight" for module in modules}
    moved = train(tmp_path / "moving", 1e-3)
    assert any(not torch.equal(moved[name], start[name]) for name in start)


def test_input_scales_are_measured_on_prompts_for_activations_in_nvfp4(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}, {"prompt": "3*4="}])
    checkpoint = quantised(quads, base, tmp_path / "q", NVFP4[1], "--prompts", prompts)
    config = json.loads((checkpoint / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["input_activations"]["dynamic"] == "local"
    tensors = load_file(checkpoint / "model.safetensors")
    scales = {n: t.item() for n, t in tensors.items() if n.endswith("input_global_scale")}
    assert len(scales) == 2 * 4 * 3 and all(0 < s < float("inf") for s in scales.values())
    quads("eval", "--model", checkpoint, *TASK, "--problems", 4)
    for arguments, says in (
        ([NVFP4[1]], "add --prompts F.jsonl, or --weights-only"),
        ([NVFP4[1], "--weights-only", "--prompts", prompts], "leave --prompts out"),
        (["fp8", "--prompts", prompts], "--format fp8 has no input scales"),
    ):
        command = ["quantize", "--model", base, "--out", tmp_path / "r", "--format", *arguments]
        assert says in quads(*command, status=2).stderr
    assert not (tmp_path / "r").exists()


def test_asking_for_stored_weights_that_are_not_there_is_an_error(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}])
    arguments = ["--prompts", prompts, "--out", tmp_path / "o.jsonl", "--weights-as-stored"]
    error = quads("rollout", "--model", base, *arguments, status=1).stderr
    assert "not quantised" in error
    checkpoint = quantised(quads, base, tmp_path / "q", NVFP4[0], "--weights-only")
    error = quads("rollout", "--model", checkpoint, *arguments, status=1).stderr
    assert "precision bf16" in error
    error = quads(
        "rollout", "--model", checkpoint, *arguments, "--precision", "w4a16", "--quantize",
        "linears", status=1,
    ).stderr  # fmt: skip
    assert "stores it unquantised" in error


def test_wrong_use_leaves_nothing(quads, base, tmp_path):
    out = tmp_path / "q"
    arguments = ["quantize", "--model", base, "--out", out, "--format"]
    quads(*arguments, "gguf", status=2)
    quads(*arguments, "fp8", "--weights-only", status=2)
    assert "--exclude" in quads(*arguments, NVFP4[0], "--weights-only", "--exclude", "re:(", status=2).stderr
    error = quads(*arguments, NVFP4[0], "--weights-only", "--exclude", "*.q_prj", status=1).stderr
    assert "no such module" in error
    assert not list(tmp_path.iterdir())
    (tmp_path / ".tmp-q-1").mkdir()  # of a process that was killed
    quantised(quads, base, out, NVFP4[0], "--weights-only")
    assert list(tmp_path.iterdir()) == [out]
    config = json.loads((out / "config.json").read_text())
    assert config["quantization_config"]["quant_algo"] == "W4A16_NVFP4"
    assert "exists" in quads(*arguments, NVFP4[0], "--weights-only", status=1).stderr
