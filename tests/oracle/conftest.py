"""Fixtures that all comparisons with other libraries share."""

import os
import pathlib

import pytest


@pytest.fixture(scope="session")
def build_dir() -> pathlib.Path:
    """The CMake build folder: QUADS_BUILD_DIR, or build/ in the repository."""
    repository = pathlib.Path(__file__).resolve().parents[2]
    return pathlib.Path(os.environ.get("QUADS_BUILD_DIR", repository / "build"))
