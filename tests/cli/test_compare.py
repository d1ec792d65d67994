"""quads compare and quads report."""

import json

import pytest

from small_task import TASK


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(
        """task-option = ["first_digits=1", "second_digits=1"]
num-rollout = 3
rollout-batch-size = 4
n-samples-per-prompt = 4
rollout-max-response-len = 8
eval-problems = 8
max-running = 16
"""
    )
    return path


def test_recipes_variants_and_a_sweep_give_runs_a_table_and_a_report(
    quads, base, config, tmp_path
):
    out = tmp_path / "out"
    command = [
        "compare", "--config", config, "--load", base, "--out", out, "--recipes", "bf16,quads",
        "--k", "0,50", "--seeds", "1,2", "--variant", "nvfp4-tis=--recipe nvfp4 --use-tis",
        "--", "--lr", "2e-4",
    ]  # fmt: skip
    result = quads(*command)
    assert "runs 8/8" in result.stderr.splitlines()[-1]
    names = {"bf16", "quads-k0", "quads-k50", "nvfp4-tis"}
    assert {path.name for path in out.iterdir() if path.is_dir()} == names
    table = json.loads((out / "table.json").read_text())
    assert {recipe["recipe"] for recipe in table["recipes"]} == names
    for recipe in table["recipes"]:
        assert recipe["seeds"] == ["1", "2"]
        assert recipe["steps"] == {"min": 3, "max": 3}
    assert "report.html" in result.stdout and (out / "report.html").exists()
    for name in names:
        resolved = (out / name / "seed2" / "config.toml").read_text()
        assert "lr = 2e-4" in resolved and "seed = 2" in resolved

    # Again: everything is finished, so nothing is started.
    logs = {path: path.stat().st_mtime_ns for path in out.glob("*/*/log.txt")}
    quads(*command)
    assert logs == {path: path.stat().st_mtime_ns for path in out.glob("*/*/log.txt")}

    # Other options are not mixed with the old runs.
    error = quads(*command[:-1], "3e-4", status=1).stderr
    assert "other options" in error

    page = tmp_path / "page.html"
    assert str(page) in quads("report", out, "--out", page).stdout
    picture = tmp_path / "picture.svg"
    quads("report", out, "--out", picture)
    assert picture.read_text().startswith("<svg") and "<html" in page.read_text()
    assert "nvfp4-tis" in page.read_text()
    assert ".html" in quads("report", out, "--out", tmp_path / "page.pdf", status=2).stderr


def test_a_failing_run_is_reported_and_the_others_finish(quads, base, config, tmp_path):
    out = tmp_path / "out"
    result = quads(
        "compare", "--config", config, "--load", base, "--out", out, "--recipes", "bf16",
        "--variant", "bad=--recipe nvfp4 --rollout-max-context-len 2000", status=1,
    )  # fmt: skip
    assert "bad/seed1 failed" in result.stderr
    assert result.stderr.count("--rollout-max-context-len") == 1
    assert result.stderr.splitlines()[-1] == "quads: 1 of 2 runs failed (bad/seed1), each for the reason in its log.txt"
    assert json.loads((out / "table.json").read_text())["recipes"][0]["recipe"] == "bf16"


def test_wrong_requests_fail_before_anything_runs(quads, base, config, tmp_path):
    out = tmp_path / "out"
    assert "bf17 not in" in quads("compare", "--out", out, "--recipes", "bf17", status=2).stderr
    command = ["compare", "--config", config, "--load", base, "--out", out, "--recipes", "bf16"]
    for flags, message in (
        (["--", "--num-rolout", 1], "bf16/seed1: unknown option --num-rolout; see quads train --help"),
        (["--", "--lr", -1], "bf16/seed1: --lr is -1, expected a finite value of at least 0"),
        (["--variant", "a=--lr x"], "a/seed1: --lr: x is not a finite number in decimal"),
        (["--", "--lr", ""], "bf16/seed1: --lr: the value is empty"),
        (["--", "--threads", 4], "bf16/seed1: --threads is given 2 times: give it once"),
        (["--", "--help"], "bf16/seed1: --help is not a flag of a run"),
        (["--", "--resume"], "bf16/seed1: --resume: quads compare continues"),
        (["--variant", "a=--resume"], "a/seed1: --resume: quads compare continues"),
        (["--threads-per-run", 2000], "--threads-per-run: Value 2000 not in range"),
        (["--seeds", "1,08x"], "--seeds: 08x is not a whole number"),
        (["--", "--prompt-data", "p.jsonl"], f"(--task-option is set in {config})"),
    ):
        error = quads(*command, *flags, status=2).stderr
        assert message in error and error.count("\n") == 1
    resumes = tmp_path / "resumes.toml"
    resumes.write_text("resume = true\n")
    error = quads("compare", "--config", resumes, *command[3:], status=2).stderr
    assert "--resume: quads compare continues" in error and f"(--resume is set in {resumes})" in error
    assert not out.exists()
    assert "no run" in quads("report", tmp_path, "--out", tmp_path / "r.html", status=1).stderr


@pytest.mark.parametrize("option, value", [
    ("--recipes", "bf16,quads"), ("--k", "0,50"), ("--seeds", "1,2"),
    ("--variant", "a=--recipe bf16"),
])  # fmt: skip
def test_flags_of_train_may_follow_any_list(quads, tmp_path, option, value):
    result = quads("compare", "--out", tmp_path / "out", "--load", tmp_path / "none",
                   "--variant", "b=--recipe bf16", option, value, "--", "--lr", "1e-3", status=1)  # fmt: skip
    assert "there is no such model directory" in result.stderr


@pytest.mark.parametrize("flags", [["--config", "CONFIG"], ["--config=CONFIG"]])
def test_a_changed_configuration_among_the_flags_is_noticed(quads, base, config, tmp_path, flags):
    own = tmp_path / "own.toml"
    command = [
        "compare", "--load", base, "--out", tmp_path / "out", "--recipes", "bf16", "--seeds", "010", "--",
        *[flag.replace("CONFIG", str(own)) for flag in flags],
    ]  # fmt: skip
    own.write_text(config.read_text() + "lr = 1e-4\n")
    quads(*command)
    assert (tmp_path / "out" / "bf16" / "seed10").exists()
    own.write_text(config.read_text() + "lr = 2e-4\n")
    assert "other options" in quads(*command, status=1).stderr


def test_a_file_in_the_place_of_the_folder_is_one_line(quads, base, config, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    for out in (file, file / "o"):
        for command in (["train"], ["compare", "--recipes", "bf16"]):
            error = quads(*command, "--config", config, "--load", base, "--out", out, status=1).stderr
            assert error == f"quads: --out {out}: {file} is a file: choose a folder\n"


def test_a_command_that_never_took_a_step_may_be_corrected(quads, base, config, tmp_path):
    out = tmp_path / "out"
    command = ["compare", "--config", config, "--load", base, "--out", out, "--recipes", "bf16"]
    quads(*command, "--", "--rollout-max-context-len", 2000, status=1)  # more than the model has
    quads(*command, "--", "--num-rollout", 1)
    assert "other options" in quads(*command, "--", "--num-rollout", 2, status=1).stderr
