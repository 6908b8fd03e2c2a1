"""Pages of a data file go out of a process's memory and come back; no other memory is touched."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.model.mapped import rest
from graphopt.model.rooms import let_go
from graphopt.model.tensors import tensors_of
from tests import support

BYTES = 8 << 20


def resident() -> int:
    """Bytes of files that this process has in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssFile"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(np.arange(BYTES // 4, dtype=np.int32).tobytes())
    return path


def test_pages_of_a_file_go_and_come_back(file: Path) -> None:
    with file.open("rb") as stream:
        array = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.int32).reshape(-1, 4)
    before = resident()
    expected = int(array.sum(dtype=np.int64))
    assert resident() - before > BYTES // 2
    let_go(array[1:, :2])
    assert resident() - before < BYTES // 4
    assert int(array.sum(dtype=np.int64)) == expected


def test_what_is_written_in_memory_stays() -> None:
    block = np.frombuffer(mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    block[:] = 7
    let_go(block)
    assert (block == 7).all()
    for other in (np.ones(BYTES, np.uint8), np.float32(1), None, np.frombuffer(bytes(block), np.uint8)):
        let_go(other)
    assert (block == 7).all()


def test_a_private_copy_of_a_file_stays_as_it_was_changed(file: Path) -> None:
    with file.open("rb") as stream:
        array = np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY), np.int32)
    array[:] = 5
    let_go(array)
    assert (array == 5).all()


def test_a_model_lets_go_of_its_data_file(tmp_path: Path) -> None:
    proto = support.model("g (float[4] x) => (float[2097152, 1] y) { y = Mul(w, s)  t = Identity(x) }")
    for name, array in (("w", np.ones((BYTES // 4, 1), np.float32)), ("s", np.full(1, 2, np.float32))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=1024)
    model = graphopt.load(path)
    before = resident()
    total = sum(float(tensor.numpy().sum()) for tensor in tensors_of(model))
    assert resident() - before > BYTES // 2
    rest(model)
    assert resident() - before < BYTES // 4
    assert sum(float(tensor.numpy().sum()) for tensor in tensors_of(model)) == total
