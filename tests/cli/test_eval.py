"""quads eval."""

import json

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
        "--eval-data", tmp_path / "eval.jsonl", "--task-option", "stop=$",
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


def test_wrong_usage_ends_with_2_and_failures_with_1(quads, base, tmp_path):
    assert "--k" in quads("eval", "--model", base, *TASK, "--k", "2", status=2).stderr
    assert "--model" in quads("eval", status=2).stderr
    assert "unknown precision" in quads(
        "eval", "--model", base, "--precision", "int3", status=1
    ).stderr
    missing = tmp_path / "missing"
    error = quads("eval", "--model", missing, status=1).stderr
    assert str(missing) in error and error.count("\n") == 1
