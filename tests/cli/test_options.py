"""Options' values: what cannot be right whatever the files hold is wrong usage, before any is read."""

import re

import pytest

# A command line that is right but for the files that it names, of which there is none.
COMMANDS = {
    "pretrain": ["--out", "none/o"],
    "train": ["--load", "none/m", "--out", "none/o"],
    "eval": ["--model", "none/m"],
    "rollout": ["--model", "none/m", "--prompts", "none/p", "--out", "none/o"],
    "diagnose": ["--model", "none/m"],
    "quantize": ["--model", "none/m", "--out", "none/o", "--format", "fp8"],
    "compare": ["--out", "none/o", "--load", "none/m", "--recipes", "quads"],
    "report": ["none/r", "--out", "none/o.html"],
    "bench gemm": ["--json", "none/o"],
    "bench rollout": ["--json", "none/o"],
    "bench train": ["--json", "none/o"],
    "bench sync": ["--json", "none/o"],
    "bench code": ["--json", "none/o"],
    "info": ["--json", "none/o"],
}
# Options with a text that may be anything: names of files, fields and programs.
FREE = {
    "--out", "--load", "--model", "--prompts", "--prompt-data", "--eval-data", "--benchmark", "--json", "--per-token",
    "--input-key", "--label-key", "--metadata-key", "--rm-command", "--rm-python", "--exclude",
}  # fmt: skip
ANY_SIGN = {"--rm-weights"}  # what it weighs may be a punishment


def options(quads, command):
    """(name, type) of each option that takes a value."""
    text = quads(*command.split(), "--help").stdout
    found = re.findall(r"^  (--[a-z0-9-]+)(?:,--[^ ]+)? (TEXT|INT|UINT|FLOAT|\[FILE\])", text, re.M)
    written = re.findall(r"^  (--[a-z0-9-]+)[^ ]* [A-Z\[]", text, re.M)  # with a value of any type
    assert sorted(name for name, _ in found) == sorted(written)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_that_cannot_be_right_is_wrong_usage_before_anything_is_read(
    quads, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    failed = quads(*command.split(), *COMMANDS[command], status=1)
    assert "none/" in failed.stderr
    accepted = []
    for name, kind in options(quads, command):
        if kind == "TEXT":
            values = [] if name in FREE else ["no-such-value"]
        elif kind == "[FILE]":
            values = []
        else:
            values = ["x", "nan", "inf"] + ([] if name in ANY_SIGN else ["-1"])
        for value in values:
            words = list(COMMANDS[command])
            if name in words:  # given once
                at = words.index(name)
                del words[at : at + 2]
            result = quads(*command.split(), *words, f"{name}={value}", status=None)
            lines = result.stderr.splitlines()
            named = len(lines) == 1 and name in lines[0] and value in lines[0]
            if result.returncode != 2 or not named:
                accepted.append(f"{name}={value}: {result.returncode} {result.stderr}")
    assert not accepted, "\n" + "".join(accepted)


@pytest.mark.parametrize("command, option, others", [
    ("pretrain", "--precision", set()),
    ("train", "--rollout-precision", {"nvfp4-rac"}),
    ("train", "--trainer-precision", {"nvfp4-rac"}),
    ("eval", "--precision", {"nvfp4-rac", "fp32"}),
    ("rollout", "--precision", {"nvfp4-rac", "fp32"}),
    ("bench rollout", "--precision", {"nvfp4-rac"}),
    ("bench sync", "--precision", {"nvfp4-rac"}),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_the_precisions_that_an_error_lists_are_those_that_its_place_takes(
    quads, command, option, others, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = [*command.split(), *COMMANDS[command]]
    error = quads(*words, f"{option}=int3", status=2).stderr
    listed = set(re.findall(r"\w[\w-]+", error.split("int3")[1].split(" with ")[0])) - {"use", "one", "of", "not", "in"}
    assert listed == {"bf16", "fp8", "w8a16", "nvfp4", "w4a16", "w16a4"} | others
    for name in listed:
        quads(*words, f"{option}={name}", status=1)  # there is no model, or no folder for the output
    for name in {"nvfp4-rac", "fp32"} - listed:
        quads(*words, f"{option}={name}", status=2)


def test_a_value_from_a_configuration_file_that_does_not_fit_names_the_file(quads, tmp_path):
    config = tmp_path / "c.toml"
    command = ["train", "--load", "none/m", "--out", "none/o", "--config", config]

    def error(text, *more):
        config.write_text(text)
        return quads(*command, *more, status=2).stderr

    found = error('task-option = ["first_digits=1"]\n', "--prompt-data", "p.jsonl")
    assert found == (
        "quads: --task and --task-option are for a built-in task: the problems come from p.jsonl "
        f"(--task-option is set in {config})\n"
    )
    assert error("[rac]\nratio = 0.25\n", "--recipe", "bf16").endswith(
        f"(--rac-ratio is set in {config})\n"
    )
    assert str(config) not in error("recipe = 'bf16'\n", "--rac-ratio", 0.25)
    assert error("max-running = 0\n").count(str(config)) == 1
