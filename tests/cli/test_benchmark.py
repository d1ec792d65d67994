"""quads eval --benchmark on files in the very form of LiveCodeBench's, from its packed tests to pass@1."""

import base64
import json
import pathlib
import pickle
import shutil
import subprocess
import sys
import zlib

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

# The model's only answer: right as a program that doubles a number and as the method that does,
# if what the program reads is left alone then.
PROGRAM = """Here it is.
```python
class Solution:
    def double(self, x):
        return 2 * x

if __name__ == "__main__":
    print(Solution().double(int(input())))
```
"""


def problem(number, public, private, function=None):
    """A line as release_v6's test6.jsonl has them: the tests are texts, the private ones packed."""

    def tests(pairs):
        kind = "functional" if function else "stdin"
        return json.dumps([{"input": i, "output": o, "testtype": kind} for i, o in pairs])

    return {
        "question_title": f"Problem {number}",
        "question_content": f"Double the number, variant {number}.\n\nSample Input\n\n1",
        "platform": "leetcode" if function else "atcoder",
        "question_id": f"abc{number}_a",
        "contest_id": f"abc{number}",
        "contest_date": "2025-01-04T00:00:00",
        "starter_code": "class Solution:\n    def double(self, x: int) -> int:\n        " if function else "",
        "difficulty": "easy",
        "public_test_cases": tests(public),
        "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(tests(private)))).decode(),
        "metadata": json.dumps({"func_name": function} if function else {}),
    }


PROBLEMS = [
    problem(1, [("1\n", "2\n")], [("21\n", "42\n"), ("0\n", "0")]),
    problem(2, [("1", "2")], [("21", "42"), ("-3", "-6")], function="double"),
    problem(3, [("1\n", "2\n")], [("21\n", "43\n")]),  # only a private test tells
    problem(4, [("1", "2")], [("21", "[42]")], function="double"),
    problem(5, [("1", "2")], [("2", "4")], function="triple"),  # the response has no such method
]


@pytest.fixture
def model(base, tmp_path):
    """A model that can read any text, all characters alike, and says PROGRAM with every token."""
    directory = shutil.copytree(base, tmp_path / "model")
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    ids = tokenizer["model"]["vocab"].values()
    tokenizer["model"]["vocab"] = {PROGRAM + "#" * i: i for i in ids}
    tokenizer["model"]["unk_token"] = PROGRAM + "#"
    tokenizer["added_tokens"] = []
    path.write_text(json.dumps(tokenizer))
    for name in ("tokenizer_config.json", "generation_config.json"):
        (directory / name).unlink(missing_ok=True)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"eos_token_id": None, "pad_token_id": None}))
    return directory


def test_a_file_of_live_code_bench_is_unpacked_asked_run_and_counted(quads, model, tmp_path):
    packed, unpacked = tmp_path / "test6.jsonl", tmp_path / "unpacked.jsonl"
    packed.write_text("".join(json.dumps(line) + "\n" for line in PROBLEMS))
    out, report = tmp_path / "by_problem.jsonl", tmp_path / "eval.json"
    options = ["--max-response-len", 1, "--temperature", 0, "--out", out, "--json", report]
    # As it comes, nothing can be scored, and the reason is said.
    error = quads("eval", "--model", model, "--benchmark", packed, *options, status=1).stderr
    assert "unpacked to JSON beforehand" in error and not report.exists()

    script = REPOSITORY / "scripts" / "unpack_livecodebench.py"
    subprocess.run([sys.executable, script, packed, unpacked], check=True)
    quads("eval", "--model", model, "--benchmark", unpacked, *options)
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["rewards"] for line in lines] == [[1], [1], [0], [0], [0]]
    assert "### Format: Read the inputs from stdin" in lines[0]["prompt"]
    assert "class Solution:\n    def double(self, x: int) -> int:" in lines[1]["prompt"]
    evaluation = json.loads(report.read_text())["evaluations"][0]
    assert evaluation["failed"] == 0 and evaluation["pass@1"]["mean"] == pytest.approx(2 / 5)


def test_with_fractions_the_tests_that_pass_count(quads, model, tmp_path):
    packed, unpacked = tmp_path / "packed.jsonl", tmp_path / "unpacked.jsonl"
    packed.write_text(json.dumps(PROBLEMS[2]) + "\n")
    script = REPOSITORY / "scripts" / "unpack_livecodebench.py"
    subprocess.run([sys.executable, script, packed, unpacked], check=True)
    out = tmp_path / "by_problem.jsonl"
    quads(
        "eval", "--model", model, "--benchmark", unpacked, "--max-response-len", 1, "--code-fraction", "--out", out
    )
    assert json.loads(out.read_text())["rewards"] == [0.5]
