"""quads pretrain."""

import pytest

from small_task import TASK

SMALL = [
    *TASK, "--hidden-size", 32, "--num-layers", 1, "--num-attention-heads", 2,
    "--num-key-value-heads", 1, "--head-dim", 16, "--num-experts", 2, "--num-experts-per-tok", 1,
    "--moe-intermediate-size", 32, "--num-steps", 1, "--batch-size", 1, "--lr-warmup-steps", 0,
    "--threads", 1,
]  # fmt: skip


@pytest.mark.parametrize("options, message", [
    (["--hidden-size", 100], "--hidden-size is 100; the kernels need a multiple of 32"),
    (["--head-dim", 24], "--head-dim is 24; the kernels need a multiple of 16"),
    (["--num-attention-heads", 1], "--num-attention-heads * --head-dim is 16; the kernels need"),
    (["--moe-intermediate-size", 33], "--moe-intermediate-size is 33; the kernels need"),
    (["--num-experts", 0, "--intermediate-size", 33], "--intermediate-size is 33; the kernels need"),
    (["--num-attention-heads", 4, "--num-key-value-heads", 3],
     "--num-attention-heads = 4 is not a multiple of --num-key-value-heads = 3"),
    (["--num-experts-per-tok", 3], "--num-experts-per-tok = 3 is not in 1..--num-experts = 2"),
    (["--num-layers", 10**9], "--num-layers = 1000000000 is not in"),
])  # fmt: skip
def test_a_size_that_cannot_be_is_wrong_usage_in_the_options_name(quads, tmp_path, options, message):
    kept = []
    for name, value in zip(SMALL[len(TASK) :: 2], SMALL[len(TASK) + 1 :: 2]):
        if name not in options:
            kept += [name, value]
    error = quads("pretrain", "--out", tmp_path / "m", *TASK, *kept, *options, status=2).stderr
    assert message in error and "config.json" not in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_was_writing_is_removed(quads, tmp_path):
    (tmp_path / ".tmp-m-1").mkdir()
    (tmp_path / ".tmp-m-2-1").mkdir()  # of the output m-2
    quads("pretrain", "--out", tmp_path / "m", *SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".tmp-m-2-1", "m"]
