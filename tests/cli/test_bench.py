"""quads bench: the figures are there and fit together; their size is the machine's business."""

import json
import pathlib
import re
import shutil
import signal
import subprocess
import time

import pytest


def rows(quads, *arguments):
    return json.loads(quads("bench", *arguments, "--threads", 1, "--json").stdout)["rows"]


def test_gemm_has_a_peer_beside_every_figure(quads):
    found = rows(quads, "gemm", "--m", 64)
    assert len(found) == 4 * 6
    for row in found:
        flops = 2 * row["M"] * row["N"] * row["K"]
        assert row["gflops"] == pytest.approx(flops / row["us"] / 1e3)
        assert row["x_aten"] > 0
        assert (row["x_aten"] == 1) == (row["kind"] == "aten bf16")


needs_gpu = pytest.mark.skipif(
    shutil.which("nvidia-smi") is None, reason="NOT TESTED: benchmarks on a GPU: there is none"
)


@needs_gpu
def test_gemm_on_a_gpu_is_beside_pytorch_and_the_floor(quads):
    found = rows(
        quads, "gemm", "--device", "cuda", "--model-shape", "demo", "--tokens", "8,64"
    )  # fmt: skip
    own = ["nvfp4", "nvfp4-rac50", "nvfp4-rac100", "nvfp4-rac100:floor", "fp8", "bf16"]
    peers = ["torch fp8", "torch bf16"]
    for product in ("gate_up", "down", "layer"):
        for tokens in (8, 64):
            cells = [r for r in found if (r["product"], r["tokens"]) == (product, tokens)]
            kinds = {row["kind"]: row for row in cells}
            assert list(kinds) == (own if product == "layer" else own + peers)
            for kind, row in kinds.items():
                assert row["of_floor"] == pytest.approx(row["floor_us"] / row["us"])
                assert (row["overlapped_us"] is None) == (kind in peers)
                timed = kind in own and product != "layer"
                assert (row["quantise_us"] is not None) == timed
                assert (row["both_us"] is not None) == timed
                if product == "layer":
                    continue
                for peer, figure in zip(peers, ("x_torch_fp8", "x_torch_bf16")):
                    assert row[figure] == pytest.approx(kinds[peer]["us"] / row["us"])


def test_rollout_is_relative_to_bf16(quads):
    found = rows(
        quads, "rollout", "--batch", 8, "--response-len", 4, "--repeats", 1,
        "--precision", "bf16,nvfp4",
    )  # fmt: skip
    assert [(row["precision"], row["batch"]) for row in found] == [("bf16", 8), ("nvfp4", 8)]
    assert found[1]["x_bf16"] == pytest.approx(found[1]["tokens_per_s"] / found[0]["tokens_per_s"])


def test_train_parts_add_up_to_the_step(quads):
    found = rows(quads, "train", "--recipes", "bf16,quads", "--steps", 2, "--response-len", 4)
    for row in found:
        assert row["rollout_s"] + row["train_s"] + row["sync_s"] <= row["step_s"] * 1.001
    assert found[0]["x_bf16"] == 1


@needs_gpu
def test_steps_on_a_gpu_have_a_gap_of_zero_where_it_must_be(quads):
    found = rows(
        quads, "train", "--device", "cuda", "--model-shape", "demo", "--recipes",
        "quads:aten,quads-aligned", "--steps", 2, "--response-len", 16,
    )  # fmt: skip
    for row in found:
        parts = ("rollout_s", "forward_backward_s", "optimizer_s", "quantise_s")
        assert sum(row[part] for part in parts) == pytest.approx(row["step_s"])
        assert 0 < row["mfu"] < 1
    assert found[0]["gap_max"] > 0 and found[1]["gap_max"] == 0
    assert found[1]["x_first"] == pytest.approx(found[1]["step_s"] / found[0]["step_s"])


def test_options_of_the_other_device_are_refused(quads):
    for command in (("train", "--layers", 2), ("gemm", "--tokens", 8)):
        assert "it is for --device cuda" in quads("bench", *command, status=2).stderr
    error = quads("bench", "gemm", "--device", "cuda", "--m", 8, status=2).stderr
    assert "--m: it is for --device cpu" in error


def test_sync_is_beside_memcpy(quads):
    for row in rows(quads, "sync", "--precision", "bf16,nvfp4"):
        assert row["x_memcpy"] == pytest.approx(row["ms"] / row["memcpy_ms"])


def test_a_wider_scope_leaves_less_in_bf16(quads):
    def written(scope):
        found = rows(quads, "sync", "--precision", "bf16,nvfp4", "--quantize", scope)
        return {row["precision"]: row["written_mb"] for row in found}

    experts, linears = written("experts"), written("linears")
    assert linears["bf16"] == experts["bf16"]
    assert linears["nvfp4"] < 0.9 * experts["nvfp4"]


def test_threads_are_a_whole_number(quads, tmp_path):
    path = tmp_path / "b.json"
    table = quads("bench", "sync", "--precision", "bf16", "--threads", 1, "--json", path).stdout
    assert "\nthreads: 1\n" in table and '"threads": 1\n' in path.read_text()


def test_code_is_beside_the_start_of_python(quads):
    found = rows(quads, "code", "--programs", 4)
    assert [row["tests"] for row in found] == [1, 10]
    for row in found:
        assert row["tests_per_s"] == pytest.approx(row["programs_per_s"] * row["tests"])
        assert row["x_python"] == pytest.approx(row["programs_per_s"] / row["python_per_s"])


def test_a_stop_ends_with_130(quads):
    command = [quads.program, "bench", "rollout", "--repeats", "1000000", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while process.poll() is None:
        time.sleep(0.01)
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
        caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
        if caught >> (signal.SIGTERM - 1) & 1:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130


def test_bench_without_a_subject_is_wrong_usage(quads):
    quads("bench", status=2)
    assert "7b not in" in quads("bench", "sync", "--model-shape", "7b", status=2).stderr
