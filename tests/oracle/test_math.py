"""The math reward beside math-verify itself: every shared pair, and what hangs or fills an algebra system."""

import json
import logging
import pathlib
import subprocess
import sys

import pytest
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
PAIRS = [json.loads(line) for line in (REPOSITORY / "tests/data/math_pairs.jsonl").read_text().splitlines()]
HANGS = "what hangs an algebra system"


@pytest.fixture
def score(build_dir):
    def run(pairs, seconds=10, workers=2):
        lines = "".join(json.dumps({"label": p["label"], "response": p["response"]}) + "\n" for p in pairs)
        command = [build_dir / "tests/rewards/math_tool", sys.executable, str(seconds), str(workers)]
        result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def math_verify_says(pair):
    """As verl and lighteval use it: the label in a box, the whole response searched."""
    label = pair["label"] if "\\boxed" in pair["label"] else "\\boxed{" + pair["label"] + "}"
    seconds = 2 if pair["about"] == HANGS else 0  # no limit that a busy machine could miss
    gold = parse(label, [LatexExtractionConfig()], parsing_timeout=seconds)
    answer = parse(pair["response"], [LatexExtractionConfig(), ExprExtractionConfig()], parsing_timeout=seconds)
    return verify(gold, answer, timeout_seconds=seconds)


def test_every_pair_is_decided_as_expected(score):
    results = score(PAIRS)
    assert len(results) == len(PAIRS) > 300
    assert [r["failure"] for r in results if r["failure"]] == []
    wrong = [p for p, r in zip(PAIRS, results) if (r["value"] == 1) != p["expected"]]
    assert wrong == []
    in_process = sum(r["in_process"] for r in results)
    assert in_process > len(PAIRS) / 2
    assert in_process < len(PAIRS) - 100


def test_math_verify_differs_on_the_pairs_that_say_so_and_on_no_other():
    logging.disable(logging.CRITICAL)  # of what takes too long
    try:
        differs = [p for p in PAIRS if math_verify_says(p) != p["expected"]]
    finally:
        logging.disable(logging.NOTSET)
    assert differs == [p for p in PAIRS if "math_verify_differs" in p]


def test_the_document_lists_every_difference_with_its_reason():
    def row(pair):
        here, there = ("equal", "different") if pair["expected"] else ("different", "equal")
        cells = [f"`{pair['label']}`", f"`{pair['response']}`", here, there, pair["math_verify_differs"]]
        return "| " + " | ".join(cells) + " |"

    lines = (REPOSITORY / "docs/rewards.md").read_text().splitlines()
    start = lines.index("| label | response | here | math-verify | why |") + 2
    listed = lines[start : lines.index("", start)]
    assert listed == [row(p) for p in PAIRS if "math_verify_differs" in p]


def test_what_hangs_or_fills_an_algebra_system_is_wrong_and_not_a_failure(score):
    hostile = [
        "9^{9^{9^9}}",
        "7^{7^{11}}",  # one multiplication in C that no signal interrupts
        "2^{99999999999}",
        "(10^{9})!",
        "\\binom{10^9}{10^8}",
        "\\sum_{n=1}^{10^{12}} \\frac{1}{n}",
        "(" * 2000 + "x" + ")" * 2000,
        "\\sqrt{" * 500 + "x" + "}" * 500,
        "x^{" * 300 + "2" + "}" * 300,
        "{" * 4000,
        "\\frac" * 800,
        "1" * 4000 + "x",
        "x" * 4000,
    ]
    pairs = [{"label": "x+1", "response": f"\\boxed{{{text}}}"} for text in hostile]
    pairs.append({"label": "x+1", "response": "\\boxed{1+x}"})
    results = score(pairs, seconds=5)
    assert [r["failure"] for r in results] == [""] * len(pairs)
    assert [r["value"] for r in results] == [0] * len(hostile) + [1]


def test_a_label_that_hangs_is_a_failure_that_names_it(score):
    pairs = [{"label": "\\binom{100000000}{50000000}", "response": "\\boxed{x}"}]
    (result,) = score(pairs, seconds=3, workers=1)
    assert "cannot read the label" in result["failure"] and "binom" in result["failure"]


def test_an_answer_of_ten_megabytes_is_decided_in_process(score):
    pairs = [{"label": "5", "response": "\\boxed{" + fill * (10_000_000 // len(fill)) + "}"}
             for fill in ("7", "\\frac{1}{")]  # fmt: skip
    for result in score(pairs):
        assert (result["value"], result["failure"], result["in_process"]) == (0, "", True)


def test_a_python_without_math_verify_is_an_error_that_says_what_to_install(build_dir, tmp_path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    command = [build_dir / "tests/rewards/math_tool", bare, "3", "1"]
    result = subprocess.run(command, input="", capture_output=True, text=True)
    assert result.returncode == 1
    assert "cannot import math-verify (pip install math-verify)" in result.stderr
