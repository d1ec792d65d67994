"""quads train: runs stopped, killed and resumed; metrics; every recipe and option."""

import json
import resource
import shutil
import signal
import struct
import subprocess
import time

import pytest

from small_task import TASK

SMALL = {
    "--rollout-batch-size": 2, "--n-samples-per-prompt": 4, "--rollout-max-response-len": 8,
    "--eval-problems": 4, "--num-rollout": 2, "--lr": 1e-3, "--threads": 1,
}  # fmt: skip
# Where there is no GPU, what runs on one is not tested, and the report says so.
ON_DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(
    shutil.which("nvidia-smi") is None, reason="NOT TESTED: training on a GPU: there is none"
))])  # fmt: skip
REPLAYING = ["bf16", "fp8", "w4a16", "qat-w4a4", "quads-aligned"]
OTHERS = ["nvfp4", "nvfp4-rac", "qat-w4a16", "quads"]
KEYS = {
    "step", "reward/mean", "reward/std", "rollout/response_length", "rollout/truncated", "gap/max",
    "gap/mean", "gap/p99", "gap/kl_k3", "gap/ess", "train/loss", "train/grad_norm",
    "train/clip_fraction", "train/entropy", "train/lr", "time/rollout", "time/reward", "time/train",
    "time/sync", "perf/rollout_tokens_per_s", "perf/train_tokens_per_s",
}  # fmt: skip


@pytest.fixture(scope="session")
def young(quads, tmp_path_factory):
    """A base that is right about every second time, so that there is something to learn."""
    out = tmp_path_factory.mktemp("young") / "model"
    quads(
        "pretrain", "--out", out, *TASK, "--hidden-size", 32, "--num-layers", 2, "--head-dim", 16,
        "--num-attention-heads", 2, "--num-key-value-heads", 1, "--num-experts", 4,
        "--moe-intermediate-size", 32, "--num-steps", 45, "--batch-size", 32, "--lr", 5e-3,
        "--lr-warmup-steps", 5, "--threads", 1,
    )  # fmt: skip
    return out


@pytest.fixture
def on(request, quads, tmp_path_factory):
    """on(device): the options that train there, from a base whose heads a GPU takes."""

    def options(device):
        if device == "cpu":
            return []
        out = tmp_path_factory.mktemp("wide") / "model"
        quads(
            "pretrain", "--out", out, *TASK, "--hidden-size", 64, "--num-layers", 2, "--head-dim",
            32, "--num-attention-heads", 4, "--num-key-value-heads", 2, "--num-experts", 4,
            "--moe-intermediate-size", 32, "--num-steps", 45, "--batch-size", 32, "--lr", 5e-3,
            "--lr-warmup-steps", 5, "--threads", 1,
        )  # fmt: skip
        return ["--device", device, "--load", out]

    return options


@pytest.fixture(scope="session")
def train(quads, young):
    """train(out, recipe, option...) runs into `out` and returns it."""

    def run(out, recipe, *options, status=0):
        result = quads(*arguments(out, recipe, *options), status=status)
        return out if status == 0 else result.stderr

    def arguments(out, recipe, *options):
        defaults = [word for item in SMALL.items() if item[0] not in options for word in item]
        task = [] if "--task" in options else TASK
        load = [] if "--load" in options else ["--load", young]
        return ["train", *load, "--out", out, "--recipe", recipe, *task, *defaults, *options]

    def start(out, recipe, *options):
        command = [quads.program, *map(str, arguments(out, recipe, *options))]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    run.start = start
    return run


@pytest.fixture(scope="session")
def plain(train, tmp_path_factory):
    """plain(recipe): a run without options, made once."""
    made = {}

    def run(recipe):
        if recipe not in made:
            made[recipe] = train(tmp_path_factory.mktemp("plain") / recipe, recipe)
        return made[recipe]

    return run


def rows(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def figures(run):
    """The metrics without what depends on the clock."""
    return [
        {key: v for key, v in row.items() if not key.startswith(("time/", "perf/"))}
        for row in rows(run)
    ]


def checkpoints(run):
    return sorted(path.name for path in (run / "checkpoints").iterdir())


def checkpoint(run, step):
    """Every file of a checkpoint: bytes by name."""
    root = run / "checkpoints" / f"step_{step:06}"
    files = {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert {"model.safetensors", "trainer/optimizer.safetensors", "trainer/masks.safetensors"} <= (
        files.keys()
    )
    return files


def tensors(data):
    """A safetensors file's tensors: (dtype, bytes) by name."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    return {
        name: (entry["dtype"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def wait_for_rows(process, run, count):
    deadline = time.monotonic() + 60
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or metrics.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, f"fewer than {count} steps in a minute"
        time.sleep(0.001)


def one_line(error):
    """The error, after which nothing and before which at most progress is printed."""
    *progress, error, rest = error.split("\n")
    assert error.startswith("quads: ") and not rest, error
    notices = ("quads ", "memory of the device: ", "training on the built-in task ", "continued with other settings: ")
    assert all(line.startswith(notices) for line in progress), progress
    return error


# What is kept between steps.


@ON_DEVICES
@pytest.mark.parametrize("recipe", ["quads", "quads-aligned"])
def test_a_killed_run_continues_to_the_same_bits(train, on, tmp_path, recipe, device):
    options = ["--rac-ratio", 0.5, "--save-interval", 5, *on(device)]
    killed = tmp_path / "killed"
    resume, wanted = [], 7
    for _ in range(2):
        process = train.start(killed, recipe, *options, *resume, "--num-rollout", 1_000_000)
        wait_for_rows(process, killed, wanted)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        newest = int(max(n for n in checkpoints(killed) if n.startswith("step_"))[len("step_"):])
        resume, wanted = ["--resume"], newest + 7
    total = newest + 5
    train(killed, recipe, *options, "--num-rollout", total, "--resume")
    whole = train(tmp_path / "whole", recipe, *options, "--num-rollout", total)
    assert [row["step"] for row in rows(whole)] == list(range(total))
    assert figures(killed) == figures(whole)
    assert (killed / "samples.jsonl").read_bytes() == (whole / "samples.jsonl").read_bytes()
    assert checkpoint(killed, total) == checkpoint(whole, total)
    assert checkpoints(killed) == checkpoints(whole)  # nothing half-written is left


@ON_DEVICES
def test_ctrl_c_saves_the_last_step_and_resuming_gives_the_same_bits(train, on, tmp_path, device):
    stopped, options = tmp_path / "stopped", on(device)
    process = train.start(stopped, "quads", *options, "--num-rollout", 1_000_000)
    wait_for_rows(process, stopped, 3)
    process.send_signal(signal.SIGINT)
    output, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    done = len(rows(stopped))
    message = f"quads: stopped after step {done} of 1000000; continue with --resume\n"
    assert not output and error.endswith(message)
    assert checkpoints(stopped) == [f"step_{done:06}"]
    total = done + 3

    before = checkpoint(stopped, done)
    refusal = one_line(train(stopped, "quads", *options, "--num-rollout", total, status=1))
    assert str(stopped) in refusal and "--resume" in refusal
    assert checkpoint(stopped, done) == before and len(rows(stopped)) == done

    train(stopped, "quads", *options, "--num-rollout", total, "--resume")
    whole = train(tmp_path / "whole", "quads", *options, "--num-rollout", total)
    assert figures(stopped) == figures(whole)
    assert checkpoint(stopped, total) == checkpoint(whole, total)


def test_resuming_a_finished_run_changes_nothing(quads, train, tmp_path):
    run = train(tmp_path / "run", "quads")
    before = (run / "metrics.jsonl").read_bytes(), checkpoint(run, 2)
    result = quads("train", "--config", run / "config.toml", "--out", run, "--resume")
    assert result.stderr == "already at step 2 of 2; nothing to do\n"
    assert ((run / "metrics.jsonl").read_bytes(), checkpoint(run, 2)) == before


@pytest.mark.parametrize("exists", [False, True])
def test_resuming_what_is_not_there_is_an_error(train, tmp_path, exists):
    run = tmp_path / "run"
    if exists:
        run.mkdir()
    error = one_line(train(run, "bf16", "--resume", status=1))
    assert error == (
        f"quads: --resume: {run} holds no run to continue: correct --out, or leave --resume out to "
        "start one there"
    )
    assert run.exists() == exists and not list(tmp_path.rglob("*.*"))


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_again(quads, train, tmp_path):
    done = train(tmp_path / "done", "bf16", "--num-rollout", 1)
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_bytes((done / "config.toml").read_bytes())
    result = quads("train", "--config", done / "config.toml", "--out", run, "--resume")
    assert result.stderr.startswith(f"WARNING: {run} has no checkpoint: starting from step 0\n")
    assert figures(run) == figures(done)


def test_continuing_with_other_settings_tells_them(train, tmp_path):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)

    def errors(*options):
        process = train.start(run, "bf16", *options, "--resume")
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
        return [line for line in error.splitlines() if line.startswith("continued with")]

    told = errors("--num-rollout", 2, "--lr", 5e-4, "--clip-grad", 0.5)
    assert told == [
        "continued with other settings: clip-grad was 1, is 0.5; lr was 0.001, is 0.0005; "
        "num-rollout was 1, is 2"
    ]
    assert "lr = 0.0005" in (run / "config.toml").read_text()
    told = errors("--num-rollout", 3, "--lr", 5e-4, "--clip-grad", 0.5)
    assert told == ["continued with other settings: num-rollout was 2, is 3"]


def test_a_run_continued_from_its_own_configuration_has_no_other_settings(quads, train, tmp_path):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1, "--lr", "1e-3")
    assert 'rm-type = [\'exact\']' in (run / "config.toml").read_text()
    result = quads("train", "--config", run / "config.toml", "--num-rollout", 2, "--resume")
    assert "continued with other settings: num-rollout was 1, is 2\n" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_arrives_twice_is_one(train, tmp_path, number):
    run = tmp_path / "run"
    process = train.start(run, "quads", "--num-rollout", 1_000_000)
    wait_for_rows(process, run, 2)
    process.send_signal(number)
    time.sleep(0.005)
    process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130, error
    assert checkpoints(run) == [f"step_{len(rows(run)):06}"]


def test_training_on_the_built_in_task_says_so(train, tmp_path):
    process = train.start(tmp_path / "run", "bf16", "--num-rollout", 1)
    _, error = process.communicate(timeout=120)
    assert error.splitlines()[0] == (
        "training on the built-in task multiply; --prompt-data F.jsonl trains on your own problems"
    )


def test_two_processes_do_not_write_into_one_run(train, tmp_path):
    run = tmp_path / "run"
    process = train.start(run, "bf16", "--num-rollout", 1_000_000)
    wait_for_rows(process, run, 1)
    error = one_line(train(run, "bf16", "--resume", status=1))
    assert str(run) in error and "another process" in error
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 130 and checkpoints(run)
    assert not list(run.glob(".*"))


def test_resuming_under_another_recipe_is_refused(train, tmp_path):
    run = train(tmp_path / "run", "quads", "--num-rollout", 1)
    before = (run / "metrics.jsonl").read_bytes(), (run / "config.toml").read_bytes()
    error = one_line(train(run, "bf16", "--resume", status=1))
    assert "quads" in error and "bf16" in error
    assert ((run / "metrics.jsonl").read_bytes(), (run / "config.toml").read_bytes()) == before


def test_a_full_disk_is_an_error_that_leaves_the_last_checkpoint(train, small_disk, tmp_path):
    options = ["--save-interval", 2, "--keep-checkpoints", 0]
    whole = train(tmp_path / "whole", "quads", *options, "--num-rollout", 6)
    size = sum(map(len, checkpoint(whole, 2).values()))
    small_disk(int(2.5 * size))
    run = small_disk.path / "run"
    error = one_line(train(run, "quads", *options, "--num-rollout", 6, status=1))
    assert "No space left" in error and str(run) in error
    assert checkpoints(run) == ["step_000002", "step_000004"]
    assert checkpoint(run, 4) == checkpoint(whole, 4)
    small_disk("64M")
    train(run, "quads", *options, "--num-rollout", 6, "--resume")
    assert figures(run) == figures(whole)
    assert checkpoint(run, 6) == checkpoint(whole, 6)


def test_a_limit_on_file_sizes_is_an_error_that_names_the_file(quads, train, tmp_path):
    limit = 64 << 10  # less than the optimizer's state, more than all other files
    whole = train(tmp_path / "whole", "quads")
    size = {name: len(data) for name, data in checkpoint(whole, 2).items()}
    assert size["trainer/optimizer.safetensors"] > limit
    run = tmp_path / "run"
    command = [quads.program, "train", "--config", whole / "config.toml", "--out", run]
    result = subprocess.run(
        command, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert result.returncode == 1
    error = one_line(result.stderr)
    assert "safetensors: cannot write: File too large" in error and str(run) in error
    assert checkpoints(run) == []


def test_the_newest_checkpoints_are_kept(train, tmp_path):
    options = ["--num-rollout", 5, "--save-interval", 1]
    two = train(tmp_path / "two", "bf16", *options, "--keep-checkpoints", 2)
    assert checkpoints(two) == ["step_000004", "step_000005"]
    every = train(tmp_path / "every", "bf16", *options, "--keep-checkpoints", 0)
    assert checkpoints(every) == [f"step_{step:06}" for step in range(1, 6)]


@pytest.mark.parametrize("name", ["optimizer.safetensors", "masks.safetensors", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_a_damaged_checkpoint_is_named(train, tmp_path, name, damage):
    run = train(tmp_path / "run", "quads", "--num-rollout", 1)
    file = run / "checkpoints" / "step_000001" / "trainer" / name
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data if damage == "flip" else data[:-1])
    error = one_line(train(run, "quads", "--resume", status=1))
    assert str(file) in error and "changed since it was saved" in error


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"step": -5}, "step is -5"),
        ({"step": 10**18}, f"step is {10**18}"),
        ({"updates": -1}, "updates is -1, expected one in"),
        ({"next_prompt": 2**62}, f"next_prompt is {2**62}"),
        ({"optimizer_updates": 3}, "optimizer_updates is 3"),
    ],
    ids=str,
)
def test_a_state_out_of_range_is_named(train, tmp_path, changes, named):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    trainer = run / "checkpoints" / "step_000001" / "trainer"
    (trainer / "checksums.json").unlink()  # as another program would write it
    state = json.loads((trainer / "state.json").read_text())
    (trainer / "state.json").write_text(json.dumps(state | changes))
    error = one_line(train(run, "bf16", "--resume", status=1))
    assert str(trainer / "state.json") in error and named in error


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800000, 0x80000001], ids=hex)
def test_moments_that_cannot_be_are_named(train, tmp_path, bits):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    trainer = run / "checkpoints" / "step_000001" / "trainer"
    (trainer / "checksums.json").unlink()
    file = trainer / "optimizer.safetensors"
    data = file.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    name = next(name for name in header if name.startswith("exp_avg_sq."))
    at = 8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0]
    file.write_bytes(data[:at] + bits.to_bytes(4, "little") + data[at + 4 :])
    error = one_line(train(run, "bf16", "--resume", status=1))
    assert str(file) in error and name in error


@pytest.mark.parametrize("line", ["[]", "{", '{"step": "x"}'])
def test_a_damaged_step_without_evaluation_is_named(train, tmp_path, line):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    (run / "unevaluated.json").write_text(line)
    error = one_line(train(run, "bf16", "--num-rollout", 2, "--resume", status=1))
    assert str(run / "unevaluated.json") in error


def test_a_step_without_evaluation_of_no_checkpoint_is_removed(train, tmp_path):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    (run / "unevaluated.json").write_text('{"step": 4}')
    train(run, "bf16", "--num-rollout", 2, "--resume")
    assert [row["step"] for row in rows(run)] == [0, 1]
    assert not (run / "unevaluated.json").exists()


def test_what_is_no_checkpoint_does_not_keep_a_run_from_resuming(train, tmp_path):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    (run / "checkpoints" / "step_000009").mkdir()
    (run / "checkpoints" / "step_-1").mkdir()
    (run / "checkpoints" / "step_10").touch()
    train(run, "bf16", "--num-rollout", 2, "--resume")
    assert [row["step"] for row in rows(run)] == [0, 1]


def test_what_a_killed_process_was_writing_is_removed(train, tmp_path):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    (run / ".tmp-config.toml-1").touch()
    train(run, "bf16", "--num-rollout", 2, "--resume")
    assert not list(run.glob(".*"))


@pytest.mark.parametrize("line", ["[1]", '{"step": "x"}', "{}"])
def test_a_line_of_samples_that_is_none_is_named(train, tmp_path, line):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    samples = run / "samples.jsonl"
    samples.write_text(line + "\n")
    error = one_line(train(run, "bf16", "--num-rollout", 2, "--resume", status=1))
    assert f"{samples}:1: " in error


def test_a_message_moves_no_cursor(quads, tmp_path):
    missing = tmp_path / "x\x1b[2Jy"
    error = quads("train", "--load", missing, "--out", tmp_path / "o", status=1).stderr
    assert "\x1b" not in error and "x\\x1b[2Jy" in error


def test_a_checkpoint_under_another_name_is_refused(train, tmp_path):
    run = train(tmp_path / "run", "bf16", "--num-rollout", 1)
    (run / "checkpoints" / "step_000001").rename(run / "checkpoints" / "step_000005")
    assert "its step is 1" in one_line(train(run, "bf16", "--num-rollout", 9, "--resume", status=1))


def test_a_checkpoint_is_a_model_that_eval_and_transformers_load(quads, train, tmp_path):
    run = train(tmp_path / "run", "quads")
    model = run / "checkpoints" / "step_000002"
    result = quads(
        "eval", "--model", model, *TASK, "--problems", 4, "--max-response-len", 8, "--json"
    )
    assert json.loads(result.stdout)["evaluations"]

    import torch
    from transformers import AutoModelForCausalLM

    loaded, info = AutoModelForCausalLM.from_pretrained(
        model, dtype="auto", output_loading_info=True
    )
    assert type(loaded).__name__ == "Qwen3MoeForCausalLM"
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    saved = tensors((model / "model.safetensors").read_bytes())
    trained = loaded.model.norm.weight.detach().view(torch.uint8)
    assert saved["model.norm.weight"] == ("BF16", trained.numpy().tobytes())


@pytest.mark.parametrize("ratio, says", [
    ("nvfp4-rac", "under the checkpoint's compensation masks"),
    ("nvfp4-rac25", "masks are for another share or scope"),
    ("bf16", None),
])  # fmt: skip
def test_eval_takes_a_checkpoints_masks_if_they_fit(quads, plain, ratio, says):
    model = plain("quads") / "checkpoints" / "step_000002"
    options = [*TASK, "--problems", 2, "--max-response-len", 4, "--precision", ratio]
    error = quads("eval", "--model", model, *options).stderr
    assert (says in error) if says else ("masks" not in error)


# Metrics.


def test_every_metric_is_there_and_tensorboard_reads_the_same(train, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tmp_path / "run", "quads", "--num-rollout", 4, "--eval-interval", 2)
    written = rows(run)
    for step, row in enumerate(written):
        assert row["step"] == step
        assert KEYS | {"rac/ratio", "rac/energy"} <= row.keys()
        assert ("eval/pass@1" in row) == (step % 2 == 1)
        assert all(isinstance(value, (int, float)) for value in row.values())
    events = EventAccumulator(str(run))
    events.Reload()
    keys = {key for row in written for key in row} - {"step"}
    assert set(events.Tags()["scalars"]) == keys
    for key in keys:
        expected = [
            (row["step"], struct.unpack("f", struct.pack("f", row[key]))[0])
            for row in written
            if key in row
        ]
        assert [(event.step, event.value) for event in events.Scalars(key)] == expected


def test_threads_do_not_change_a_bit(train, tmp_path):
    one, *others = [
        train(tmp_path / f"{threads}", "quads-aligned", "--num-rollout", 5, "--rac-ratio", 0.5,
              "--threads", threads)
        for threads in (1, 2, 3)
    ]  # fmt: skip
    for other in others:
        assert figures(other) == figures(one)
        assert checkpoint(other, 5) == checkpoint(one, 5)


def test_the_written_configuration_repeats_the_run(quads, train, tmp_path):
    run = train(
        tmp_path / "run", "nvfp4-rac", "--rac-ratio", "25%", "--dynamic-sampling",
        "--high-precision-last-layers", 1, "--rollout-seed", 7,
    )  # fmt: skip
    again = tmp_path / "again"
    quads("train", "--config", run / "config.toml", "--out", again)
    assert figures(again) == figures(run)
    assert checkpoint(again, 2) == checkpoint(run, 2)


# Recipes.


@pytest.mark.parametrize("recipe", REPLAYING)
def test_the_gap_is_zero_where_the_trainer_replays_the_rollout(train, tmp_path, recipe):
    run = train(tmp_path / "run", recipe, "--num-rollout", 3, "--verify-interval", 1)
    for row in rows(run):
        assert row["gap/max"] == row["gap/mean"] == row["gap/kl_k3"] == 0 and row["gap/ess"] == 1
        assert row["gap/verified_max"] == 0
    assert any(row["train/grad_norm"] > 0 for row in rows(run)[:-1])  # the weights did change


@pytest.mark.parametrize("recipe", OTHERS)
def test_the_gap_is_not_zero_where_precisions_differ(plain, recipe):
    for row in rows(plain(recipe)):
        assert row["gap/max"] >= row["gap/p99"] >= row["gap/mean"] > 0
        assert row["gap/kl_k3"] > 0 and 0 < row["gap/ess"] < 1


def test_the_tests_know_every_recipe(train, tmp_path):
    error = one_line(train(tmp_path / "run", "none", status=2))
    known = error.split("not in {")[1].strip().rstrip("}").split(",")
    assert sorted(known) == sorted(REPLAYING + OTHERS)


@ON_DEVICES
@pytest.mark.parametrize("recipe", ["bf16", "fp8", "quads", "qat-w4a4"])
def test_another_engine_in_the_trainer_has_a_gap(train, on, tmp_path, device, recipe):
    options = ["--trainer-kernels", "aten", *on(device)]
    run = train(tmp_path / "run", recipe, *options)
    assert all(row["gap/max"] > 0 for row in rows(run))
    again = train(tmp_path / "again", recipe, *options)
    assert figures(again) == figures(run)


@ON_DEVICES
def test_masks_cannot_be_replayed_by_another_engine(train, on, tmp_path, device):
    error = train(
        tmp_path / "run", "quads-aligned", "--trainer-kernels", "aten", *on(device), status=2
    )
    assert "--trainer-kernels shared" in one_line(error)


# Options.


@pytest.mark.parametrize("kind", ["tis", "mis", "icepop"])
def test_corrections_weigh_the_loss(train, tmp_path, kind):
    options = ["--n-samples-per-prompt", 8]
    plain = train(tmp_path / "plain", "nvfp4", *options, "--old-logprobs", "recomputed")
    run = train(
        tmp_path / "run", "nvfp4", *options, "--correction", kind, "--tis-clip", 1.01,
        "--tis-clip-low", 0.99,
    )  # fmt: skip
    assert rows(run)[0]["train/loss"] != rows(plain)[0]["train/loss"]
    row = rows(run)[0]
    assert row["train/truncated_fraction"] + row["train/masked_fraction"] > 0


def test_use_tis_is_the_correction_tis(train, tmp_path):
    run = train(tmp_path / "a", "nvfp4", "--use-tis")
    same = train(tmp_path / "b", "nvfp4", "--correction", "tis")
    assert figures(run) == figures(same)


def test_the_kl_term_starts_at_zero_and_survives_resuming(train, tmp_path):
    options = ["--kl-loss-coef", 0.1, "--save-interval", 1]
    whole = train(tmp_path / "whole", "bf16", *options, "--num-rollout", 4)
    divergence = [row["train/ref_kl"] for row in rows(whole)]
    assert divergence[0] == 0 and divergence[-1] > 0
    parts = train(tmp_path / "parts", "bf16", *options)
    train(parts, "bf16", *options, "--num-rollout", 4, "--resume")
    assert figures(parts)[2:] == figures(whole)[2:]  # a last step is evaluated as well
    assert checkpoint(parts, 4) == checkpoint(whole, 4)


def test_dynamic_sampling_trains_on_prompts_whose_samples_differ(train, tmp_path):
    run = train(
        tmp_path / "run", "bf16", "--num-rollout", 3, "--dynamic-sampling",
        "--dynamic-sampling-max-rounds", 50,
    )  # fmt: skip
    for row in rows(run):
        assert row["rollout/prompts_sampled"] >= 2
        assert row["reward/std"] > 0 and row["train/grad_norm"] > 0


def test_dynamic_sampling_resumes_to_the_same_bits(train, tmp_path):
    options = ["--dynamic-sampling", "--save-interval", 2]
    whole = train(tmp_path / "whole", "quads", *options, "--num-rollout", 4)
    parts = train(tmp_path / "parts", "quads", *options)
    train(parts, "quads", *options, "--num-rollout", 4, "--resume")
    assert figures(parts)[2:] == figures(whole)[2:]
    assert checkpoint(parts, 4) == checkpoint(whole, 4)


@pytest.mark.parametrize(
    "option",
    [
        ["--overlong-buffer-len", 6],
        ["--ratio-level", "sequence"],
        ["--loss-aggregation", "constant"],
        ["--loss-aggregation", "sequence-mean"],
        ["--advantage-estimator", "dr_grpo"],
        ["--master-dtype", "bf16"],
        ["--lr-warmup-steps", 2],
        ["--weight-decay", 0.1],
        ["--rac-granularity", "block"],
        ["--quantize", "linears"],
        ["--high-precision-first-layers", 1],
    ],
    ids=lambda option: " ".join(map(str, option)),
)
def test_an_option_changes_the_training(train, plain, tmp_path, option):
    run = train(tmp_path / "run", "quads", *option)
    name = "model.safetensors"
    assert checkpoint(run, 2)[name] != checkpoint(plain("quads"), 2)[name]


def test_bf16_masters_hold_nothing_below_bf16(train, tmp_path):
    run = train(tmp_path / "run", "quads", "--master-dtype", "bf16")
    saved = tensors(checkpoint(run, 2)["trainer/optimizer.safetensors"])
    masters = [data for name, (_, data) in saved.items() if name.startswith("master.")]
    assert masters
    for data in masters:
        assert not any(data[0::4]) and not any(data[1::4])


def test_recomputing_activations_or_smaller_micro_batches_change_no_log_prob(train, tmp_path):
    plain = train(tmp_path / "plain", "quads-aligned", "--num-rollout", 4)
    saved = train(
        tmp_path / "run", "quads-aligned", "--num-rollout", 4, "--recompute-activations"
    )
    assert figures(saved) == figures(plain)
    assert checkpoint(saved, 4) == checkpoint(plain, 4)
    small = train(
        tmp_path / "small", "quads-aligned", "--num-rollout", 4, "--max-tokens-per-batch", 16
    )
    assert all(row["gap/max"] == 0 for row in rows(small))


def test_several_updates_a_rollout(train, tmp_path):
    run = train(
        tmp_path / "run", "quads-aligned", "--num-rollout", 3, "--global-batch-size", 4,
        "--rac-ratio", 0.5, "--verify-interval", 1,
    )  # fmt: skip
    state = json.loads(checkpoint(run, 3)["trainer/state.json"])
    assert state["updates"] == 6 and state["step"] == 3
    assert all(row["gap/max"] == row["gap/verified_max"] == 0 for row in rows(run))


def test_routing_replay_narrows_the_gap(train, tmp_path):
    options = ["--num-rollout", 1, "--rollout-batch-size", 16]
    plain = train(tmp_path / "plain", "nvfp4", *options)
    run = train(tmp_path / "run", "nvfp4", *options, "--use-rollout-routing-replay")
    assert 0 < rows(run)[0]["gap/mean"] < rows(plain)[0]["gap/mean"]


def test_routing_replay_keeps_a_zero_gap(train, tmp_path):
    run = train(
        tmp_path / "run", "quads-aligned", "--use-rollout-routing-replay"
    )
    assert all(row["gap/max"] == 0 for row in rows(run))


def test_other_precisions_than_the_recipes(train, tmp_path):
    precisions = ["--rollout-precision", "w16a4", "--trainer-precision", "w16a4"]
    run = train(tmp_path / "run", "bf16", *precisions)
    assert all(row["gap/max"] == 0 for row in rows(run))
    run = train(tmp_path / "half", "bf16", *precisions[:2])
    assert all(row["gap/max"] > 0 for row in rows(run))


def test_truncated_sampling_must_be_allowed(train, tmp_path):
    for option in (["--rollout-top-p", 0.9], ["--rollout-top-k", 3]):
        error = one_line(train(tmp_path / "run", "bf16", *option, status=2))
        assert "--allow-truncated-sampling" in error
        allowed = tmp_path / option[0]
        train(allowed, "bf16", "--num-rollout", 1, *option, "--allow-truncated-sampling")
        assert rows(allowed)[0]["gap/max"] == 0


@pytest.mark.parametrize(
    "recipe, options, status, named",
    [
        ("bf16", ["--rollout-precision", "int3"], 2, "int3"),
        ("bf16", ["--trainer-precision", "nvfp4x"], 2, "nvfp4x"),
        ("quads", ["--rac-ratio", "1.5"], 2, "--rac-ratio"),
        ("quads", ["--rac-ratio", "half"], 2, "--rac-ratio"),
        ("quads", ["--rac-ratio", "50"], 2, "write 0.5 or 50%"),
        ("quads", ["--rac-ratio", "nan"], 2, "--rac-ratio"),
        ("bf16", ["--rac-ratio", "0.5"], 2, "--rac-ratio"),
        ("quads", ["--rac-granularity", "row"], 2, "--rac-granularity"),
        ("quads", ["--trainer-kernels", "other"], 2, "--trainer-kernels"),
        ("quads", ["--correction", "magic"], 2, "--correction"),
        ("quads", ["--loss-aggregation", "sum"], 2, "--loss-aggregation"),
        ("quads", ["--lr-decay", "step"], 2, "--lr-decay"),
        ("quads", ["--kv-memory", "12parsecs"], 2, "--kv-memory"),
        ("quads", ["--kv-memory", "-1"], 2, "--kv-memory"),
        ("quads", ["--global-batch-size", 3], 2, "--global-batch-size"),
        ("quads", ["--global-batch-size", -8], 2, "--global-batch-size"),
        ("quads", ["--global-batch-size", 3], 2, "--rollout-batch-size 2"),
        ("quads", ["--global-batch-size", 2], 2, "--n-samples-per-prompt 4"),
        ("quads", ["--num-rollout", -1], 2, "--num-rollout"),
        ("quads", ["--num-rollout", 0], 2, "--num-rollout is 0, expected at least 1"),
        ("quads", ["--rollout-batch-size", 0], 2, "--rollout-batch-size"),
        ("quads", ["--lr-warmup-steps", 3], 2, "--lr-warmup-steps 3 is more than the run's 2"),
        ("quads", ["--rollout-max-context-len", 1025], 1, "max_position_embeddings = 1024"),
        ("quads", ["--rollout-max-response-len", 1024], 1, "--rollout-max-response-len 1024"),
        ("quads", ["--eval-max-response-len", 1024], 1, "--eval-max-response-len 1024"),
        ("quads", ["--lr", 1, "--lr", 2], 2, "--lr is given 2 times: give it once"),
        ("bf16", ["--rac-ratio", "0.5"], 2, "nvfp4-rac, quads, quads-aligned have"),
        ("quads", ["--n-samples-per-prompt", 0], 2, "--n-samples-per-prompt"),
        ("quads", ["--n-samples-per-prompt", 1], 2, "--advantage-estimator grpo compares"),
        ("quads", ["--n-samples-per-prompt", 1, "--advantage-estimator", "dr_grpo"], 2, "dr_grpo"),
        ("quads", ["--rm-command", "true"], 2, "--rm-command is for --rm-type command"),
        ("quads", ["--rm-weights", "1"], 2, "task multiply has its own reward"),
        ("quads", ["--rollout-temperature", 0], 2, "--rollout-temperature"),
        ("quads", ["--rollout-temperature", "nan"], 2, "--rollout-temperature"),
        ("quads", ["--rollout-temperature", "inf"], 2, "--rollout-temperature"),
        ("quads", ["--rollout-temperature", 1e-39], 2, "--rollout-temperature must be finite and at"),
        ("quads", ["--eval-temperature", 1e-39], 2, "--eval-temperature"),
        ("quads", ["--use-tis", "--correction", "mis"], 2, "--use-tis is --correction tis, but --correction mis"),
        ("quads", ["--use-tis", "--old-logprobs", "rollout"], 2, "--use-tis weighs the trainer's"),
        ("quads", ["--correction", "mis", "--old-logprobs", "rollout"], 2, "--correction mis weighs"),
        ("quads", ["--correction", "mis", "--old-logprobs", "rollout"], 2, "--old-logprobs rollout does"),
        ("quads", ["--rollout-precision", "bf16", "--rac-ratio", "25%"], 2,
         "--rac-ratio 0.25: recipe quads --rollout-precision bf16 has no residual compensation"),
        ("quads", ["--rollout-shuffle", "--no-rollout-shuffle"], 2,
         "--rollout-shuffle and --no-rollout-shuffle are both given"),
        ("quads", ["--lr", "nan"], 2, "lr"),
        ("quads", ["--lr", -1], 2, "--lr is -1"),
        ("quads", ["--eps-clip", -0.1], 2, "--eps-clip is -0.1"),
        ("quads", ["--seed", -1], 2, "--seed: -1 is not a number of at least 0"),
        ("quads", ["--rollout-seed", -1], 2, "--rollout-seed: -1 is not a number"),
        ("quads", ["--kl-loss-coef", -1], 2, "kl"),
        ("quads", ["--correction", "tis", "--tis-clip", -1], 2, "--tis-clip: -1"),
        ("quads", ["--correction", "mis", "--tis-clip", 0.1], 2, "--tis-clip"),
        ("quads", ["--overlong-buffer-len", 9], 2, "--overlong-buffer-len is 9, expected at most 8"),
        ("quads", ["--lr-decay", "cosine", "--lr-warmup-steps", 2], 2, "--lr-warmup-steps"),
        ("bf16", ["--eval-temperature", "nan"], 2, "--eval-temperature"),
        ("quads", ["--max-tokens-per-batch", 0], 2, "--max-tokens-per-batch"),
        ("quads", ["--save-interval", -1], 2, "--save-interval"),
        ("quads", ["--keep-checkpoints", -1], 2, "--keep-checkpoints"),
        ("quads", ["--rollout-max-context-len", 4], 1, "context"),
        ("quads", ["--high-precision-first-layers", 2], 1, "--high-precision-first-layers"),
        ("quads", ["--n-samples-per-prompt", 2**31], 2, "--n-samples-per-prompt"),
        ("quads", ["--n-samples-per-prompt", 2**32 + 2], 2, "--n-samples-per-prompt"),
        ("quads", ["--n-samples-per-eval-prompt", 2**32 + 2], 2, "--n-samples-per-eval-prompt"),
        ("quads", ["--rollout-batch-size", 2**40], 2, "--rollout-batch-size"),
        ("quads", ["--rollout-batch-size", 2**23], 2, "33554432 samples, expected at most"),
        ("quads", ["--num-rollout", 2**62], 2, "--num-rollout"),
        ("quads", ["--adam-beta1", 1], 2, "--adam-beta1 is 1, expected one in [0, 1)"),
        ("quads", ["--adam-beta2", -0.1], 2, "--adam-beta2"),
        ("quads", ["--adam-beta2", "nan"], 2, "--adam-beta2"),
        ("quads", ["--adam-eps", 0], 2, "--adam-eps"),
        ("quads", ["--adam-eps", "inf"], 2, "--adam-eps"),
        ("quads", ["--weight-decay", "nan"], 2, "--weight-decay"),
        ("quads", ["--clip-grad", -1], 2, "--clip-grad"),
        ("quads", ["--clip-grad", "nan"], 2, "--clip-grad"),
        ("quads", ["--task", "chess"], 2, "chess"),
        ("quads", ["--max-running", 0], 2, "--max-running is 0, expected at least 1"),
        ("quads", ["--rollout-top-p", 0], 2, "--rollout-top-p is 0"),
        ("quads", ["--isa", "mmx"], 2, "--isa"),
        ("quads", ["--threads", -1], 2, "--threads"),
        ("quads", ["--no-such-option", 1], 2, "--no-such-option"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_options_are_one_line(train, tmp_path, recipe, options, status, named):
    out = tmp_path / "run"
    error = one_line(train(out, recipe, *options, status=status))
    assert named in error
    assert not out.exists()


def test_a_run_is_not_written_into_a_model(quads, base):
    error = quads("train", *TASK, "--load", base, "--out", base, "--num-rollout", 1, status=1).stderr
    assert "holds a model: choose a folder of the run's own" in error
    assert not (base / "metrics.jsonl").exists()


def test_a_missing_base_is_named(quads, tmp_path):
    missing = tmp_path / "missing"
    error = one_line(quads("train", "--load", missing, "--out", tmp_path / "o", status=1).stderr)
    assert str(missing) in error
