"""Training and evaluating on data files: forms, rewards, what is left out, resuming in mid-pass."""

import json
import sys

import pytest

# The base knows one-digit products only.
TRAIN = [{"prompt": f"{a}*{b}=", "label": f"{a * b}"} for a in (2, 3, 4) for b in (2, 5, 7)]
EVAL = [{"prompt": f"{a}*6=", "label": f"{a * 6}"} for a in (2, 3, 4)]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def files(tmp_path):
    return write_lines(tmp_path / "train.jsonl", TRAIN), write_lines(tmp_path / "eval.jsonl", EVAL)


def train(quads, base, out, *more, status=0, recipe="quads", num_rollout=2, n_samples=2):
    return quads(
        "train", "--load", base, "--out", out, "--recipe", recipe, "--num-rollout", num_rollout,
        "--rollout-batch-size", 2, "--n-samples-per-prompt", n_samples, "--rollout-max-response-len", 4,
        "--rollout-max-context-len", 32, "--lr", 1e-3, "--log-samples", 2, "--threads", 1, *more, status=status,
    )  # fmt: skip


def test_verls_form_and_named_fields_give_the_same_run(quads, base, files, tmp_path):
    verl = write_lines(
        tmp_path / "verl.jsonl",
        [
            {"prompt": line["prompt"], "reward_model": {"ground_truth": line["label"]}, "data_source": "x"}
            for line in TRAIN
        ],
    )
    other = write_lines(
        tmp_path / "other.jsonl", [{"in": {"text": line["prompt"]}, "out": line["label"]} for line in TRAIN]
    )
    runs = []
    for data, flags in (
        (files[0], []),
        (verl, []),
        (other, ["--input-key", "in.text", "--label-key", "out"]),
    ):
        out = tmp_path / f"run{len(runs)}"
        train(quads, base, out, "--prompt-data", data, *flags)
        runs.append((out / "samples.jsonl").read_text())
    assert runs[0] == runs[1] == runs[2]
    assert {line["prompt"] for line in read_lines(tmp_path / "run0" / "samples.jsonl")} <= {
        line["prompt"] for line in TRAIN
    }


def test_a_run_resumes_in_mid_pass_and_goes_through_the_whole_file(quads, base, files, tmp_path):
    # 9 problems, 2 a step: a pass ends in the middle of the fifth step.
    data = ["--prompt-data", files[0], "--eval-data", files[1], "--save-interval", 1]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(quads, base, whole, *data, num_rollout=6)
    train(quads, base, parts, *data, num_rollout=3)
    train(quads, base, parts, *data, "--resume", num_rollout=6)
    samples = (whole / "samples.jsonl").read_text()
    assert (parts / "samples.jsonl").read_text() == samples
    prompts = [json.loads(line)["prompt"] for line in samples.splitlines()]
    assert sorted(prompts[:9]) == sorted(line["prompt"] for line in TRAIN)
    last = read_lines(parts / "metrics.jsonl")[-1]
    assert last["eval/problems"] == 3 and 0 <= last["eval/pass@1"] <= 1


def test_a_run_is_not_continued_with_other_data(quads, base, files, tmp_path):
    out, moved = tmp_path / "run", tmp_path / "moved.jsonl"
    train(quads, base, out, "--prompt-data", files[0], num_rollout=1)
    files[0].rename(moved)
    train(quads, base, out, "--prompt-data", moved, "--resume", num_rollout=2)
    before = (out / "samples.jsonl").read_bytes()
    text = moved.read_text()
    moved.write_text(text.replace('"label": "4"', '"label": "5"'))
    error = train(quads, base, out, "--prompt-data", moved, "--resume", num_rollout=3, status=1).stderr
    assert error.count("\n") == 1 and error.count(f"({len(text)} bytes, hash ") == 2
    assert f"trained on {moved} (" in error and f"not on {moved} (" in error
    assert f"start another with --load {out / 'checkpoints' / 'step_000002'}" in error
    error = train(quads, base, out, "--resume", num_rollout=3, status=1).stderr
    assert f"trained on {moved} (" in error and "not on a built-in task" in error
    assert (out / "samples.jsonl").read_bytes() == before
    moved.write_text(text)
    train(quads, base, out, "--prompt-data", moved, "--resume", num_rollout=3)


def test_the_files_order_is_kept_on_request(quads, base, files, tmp_path):
    out = tmp_path / "run"
    train(quads, base, out, "--prompt-data", files[0], "--no-rollout-shuffle")
    prompts = [line["prompt"] for line in read_lines(out / "samples.jsonl")]
    assert prompts == [line["prompt"] for line in TRAIN[:4]]
    assert "rollout-shuffle = false" in (out / "config.toml").read_text()
    again = tmp_path / "again"
    quads("train", "--config", out / "config.toml", "--out", again)
    assert (again / "samples.jsonl").read_text() == (out / "samples.jsonl").read_text()


def test_bad_lines_end_the_run_or_are_left_out_and_counted(quads, base, tmp_path):
    data = tmp_path / "train.jsonl"
    write_lines(data, TRAIN)
    data.write_text(data.read_text() + '{"prompt": "2*\n' + '{"prompt": "2*2="}\n')
    error = train(quads, base, tmp_path / "a", "--prompt-data", data, status=1).stderr
    assert f"{data}:10: not valid JSON: parse error at column " in error and error.count("\n") == 1
    result = train(quads, base, tmp_path / "b", "--prompt-data", data, "--on-bad-data", "skip")
    assert "left out 2 malformed lines" in result.stderr
    assert f"{data}:11: key 'label' is missing" in result.stderr
    assert all(row["data/skipped"] == 2 for row in read_lines(tmp_path / "b" / "metrics.jsonl"))
    write_lines(data, TRAIN)
    result = train(
        quads, base, tmp_path / "c", "--prompt-data", data, "--on-bad-data", "skip",
        "--rollout-max-prompt-len", 3, status=1,
    )  # fmt: skip
    assert f"all 9 lines were left out; first: {data}:1: the prompt has 4 tokens" in result.stderr


def test_a_prompt_that_cannot_be_encoded_is_a_malformed_line(quads, base, files, tmp_path):
    data = write_lines(tmp_path / "odd.jsonl", [TRAIN[0], {"prompt": "\u2603=", "label": "1"}, *TRAIN[1:]])
    error = train(quads, base, tmp_path / "a", "--prompt-data", data, status=1).stderr
    assert f"{data}:2: the prompt: " in error and error.count("\n") == 1
    skip = ["--on-bad-data", "skip"]
    result = train(quads, base, tmp_path / "b", "--prompt-data", data, *skip)
    assert "left out 1 malformed lines" in result.stderr and f"{data}:2: the prompt: " in result.stderr
    result = quads("eval", "--model", base, "--eval-data", data, "--max-response-len", 4, *skip)
    assert f"{data}:2: the prompt: " in result.stderr and "9 problems" in result.stdout


def test_problems_to_train_on_are_not_evaluated(quads, base, files):
    error = quads("eval", "--model", base, "--prompt-data", files[0], status=2).stderr
    assert "--eval-data" in error and error.count("\n") == 1


def test_the_python_of_math_is_found_beside_the_build_or_named(quads, base, files, tmp_path):
    data, options = ["--prompt-data", files[0]], ["--rm-type", "math", "--rm-workers", 1]
    if (quads.program.parents[3] / ".venv/bin/python").exists():  # else nobody knows what python3 has
        train(quads, base, tmp_path / "a", *data, *options, num_rollout=1)
    error = train(quads, base, tmp_path / "b", *data, *options, "--rm-python", "/no/python", status=1).stderr
    assert "/no/python" in error and "--rm-python names a Python with math-verify" in error
    assert error.count("\n") == 1 and "import json" not in error


def test_messages_without_a_template_are_an_error(quads, base, tmp_path):
    data = write_lines(
        tmp_path / "chat.jsonl", [{"prompt": [{"role": "user", "content": "2*2="}], "label": "4"}]
    )
    error = train(quads, base, tmp_path / "a", "--prompt-data", data, status=1).stderr
    assert f"{data}:1: 'prompt' is a list of messages" in error and "--apply-chat-template" in error


def test_reward_options_are_checked(quads, base, files, tmp_path):
    def error(*flags, status=1):
        return train(quads, base, tmp_path / "a", "--prompt-data", files[0], *flags, status=status).stderr

    assert "--rm-type: exakt not in {code,command,exact,math}" in error("--rm-type", "exakt", status=2)
    assert "2 weights for 1 rewards" in error("--rm-weights", ".7,.3", status=2)
    assert "needs --rm-command" in error("--rm-by-source", "gsm8k=command", status=2)
    assert "SOURCE=NAME is expected" in error("--rm-by-source", "gsm8k", status=2)
    twice = error("--rm-by-source", "a=math,a=exact", status=2)
    assert "--rm-by-source a=exact: a=math is given too" in twice
    lines = write_lines(tmp_path / "x.jsonl", [TRAIN[0] | {"metadata": {"rm_type": "f1"}}])
    unknown = train(quads, base, tmp_path / "a", "--prompt-data", lines, status=1).stderr
    assert f"{lines}:1: " in unknown and "unknown reward 'f1'" in unknown
    unused = error("--rm-command", "true")
    assert "--rm-command is for --rm-type command" in unused and "in use are exact" in unused
    assert "--rm-python is for --rm-type math" in error("--rm-python", "/usr/bin/python3")
    assert "--code-fraction is for --rm-type code" in error("--code-fraction")
    assert "--rm-timeout is for --rm-type code or command or math" in error("--rm-timeout", 3)
    assert "--task-option are for a built-in task" in error("--task-option", "first_digits=1", status=2)
    own = train(quads, base, tmp_path / "a", "--rm-type", "code", status=2).stderr
    assert "task multiply has its own reward" in own
    alone = train(quads, base, tmp_path / "a", "--eval-data", files[1], status=2).stderr
    assert "nothing to train on" in alone


# Scores responses of even length, by the number of the label's digits.
PROGRAM = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    assert "$" not in request["response"] and request["label"].isdigit()
    if len(request["response"]) % 2:
        print(json.dumps({"error": "odd length"}), flush=True)
    else:
        print(json.dumps({"reward": len(request["label"])}), flush=True)
"""


def test_a_program_of_the_users_scores_and_its_failures_are_counted(quads, base, files, tmp_path):
    program = tmp_path / "reward.py"
    program.write_text(PROGRAM)
    reward = ["--rm-type", "command,exact", "--rm-weights", ".5,.25", "--rm-command", f"{sys.executable} {program}"]
    out = tmp_path / "run"
    train(
        quads, base, out, "--prompt-data", files[0], "--eval-data", files[1], *reward,
        "--rm-workers", 2, "--rollout-temperature", 2, n_samples=8, num_rollout=4,
    )  # fmt: skip
    rows, samples = read_lines(out / "metrics.jsonl"), read_lines(out / "samples.jsonl")
    assert sum(row.get("reward/failed", 0) for row in rows) > 0
    for line in samples:
        response = line["response"].removesuffix("$")
        if len(response) % 2:
            assert line["reward"] is None and "odd length" in line["reward_failure"]
        else:
            value = 0.5 * len(line["label"]) + 0.25 * (response == line["label"])
            assert line["reward"] == pytest.approx(value)
    by_problem, report = tmp_path / "by_problem.jsonl", tmp_path / "eval.json"
    quads(
        "eval", "--model", base, "--eval-data", files[1], *reward, "--n-samples-per-prompt", 8,
        "--temperature", 2, "--max-response-len", 4, "--out", by_problem, "--json", report,
    )  # fmt: skip
    failed = sum(reward is None for line in read_lines(by_problem) for reward in line["rewards"])
    evaluation = json.loads(report.read_text())["evaluations"][0]
    assert evaluation["failed"] == failed > 0 and "odd length" in evaluation["first_failure"]


def test_a_program_that_scores_nothing_ends_the_run_with_its_cause(quads, base, files, tmp_path):
    reward = ["--rm-type", "command", "--rm-command", "sh -c 'echo broken >&2; exit 3'"]
    error = train(quads, base, tmp_path / "a", "--prompt-data", files[0], *reward, status=1).stderr
    assert "broken" in error and not (tmp_path / "a" / "checkpoints").exists()


def test_eval_votes_and_counts(quads, base, files, tmp_path):
    out, report = tmp_path / "by_problem.jsonl", tmp_path / "eval.json"
    quads(
        "eval", "--model", base, "--eval-data", files[1], "--n-samples-per-prompt", 8, "--k", "1,4",
        "--max-response-len", 4, "--precision", "bf16,nvfp4", "--out", out, "--json", report,
    )  # fmt: skip
    for evaluation in json.loads(report.read_text())["evaluations"]:
        assert set(evaluation["maj@k"]) == {"4", "8"} and evaluation["failed"] == 0
        lines = [x for x in read_lines(out) if x["precision"] == evaluation["precision"]]
        values = []
        for line in lines:
            counts = {}
            for answer, reward in zip(line["answers"], line["rewards"]):
                counts.setdefault(answer, [0, reward])[0] += 1
            most = max(count for count, _ in counts.values())
            best = [reward for count, reward in counts.values() if count == most]
            values.append(sum(best) / len(best))
        assert evaluation["maj@k"]["8"]["mean"] == pytest.approx(sum(values) / len(values))
