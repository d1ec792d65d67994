"""quads eval."""

import json
import signal
import subprocess

import pytest

from small_task import TASK


def test_figures_agree_with_the_samples_by_problem(quads, base, tmp_path):
    out, report = tmp_path / "by_problem.jsonl", tmp_path / "eval.json"
    # Problems that the base has seen, so that some answers are right, and some that have no answer.
    problems = [{"prompt": f"{a}*{a + 1}=", "label": f"{a * (a + 1)}"} for a in range(1, 9)]
    (tmp_path / "train.jsonl").write_text('{"prompt": "1*1=", "label": "1"}\n')
    (tmp_path / "eval.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in [*problems, {"prompt": "2*=", "label": "x"}])
    )
    result = quads(
        "eval", "--model", base, "--prompt-data", tmp_path / "train.jsonl",
        "--eval-data", tmp_path / "eval.jsonl",
        "--n-samples-per-prompt", 16,
        "--k", "1,16", "--temperature", 1.5, "--max-response-len", 12, "--precision", "bf16,nvfp4", "--precision", "nvfp4-rac25",
        "--out", out, "--json", report,
    )  # fmt: skip
    figures = json.loads(report.read_text())
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    names = ["bf16", "nvfp4", "nvfp4-rac25"]
    assert [e["precision"] for e in figures["evaluations"]] == names
    assert len(lines) == 3 * 9
    for evaluation in figures["evaluations"]:
        own = [line for line in lines if line["precision"] == evaluation["precision"]]
        share = sum(line["correct"] for line in own) / 144
        some = sum(line["correct"] > 0 for line in own) / 9
        assert evaluation["pass@1"]["mean"] == pytest.approx(share)
        assert evaluation["pass@k"]["16"]["mean"] == pytest.approx(some)
        low, high = evaluation["pass@1"]["low"], evaluation["pass@1"]["high"]
        assert low - 1e-9 <= share <= high + 1e-9 and high > low
        assert evaluation["precision"] in result.stdout
    assert 0 < figures["evaluations"][0]["pass@1"]["mean"] < 1


def test_samples_do_not_depend_on_threads_or_batch(quads, base, tmp_path):
    outs = []
    for threads, running in ((1, 64), (2, 3)):
        outs.append(tmp_path / f"{threads}.jsonl")
        quads(
            "eval", "--model", base, *TASK, "--problems", 10, "--max-response-len", 10,
            "--precision", "nvfp4", "--threads", threads, "--max-running", running,
            "--out", outs[-1],
        )  # fmt: skip
    assert outs[0].read_text() == outs[1].read_text()


def test_fp32_runs_the_reference(quads, base):
    result = quads(
        "eval", "--model", base, *TASK, "--problems", 3, "--max-response-len", 4,
        "--precision", "fp32", "--json",
    )  # fmt: skip
    assert json.loads(result.stdout)["evaluations"][0]["precision"] == "fp32"


def test_a_reader_that_has_seen_enough_is_no_error(quads, base):
    command = [quads.program, "eval", "--model", base, *TASK, "--problems", "2"]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    process.stdout.close()
    error = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert "quads: " not in error


def test_an_output_that_cannot_be_written_is_an_error(quads):
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [quads.program, "info"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 1
    assert result.stderr == "quads: standard output: No space left on device\n"


def test_ctrl_c_leaves_no_file(quads, base, tmp_path):
    out = tmp_path / "out.jsonl"
    command = [
        quads.program, "eval", "--model", base, *TASK, "--n-samples-per-prompt", 10_000, "--out",
        out, "--threads", 1,
    ]  # fmt: skip
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
    process.stderr.readline()  # the first samples are there
    process.send_signal(signal.SIGINT)
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert error.splitlines()[-1].startswith("quads: stopped") and not list(tmp_path.iterdir())


def test_a_problem_that_is_too_long_for_the_model_is_named(quads, base):
    error = quads("eval", "--model", base, *TASK, "--max-response-len", 1021, status=1).stderr
    assert error.startswith("quads: problem 0: the prompt's 4 tokens") and "= 1024" in error


def test_a_share_needs_a_precision_that_takes_it(quads, base):
    options = ["eval", "--model", base, *TASK, "--rac-ratio", 0.5]
    for names in ("bf16", "nvfp4-rac25", "bf16,nvfp4"):
        error = quads(*options, "--precision", names, status=2).stderr
        assert "--rac-ratio" in error and "nvfp4-rac" in error and names.split(",")[0] in error


def test_wrong_usage_ends_with_2_and_failures_with_1(quads, base, tmp_path):
    assert "--k" in quads("eval", "--model", base, *TASK, "--k", "2", status=2).stderr
    assert "--model" in quads("eval", status=2).stderr
    assert "unknown precision" in quads(
        "eval", "--model", base, "--precision", "int3", status=2
    ).stderr
    missing = tmp_path / "missing"
    error = quads("eval", "--model", missing, status=1).stderr
    assert str(missing) in error and error.count("\n") == 1


def test_one_file_for_two_outputs_is_refused(quads, base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for out, json_file in (("a.json", "a.json"), ("a.json", "./a.json"), (tmp_path / "a.json", "a.json")):
        error = quads("eval", "--model", base, *TASK, "--out", out, "--json", json_file, status=2).stderr
        assert f"--out {out} and --json {json_file}: one file for both" in error


def test_a_full_disk_does_not_lose_the_result(quads, base, small_disk):
    small_disk("16k")
    (small_disk.path / "full").write_bytes(bytes(12 << 10))
    result = quads(
        "eval", "--model", base, *TASK, "--n-samples-per-prompt", 8, "--out",
        small_disk.path / "a.jsonl", "--threads", 1, status=1,
    )  # fmt: skip
    assert "No space left" in result.stderr and "bf16" in result.stdout


@pytest.mark.parametrize("option", ["--out", "--json"])
def test_a_place_that_is_read_only_is_told_before_anything_is_read(quads, small_disk, tmp_path, option):
    small_disk("64k", "ro")
    file = small_disk.path / "a.json"
    error = quads("eval", "--model", tmp_path / "none", *TASK, option, file, status=1).stderr
    assert f"{file}: cannot be written: Read-only file system" in error


@pytest.mark.parametrize("value", ["1e-39", "-1"])
def test_a_temperature_that_logits_cannot_be_divided_by_is_wrong_usage(quads, tmp_path, value):
    error = quads("eval", "--model", tmp_path, f"--temperature={value}", status=2).stderr
    assert f"--temperature: {value} is neither 0 nor a number of at least 0.001" in error
