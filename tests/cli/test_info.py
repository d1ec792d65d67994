"""quads info, and what all commands share."""

import json

import pytest

COMMANDS = "pretrain train eval compare rollout diagnose report bench info".split()


def test_info_as_json_names_the_instruction_set_and_libraries(quads):
    info = json.loads(quads("info", "--json", "--isa", "portable", "--threads", 1).stdout)
    assert info["isa"] == "portable"
    assert "portable" in info["isa_available"]
    assert info["threads"] == 1
    assert {"torch", "fmt", "protobuf"} <= set(info["libraries"])
    assert info["isa"] in quads("info", "--isa", "portable").stdout


def test_an_instruction_set_that_is_not_there_is_named_with_its_option(quads, tmp_path):
    info = json.loads(quads("info", "--json").stdout)
    missing = {"avx2", "avx512", "amx"} - set(info["isa_available"])
    if not missing:
        pytest.skip("NOT TESTED: this CPU has every instruction set")
    for isa in missing:
        error = quads("eval", "--model", tmp_path, "--isa", isa, status=1).stderr
        assert f"--isa {isa}: this CPU does not have it; the best it has is {info['isa']}" in error


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(quads, command):
    assert command in quads(command, "--help").stdout


def test_unknown_commands_options_and_keys_are_wrong_usage(quads, tmp_path):
    quads(status=2)
    quads("fly", status=2)
    quads("info", "--colour", status=2)
    config = tmp_path / "c.toml"
    config.write_text("colour = 1\n")
    assert "colour" in quads("info", "--config", config, status=2).stderr


@pytest.mark.parametrize("arguments, message", [
    (["train", "--gpu", "0"], "unknown option --gpu; see quads train --help"),
    (["train", "--lode=x", "--no"], "unknown option --lode; see quads train --help"),
    (["train", "now"], "unknown argument now; see quads train --help"),
    (["--colour", "info"], "unknown option --colour; see quads --help"),
    (["fly"], "unknown command fly; see quads --help"),
    (["compare", "--out", "o", "--recipes", "bf16", "--lr", "1e-3"],
     "unknown option --lr; flags of quads train go after --, as in -- --lr 1e-3; see quads compare --help"),
], ids=lambda value: " ".join(value) if isinstance(value, list) else "")  # fmt: skip
def test_the_first_unknown_word_is_named_with_its_command(quads, arguments, message):
    assert quads(*arguments, status=2).stderr == f"quads: {message}\n"


def test_what_is_no_model_directory_is_told_from_one(quads, tmp_path):
    def error(model):
        return quads("eval", "--model", model, status=1).stderr

    assert "hf download some/model --local-dir DIR" in error("some/model")
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert f"name its folder {tmp_path}" in error(tmp_path / "model.safetensors")
    assert "download" not in error("/some/model") and "download" not in error("./model")
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text("")
    assert error(run) == f"quads: {run}: a run, not a model; it has no checkpoint yet\n"
    for step in (2, 10):
        trainer = run / "checkpoints" / f"step_{step:06}" / "trainer"
        trainer.mkdir(parents=True)
        (trainer / "state.json").write_text("{}")
    newest = run / "checkpoints" / "step_000010"
    assert error(run) == f"quads: {run}: a run, not a model; its newest model is {newest}\n"


def test_json_goes_to_a_file_and_the_table_to_the_terminal(quads, tmp_path):
    path = tmp_path / "info.json"
    result = quads("info", "--json", path)
    assert json.loads(path.read_text())["version"] in result.stdout


def test_an_option_given_twice_is_named(quads, tmp_path):
    error = quads("info", "--threads", 1, "--threads", 2, status=2).stderr
    assert error == "quads: --threads is given 2 times: give it once\n"
    config = tmp_path / "c.toml"
    config.write_text("rac-ratio = 0.5\n[rac]\nratio = 0.25\n")
    error = quads("eval", "--model", "m", "--config", config, status=2).stderr
    assert error == f"quads: {config}: key 'rac-ratio' is given twice: give it once\n"


@pytest.mark.parametrize("command", [
    ["rollout", "--model", "BASE", "--prompts", "PROMPTS", "--out", "PATH"],
    ["eval", "--model", "BASE", "--out", "PATH"],
    ["eval", "--model", "BASE", "--json", "PATH"],
    ["diagnose", "--model", "BASE", "--per-token", "PATH"],
    ["report", "RUN", "--out", "PATH"],
    ["bench", "sync", "--json", "PATH"],
    ["info", "--json", "PATH"],
    ["pretrain", "--out", "PATH"],
], ids=lambda command: " ".join(command))  # fmt: skip
def test_a_missing_folder_is_named(quads, base, tmp_path, command):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "1*1="}\n')
    path = tmp_path / "none" / "out"
    words = {"BASE": base, "PROMPTS": prompts, "PATH": path, "RUN": tmp_path}
    error = quads(*[words.get(word, word) for word in command], status=1).stderr
    assert error == f"quads: {path}: cannot be written: there is no folder {path.parent}\n"


@pytest.mark.parametrize("command", ["train", "eval", "rollout", "diagnose"])
def test_the_kv_memory_is_read_alike_by_all_commands(quads, base, tmp_path, command):
    assert "=256MiB" in quads(command, "--help").stdout
    for size in ("12parsecs", "-1", "1.5", "", "99999999999GiB", "0", "0MiB"):
        arguments = {
            "train": ["--load", base, "--out", tmp_path / "o"],
            "rollout": ["--model", base, "--prompts", "p", "--out", tmp_path / "o"],
        }.get(command, ["--model", base])
        error = quads(command, *arguments, f"--kv-memory={size}", status=2).stderr
        assert "--kv-memory" in error
    for size in ("1", "1b"):  # too small for a page, but a size
        if command == "train":
            assert "bytes for keys and values" in quads(
                command, "--load", base, "--out", tmp_path / "o", "--kv-memory", size, status=1
            ).stderr


@pytest.mark.parametrize("command", ["train", "eval", "diagnose", "pretrain"])
def test_help_names_the_tasks_and_their_options(quads, command):
    text = " ".join(quads(command, "--help").stdout.split())
    assert "multiply (options first_digits=1..6" in text
