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


def test_json_goes_to_a_file_and_the_table_to_the_terminal(quads, tmp_path):
    path = tmp_path / "info.json"
    result = quads("info", "--json", path)
    assert json.loads(path.read_text())["version"] in result.stdout
