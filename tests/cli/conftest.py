"""The built `quads` program, and a small base model made with it."""

import os
import pathlib
import subprocess

import pytest

from small_task import TASK


@pytest.fixture(scope="session")
def quads():
    """Runs the program: quads("info", "--json") -> CompletedProcess; checks the exit status, unless it is None."""
    repository = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(os.environ.get("QUADS_BUILD_DIR", repository / "build"))
    program = build / "src" / "cli" / "quads"
    assert program.exists(), f"{program} is not built"

    def run(*arguments, status=0):
        result = subprocess.run(
            [program, *map(str, arguments)], capture_output=True, text=True, timeout=120
        )
        assert status in (None, result.returncode), f"{arguments}: {result.returncode}\n{result.stderr}"
        return result

    run.program = program
    return run


@pytest.fixture(scope="session")
def base(quads, tmp_path_factory):
    """A base that has learned some one-digit multiplication."""
    out = tmp_path_factory.mktemp("base") / "model"
    quads(
        "pretrain", "--out", out, *TASK, "--hidden-size", 64, "--num-layers", 2, "--head-dim", 16,
        "--num-experts", 4, "--moe-intermediate-size", 32, "--num-steps", 200, "--batch-size", 64,
        "--lr", 5e-3, "--lr-warmup-steps", 5, "--threads", 1,
    )  # fmt: skip
    return out


@pytest.fixture
def small_disk(tmp_path):
    """A file system in memory, remounted with another size by calling it with the bytes, and "ro" or "rw"."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: a full disk needs a tmpfs, and mounting one needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64M", "tmpfs", disk])
    if mounted.returncode != 0:
        pytest.skip("NOT TESTED: a full disk needs a tmpfs, and mounting one failed")

    def resize(size, mode="rw"):
        subprocess.run(["mount", "-o", f"remount,size={size},{mode}", disk], check=True)

    resize.path = disk
    yield resize
    subprocess.run(["umount", disk], check=True)
