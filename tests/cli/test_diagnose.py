"""quads diagnose."""

import json

import pytest

from small_task import TASK


@pytest.mark.parametrize("kernels", ["shared", "aten"])
def test_parts_add_up_to_the_gap_token_by_token(quads, base, tmp_path, kernels):
    tokens, report = tmp_path / "tokens.jsonl", tmp_path / "diagnosis.json"
    result = quads(
        "diagnose", "--model", base, *TASK, "--problems", 4, "--n-samples-per-prompt", 2,
        "--max-response-len", 10, "--rac-ratio", "100%", "--trainer-kernels", kernels,
        "--per-token", tokens, "--json", report,
    )  # fmt: skip
    lines = [json.loads(line) for line in tokens.read_text().splitlines()]
    assert len(lines) == 4 * 8
    for line in lines:
        for parts in zip(line["delta_act"], line["delta_weight"], line["delta_num"], line["gap"]):
            assert sum(parts[:3]) == parts[3]
    pairs = json.loads(report.read_text())["pairs"]
    assert [(pair["rollout"], pair["trainer"]) for pair in pairs] == [
        ("nvfp4", "bf16"), ("nvfp4", "w4a16"), ("nvfp4-rac100", "bf16"), ("nvfp4-rac100", "w4a16"),
    ]  # fmt: skip
    for pair in pairs:
        own = [
            abs(gap)
            for line in lines
            if (line["rollout"], line["trainer"]) == (pair["rollout"], pair["trainer"])
            for gap in line["gap"]
        ]
        assert pair["parts"]["gap"]["max"] == max(own)
        assert (pair["parts"]["delta_num"]["max"] == 0) == (kernels == "shared")
        assert (pair["parts"]["delta_weight"]["max"] == 0) == (pair["trainer"] == "w4a16")
    assert "gate_up" in result.stdout


def test_prompts_may_come_from_a_file(quads, base, tmp_path):
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "3*4="}\n')
    result = quads(
        "diagnose", "--model", base, "--prompts", prompts, "--trainer-kernels", "shared",
        "--quantize", "linears", "--json",
    )  # fmt: skip
    projections = {row["projection"] for row in json.loads(result.stdout)["projections"]}
    assert projections == {"qkv", "out", "gate_up", "down"}


def test_two_sources_of_prompts_or_one_file_for_two_outputs_are_refused(quads, base, tmp_path):
    arguments = ["diagnose", "--model", base, "--prompts", tmp_path / "p.jsonl"]
    for option, value in (("--eval-data", "d.jsonl"), ("--task-option", "first_digits=1")):
        error = quads(*arguments, option, value, status=2).stderr
        assert f"--prompts {tmp_path / 'p.jsonl'} and {option}: " in error
    same = tmp_path / "x.json"
    error = quads("diagnose", "--model", base, "--json", same, "--per-token", same, status=2).stderr
    assert f"--per-token {same} and --json {same}: one file for both" in error
