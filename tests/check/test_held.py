"""What a check keeps: large arrays lie in files from some bytes on, with every element as it was."""

from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from graphopt.check import held as module
from graphopt.check.held import Held


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "LARGE", 64)
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def mapped_bytes(folder: Path) -> int:
    """Bytes of files of a folder that this process maps, though they have no name any more."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ends = [line.split()[0].split("-") for line in lines if str(folder) in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ends)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.bool_, np.float16, ml_dtypes.bfloat16, np.complex64])
def test_arrays_beyond_the_first_ones_lie_in_files_without_names(kind: type, tmp_path: Path) -> None:
    arrays = [np.random.default_rng(seed).integers(0, 2, (9, 11)).astype(kind) for seed in range(3)]
    kept = Held(most=arrays[0].nbytes).all([*arrays, None, arrays[1][:2, :2]])
    assert kept[0] is arrays[0], "the first ones stay in memory"
    assert kept[1] is not arrays[1] and kept[3] is None
    for one, other in zip(arrays, kept, strict=False):
        assert isinstance(other, np.ndarray)
        assert other.dtype == one.dtype and other.shape == one.shape and other.tobytes() == one.tobytes()
    assert mapped_bytes(tmp_path) >= 2 * os.sysconf("SC_PAGE_SIZE") and not list(tmp_path.iterdir())


def test_turned_arrays_keep_their_order(tmp_path: Path) -> None:
    array = np.arange(120.0).reshape(10, 12).T
    feed = Held(most=0).feed({"x": array})
    assert np.array_equal(feed["x"], array) and feed["x"] is not array


def test_arrays_stay_in_memory_where_no_file_can_be_made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    array = np.zeros((20, 20))
    assert Held(most=0).one(array) is array
