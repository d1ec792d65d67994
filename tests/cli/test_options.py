"""Options' values: what cannot be right whatever the files hold is wrong usage, before any is read."""

import re
import tomllib

import pytest

from small_task import TASK

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
# What an empty text says: no template, and no file for the JSON.
MAY_BE_EMPTY = {"--prompt-template", "--json"}
ANY_SIGN = {"--rm-weights"}  # what it weighs may be a punishment


def options(quads, command):
    """(name, type) of each option that takes a value."""
    text = quads(*command.split(), "--help").stdout
    found = re.findall(r"^  (--[a-z0-9-]+)(?:,--[^ ]+)? (TEXT|TEMPLATE|INT|UINT|FLOAT|SIZE|\[FILE\])", text, re.M)
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
        values = [] if name in MAY_BE_EMPTY else [""]
        if kind in ("TEXT", "TEMPLATE"):
            values += [] if name in FREE else ["no-such-value"]
        elif kind != "[FILE]":
            values += ["x", "nan", "inf", "0x10", "1" * 400] + ([] if name in ANY_SIGN else ["-1"])
        if kind in ("INT", "UINT"):
            values += [str(2**63), str(2**64), "1.0", "1e1", " 1"]
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


def test_the_message_says_what_is_wrong_with_a_number(quads):
    def error(*option):
        return quads("train", "--load", "m", "--out", "o", *option, status=2).stderr

    assert error("--lr", "") == "quads: --lr: the value is empty\n"
    assert error("--num-rollout", "0x10") == "quads: --num-rollout: 0x10 is not a whole number in decimal\n"
    assert error("--seed", 2**63).endswith(f"{2**63} is not in the range of {-2**63} to {2**63 - 1}\n")
    assert error("--lr", "1e999") == "quads: --lr: 1e999 is not a finite number in decimal\n"


def test_a_leading_zero_or_plus_changes_no_number(quads, base, tmp_path):
    out = tmp_path / "run"
    quads(
        "train", "--load", base, "--out", out, *TASK, "--num-rollout", "01", "--rollout-batch-size", "+2",
        "--n-samples-per-prompt", "010", "--rollout-max-response-len", "08", "--lr", "+01e-3",
        "--kv-memory", "010MiB", "--seed", 2**63 - 1, "--eval-problems", 4, "--threads", 1,
    )  # fmt: skip
    text = (out / "config.toml").read_text()
    config = tomllib.loads(text)
    assert config["num-rollout"] == 1 and config["rollout-batch-size"] == 2
    assert config["n-samples-per-prompt"] == 10 and config["rollout-max-response-len"] == 8
    assert float(config["lr"]) == 1e-3 and config["kv-memory"] == 10 * 2**20
    assert config["seed"] == 2**63 - 1
    quads("train", "--config", out / "config.toml", "--out", tmp_path / "again")
    assert (tmp_path / "again" / "config.toml").read_text() == text.replace(str(out), str(tmp_path / "again"))


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("report", "info")])
@pytest.mark.parametrize("text, message", [
    ("num-rollout = ''", "--num-rollout: the value is empty"),
    ("lr = 1979-05-27", "key 'lr': a string, number, boolean or list of these is expected"),
    ("[[lr]]", "key 'lr': a string, number, boolean or list of these is expected"),
    ("lr = [{a = 1}]", "key 'lr': a string, number, boolean or list of these is expected"),
], ids=lambda value: "")  # fmt: skip
def test_an_error_in_a_configuration_file_names_it(quads, tmp_path, monkeypatch, command, text, message):
    monkeypatch.chdir(tmp_path)
    option = {"train": "num-rollout", "compare": "num-rollout"}.get(command, "threads")
    config = tmp_path / "c.toml"
    config.write_text(text.replace("num-rollout", option))
    error = quads(*command.split(), *COMMANDS[command], "--config", config, status=2).stderr
    assert f"{config}: {message.replace('num-rollout', option)}" in error and error.count("\n") == 1


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("report", "info")])
def test_a_folder_is_no_configuration_file(quads, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    error = quads(*command.split(), *COMMANDS[command], "--config", tmp_path, status=2).stderr
    assert f"--config {tmp_path} is a folder" in error and error.count("\n") == 1


def test_an_unknown_key_names_the_whole_command(quads, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("lr = 1\n")
    error = quads("bench", "gemm", "--config", config, status=2).stderr
    assert error == f"quads: {config}: unknown key 'lr' (see quads bench gemm --help)\n"


@pytest.mark.parametrize("command", ["diagnose", "quantize", "train"])
@pytest.mark.parametrize("first, last", [(2**63 - 1, 1), (1, 2**63 - 1), (1, 1), (2, 0), (0, 2)])
def test_layers_that_all_stay_in_bf16_leave_nothing_to_quantise(
    quads, base, tmp_path, command, first, last
):
    words = {
        "diagnose": ["--model", base, *TASK],
        "quantize": ["--model", base, "--out", tmp_path / "o", "--format", "nvfp4-modelopt", "--weights-only"],
        "train": ["--load", base, "--out", tmp_path / "o", *TASK],
    }[command]
    error = quads(command, *words, "--high-precision-first-layers", first,
                  "--high-precision-last-layers", last, status=1).stderr  # fmt: skip
    assert "leave nothing to quantise in 2 layers" in error


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
    assert error("use-tis = ''\n") == f"quads: {config}: --use-tis: the value is empty\n"
    assert error("max-running = 0\n").count(str(config)) == 1
