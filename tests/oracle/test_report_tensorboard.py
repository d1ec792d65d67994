"""TensorBoard's own reader gets back from our event files what was written."""

import math
import struct
import subprocess

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.fixture
def write_events(build_dir, tmp_path):
    tool = build_dir / "tests/report/report_tool"

    def write(first, last, resume):
        subprocess.run([tool, "events", tmp_path, str(first), str(last), str(resume)], check=True)

    return write


def read(directory):
    events = EventAccumulator(str(directory))
    events.Reload()
    return events


def as_float32(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def test_reads_every_step_and_value_to_the_bit(write_events, tmp_path):
    write_events(0, 6, 0)
    events = read(tmp_path)
    assert sorted(events.Tags()["scalars"]) == ["count", "gap/max", "reward/mean", "train/lr"]
    rewards = events.Scalars("reward/mean")
    assert [event.step for event in rewards] == list(range(6))
    assert [event.value for event in rewards] == [as_float32(0.1 * step) for step in range(6)]
    rates = [event.value for event in events.Scalars("train/lr")]
    assert rates == [as_float32(1e-4 / (step + 1)) for step in range(6)]
    assert [event.value for event in events.Scalars("count")] == list(range(6))
    assert all(event.wall_time > 1.7e9 for event in rewards)


def test_keeps_zeros_and_infinities(write_events, tmp_path):
    write_events(0, 5, 0)
    gaps = [event.value for event in read(tmp_path).Scalars("gap/max")]
    assert gaps == [0, 0, 0, math.inf, 0]


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint(write_events, tmp_path):
    write_events(0, 8, 0)
    write_events(4, 10, 4)
    assert [event.step for event in read(tmp_path).Scalars("count")] == list(range(10))


def test_a_file_cut_in_the_middle_of_a_record_still_reads(write_events, tmp_path):
    write_events(0, 5, 0)
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    assert [event.step for event in read(tmp_path).Scalars("count")] == list(range(4))
