"""--device cuda where there is no GPU, or in a build without CUDA: one clear line."""

import shutil

import pytest
from small_task import TASK

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="there is a GPU")


def test_a_missing_gpu_is_told_before_anything_is_read(quads, tmp_path):
    none, out = tmp_path / "none", tmp_path / "out"
    for command in (
        ("rollout", "--prompts", none, "--out", out, "--model", none),
        ("eval", "--model", none),
        ("train", "--out", out, "--load", none),
    ):
        error = quads(*command, "--device", "cuda", status=1).stderr
        assert error.startswith("quads: --device cuda: ") and error.count("\n") == 1


def test_a_missing_gpu_is_one_line_and_leaves_nothing(quads, base, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1*2="}\n')
    out = tmp_path / "out"
    for command in (
        ("rollout", "--prompts", prompts, "--out", out, "--model", base),
        ("eval", *TASK, "--problems", 4, "--model", base),
        ("train", *TASK, "--num-rollout", 1, "--out", out, "--load", base),
        ("pretrain", *TASK, "--num-steps", 1, "--lr-warmup-steps", 0, "--out", out),
        ("bench", "gemm"),
        ("bench", "rollout", "--model-shape", "30b"),
        ("bench", "sync", "--model-shape", "30b"),
        ("bench", "train"),
    ):
        result = quads(*command, "--device", "cuda", status=1)
        assert result.stderr.strip().splitlines()[-1].startswith("quads: --device cuda: "), command
        assert not out.exists(), command


def test_what_does_not_run_on_a_gpu_says_so(quads, base, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "1*2="}\n')
    error = quads(
        "diagnose", "--model", base, "--prompts", prompts, "--device", "cuda", status=2
    ).stderr
    assert error == "quads: unknown option --device; see quads diagnose --help\n"
    error = quads(
        "eval", *TASK, "--problems", 4, "--model", base, "--precision", "fp32", "--device", "cuda",
        status=2,
    ).stderr  # fmt: skip
    assert error.startswith("quads: --precision fp32 is the CPU's reference")
