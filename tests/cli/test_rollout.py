"""quads rollout."""

import json
import signal
import subprocess
import time

from small_task import TASK

PRECISION = ["--precision", "nvfp4-rac50"]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_object_a_sample_with_rewards_where_there_is_a_label(quads, base, tmp_path):
    prompts = write_lines(
        tmp_path / "p.jsonl", [{"prompt": "3*4=", "label": "12"}, {"prompt": "2*5="}]
    )
    out = tmp_path / "out.jsonl"
    quads(
        "rollout", "--model", base, "--prompts", prompts, "--out", out, *TASK,
        "--n-samples-per-prompt", 8, "--max-response-len", 10,
    )  # fmt: skip
    lines = read_lines(out)
    assert [(line["index"], line["sample"]) for line in lines] == [
        (i, s) for i in range(2) for s in range(8)
    ]
    for line in lines:
        assert len(line["response_tokens"]) == len(line["logprobs"]) <= 10
        assert all(logprob <= 0 for logprob in line["logprobs"])
        stopped = line["response"].endswith("$")
        assert line["finish_reason"] == ("stop" if stopped else "length")
        assert ("reward" in line) == (line["index"] == 0)
        if line["index"] == 0:
            assert line["reward"] == float(line["response"] == "12$")


def test_scoring_what_was_sampled_gives_the_same_log_probs(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}, {"prompt_tokens": [2, 3]}])
    sampled, scored = tmp_path / "sampled.jsonl", tmp_path / "scored.jsonl"
    for precision in ("bf16", "nvfp4"):
        options = ["--model", base, "--precision", precision, "--max-response-len", 12]
        quads(
            "rollout", *options, "--prompts", prompts, "--out", sampled,
            "--n-samples-per-prompt", 4,
        )  # fmt: skip
        quads("rollout", *options, "--prompts", sampled, "--out", scored)
        assert read_lines(sampled) == read_lines(scored)


def test_streaming_prints_the_responses(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}, {"prompt": "1*1="}])
    out = tmp_path / "out.jsonl"
    result = quads(
        "rollout", "--model", base, "--prompts", prompts, "--out", out, *PRECISION, "--stream"
    )
    assert result.stdout.splitlines() == [line["response"] for line in read_lines(out)]


def test_bad_prompts_are_named_and_leave_no_output(quads, base, tmp_path):
    out = tmp_path / "out.jsonl"
    for line, message in (
        ({"prompt": "x"}, "p.jsonl:2"),
        ({"prompt_tokens": [99]}, "99"),
        ({"prompt": "1*1=", "index": 0}, "0"),
        ({"prompt": ""}, "p.jsonl:2: 'prompt' is empty"),
        ({"prompt": [{"role": "user", "content": "1*1="}]}, "scripts/render_prompts.py"),
        ({"prompt_tokens": []}, "p.jsonl:2: the prompt is empty"),
        ({"label": "1"}, "p.jsonl:2: neither 'prompt' nor 'prompt_tokens' is there"),
        ({"prompt": "1" * 1000}, "p.jsonl:2: the prompt's 1000 tokens and a response of up to 64 "
         "are more than the model's max_position_embeddings = 1024"),
        ({"prompt": "1*1=", "index": 1, "response_tokens": [2] * 1021}, "p.jsonl:2: the prompt's"),
    ):
        prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "1*1="}, line])
        error = quads(
            "rollout", "--model", base, "--prompts", prompts, "--out", out, status=1
        ).stderr
        assert message in error
        assert list(tmp_path.iterdir()) == [prompts]


def test_prompts_of_megabytes_are_named_in_a_short_line(quads, base, tmp_path):
    prompts = tmp_path / "p.jsonl"
    for line, cause in (
        (json.dumps({"prompt": "1*2=" * 250_000}), "the prompt's 1000000 tokens and a response"),
        (json.dumps({"prompt": "x" * 1_000_000}), "'x' at byte 0 of the (normalized) text"),
        ('{"prompt": "' + "1" * 1_000_000, "missing closing quote"),
        ('{"%s": 1, "%s": 2}' % (("1" * 1_000_000,) * 2), "appears twice in one object"),
    ):
        prompts.write_text(line + "\n")
        error = quads(
            "rollout", "--model", base, "--prompts", prompts, "--out", tmp_path / "o", status=1
        ).stderr
        assert f"{prompts}:1: " in error and cause in error
        assert len(error) < 2200 and error.count("\n") == 1


def test_names_that_are_no_text(quads, base, tmp_path):
    prompts, out = tmp_path / "p\udcff.jsonl", tmp_path / "s\udcff"
    arguments = ("rollout", "--model", base, "--prompts", prompts, "--out", out)
    assert "p\\xff.jsonl: cannot open" in quads(*arguments, status=1).stderr
    prompts.write_text('{"prompt": "1*2="}\n')
    quads(*arguments)
    assert json.loads(out.read_text())["prompt"] == "1*2="


def test_ctrl_c_keeps_what_was_finished(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}])
    out = tmp_path / "out.jsonl"
    # Far more samples than can be drawn before the signal.
    arguments = [
        "rollout", "--model", base, "--prompts", prompts, "--out", out,
        "--n-samples-per-prompt", 200_000, "--threads", 1, "--stream",
    ]  # fmt: skip
    process = subprocess.Popen(
        [quads.program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.stdout.readline()  # one response is there
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.startswith("quads: stopped: ") and error.count("\n") == 1
    assert 1 <= len(read_lines(out)) < 200_000


def test_two_processes_do_not_write_to_one_file(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}])
    out = tmp_path / "out.jsonl"
    arguments = ["rollout", "--model", base, "--prompts", prompts, "--out", out, "--threads", 1]
    process = subprocess.Popen(
        [quads.program, *map(str, arguments), "--n-samples-per-prompt", "200000", "--stream"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    process.stdout.readline()
    error = quads(*arguments, status=1).stderr
    assert f"{out}: another process" in error and error.count("\n") == 1
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert sorted(tmp_path.iterdir()) == [out, prompts]


def test_failed_rewards_are_counted_and_the_samples_kept(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8=", "label": "56"}, {"prompt": "1*1="}])
    out = tmp_path / "out.jsonl"
    program = "while read line; do echo '{\"error\": \"no grade\"}'; done"
    reward = ["--rm-type", "command", "--rm-command", program, "--rm-workers", 1]
    arguments = ["rollout", "--model", base, "--prompts", prompts, "--out", out]
    error = quads(*arguments, *reward, "--n-samples-per-prompt", 2).stderr
    assert "2 of 2 responses could not be scored; first: command: no grade\n" in error
    assert len(read_lines(out)) == 4


def test_a_reward_program_that_cannot_start_fails_before_sampling(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8=", "label": "56"}])
    out = tmp_path / "out.jsonl"
    arguments = ["rollout", "--model", base, "--prompts", prompts, "--out", out]
    error = quads(*arguments, "--rm-type", "command", "--rm-command", "no-such-program", status=1).stderr
    assert "not found" in error and error.count("\n") == 1 and not out.exists()
    error = quads(*arguments, "--rm-command", "true", status=1).stderr
    assert "--rm-command is for --rm-type command" in error
    error = quads(*arguments, "--task", "multiply", "--rm-command", "true", status=2).stderr
    assert "task multiply has its own reward" in error
    error = quads(*arguments, "--task-option", "first_digits=1", status=2).stderr
    assert "--task-option is for --task" in error


def test_progress_counts_samples(quads, base, tmp_path):
    prompts = write_lines(tmp_path / "p.jsonl", [{"prompt": "7*8="}])
    error = quads("rollout", "--model", base, "--prompts", prompts, "--out", tmp_path / "o").stderr
    assert "samples/s" in error or "s/sample" in error
