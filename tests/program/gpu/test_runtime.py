"""The runtime of bundles for GPUs, on a device that only keeps what it is told: which way is taken, what is refused."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.program.deploy.cuda import runtime
from graphopt.program.deploy.cuda.bundle import TaskProgram
from graphopt.program.deploy.cuda.runtime import CudaError, Program
from graphopt.program.gpu import link_tasks
from graphopt.program.regions.lower import lower
from kernels.target import cuda
from tests.program.gpu.test_bundle import small


class Kept:
    """A device whose launches cost what a test says; memory is a dict of bytes."""

    name, multiprocessors, capability, shared_memory = "kept", 4, (9, 0), 232448

    def __init__(self, cost: dict[str, float], resident: int = 200) -> None:
        self.cost, self.blocks, self.time = cost, resident, 0.0
        self.memory: dict[int, bytes] = {}
        self.marks: list[float] = []
        self.started: list[tuple[str, int, bool]] = []

    def call(self, name: str, *arguments: Any) -> None:
        """Events tell the time."""
        if name == "cuEventElapsedTime":
            arguments[0]._obj.value = (self.marks[-1] - self.marks[-2]) / 1000
        if name == "cuEventRecord":
            self.marks.append(self.time)

    def stream(self) -> int:
        return 7

    def load(self, code: bytes) -> str:
        assert code.endswith(b"\0")
        return "module"

    def function(self, module: str, name: str, shared: int = 0) -> str:
        return name

    def resident(self, function: str, threads: int, shared: int = 0) -> int:
        return self.blocks

    def allocate(self, size: int) -> int:
        place = 4096 * (len(self.memory) + 1)
        self.memory[place] = bytes(max(size, 16))
        return place

    def free(self, pointer: int) -> None:
        del self.memory[pointer]

    def write(self, pointer: int, array: np.ndarray, stream: int = 0) -> None:
        data = array.tobytes()
        assert len(data) <= len(self.memory[pointer])
        self.memory[pointer] = data + self.memory[pointer][len(data) :]

    def read(self, pointer: int, shape: Sequence[int], dtype: Any, stream: int = 0) -> np.ndarray:
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer(self.memory[pointer][:count], dtype).reshape(shape)

    def wait(self, stream: int = 0) -> None:
        """It has ended."""

    def launch(
        self, function: str, blocks: int, threads: int, arguments: Sequence[Any], *, shared: int = 0, stream: int = 0,
        cooperative: bool = False,
    ) -> None:  # fmt: skip
        self.started.append((function, blocks, cooperative))
        self.time += self.cost.get(function.partition("_")[0], 0.0)

    def captured(self, stream: int, work: Callable[[], None]) -> Callable[[int], None]:
        def start(where: int) -> None:
            work()
            self.started.append(("graph", 0, False))

        return start


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import onnx_ir as ir

    target = cuda("sm_90")
    made = TaskProgram.of(link_tasks(lower(ir.from_proto(small()), target), "small"), target)
    path = tmp_path_factory.mktemp("bundle")
    for name, content in made.files().items():
        (path / name).write_bytes(content)
    return path


@pytest.mark.parametrize("fastest", ["pinned", "ticketed", "launch"])
def test_the_fastest_way_is_taken(folder: Path, fastest: str) -> None:
    cost = {"pinned": 90.0, "ticketed": 90.0, "launch": 90.0} | {fastest: 10.0}
    device = Kept(cost)
    program = Program(folder, device)  # type: ignore[arg-type]
    assert program.way == {"launch": "launches"}.get(fastest, fastest)
    device.started.clear()
    x = np.ones((2, 5), np.float32)
    (y,) = program.run(None, {"x": x})
    assert y.shape == (2, 7) and device.started[0][0].startswith(fastest)
    assert device.started[0][2] == (fastest == "pinned"), "pinned blocks are launched cooperatively"


def test_a_way_that_is_asked_for_is_not_measured(folder: Path) -> None:
    device = Kept({})
    assert Program(folder, device, way="ticketed").way == "ticketed" and not device.started  # type: ignore[arg-type]


def test_without_room_for_all_pinned_blocks_others_are_taken(folder: Path) -> None:
    device = Kept({"pinned": 1.0, "ticketed": 20.0, "launch": 90.0}, resident=1)
    assert Program(folder, device).way == "ticketed"  # type: ignore[arg-type]
    with pytest.raises(CudaError, match="396 blocks are not resident at once on kept"):
        Program(folder, device, way="pinned")  # type: ignore[arg-type]


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    older, small_one = Kept({}), Kept({})
    older.capability, small_one.shared_memory = (8, 0), 1000  # type: ignore[misc]
    with pytest.raises(CudaError, match=r"capability 9\.0; kept has 8\.0"):
        Program(folder, older)  # type: ignore[arg-type]
    with pytest.raises(CudaError, match="bytes of shared memory; kept has 1,000"):
        Program(folder, small_one)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not 'quickly'"):
        Program(folder, Kept({}), way="quickly")  # type: ignore[arg-type]
    program = Program(folder, Kept({}), way="ticketed")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"'x' is float32 of \[2, 5\]; it was given float32 of \[5, 2\]"):
        program.run(None, {"x": np.ones((5, 2), np.float32)})


def test_waits_that_were_given_up_are_an_error(folder: Path) -> None:
    device = Kept({})
    program = Program(folder, device, way="ticketed")  # type: ignore[arg-type]
    device.memory[program._errors] = np.array([0, 3], np.int32).tobytes()
    with pytest.raises(CudaError, match="3 waits were given up"):
        program.check()


def test_runs_on_the_device_read_where_the_caller_says(folder: Path) -> None:
    device = Kept({})
    program = Program(folder, device, way="ticketed")  # type: ignore[arg-type]

    class Tensor:
        """As PyTorch's."""

        def data_ptr(self) -> int:
            return 0x7000000

    program.run_on_device({"x": Tensor()}, {"y": 0x9000000}, stream=3)
    placed = np.frombuffer(device.memory[program._pointers], np.uint64)
    assert 0x7000000 in placed and 0x9000000 in placed
    program.run(None, {"x": np.ones((2, 5), np.float32)})
    assert 0x7000000 not in np.frombuffer(device.memory[program._pointers], np.uint64)


def test_dlpack_capsules_are_read() -> None:
    array = np.arange(6, dtype=np.float32)
    assert runtime._address(array) == array.ctypes.data
    assert isinstance(ctypes.c_void_p(runtime._address(5)), ctypes.c_void_p) and runtime._address(5) == 5


@pytest.mark.parametrize("way", ["pinned", "ticketed"])
def test_items_are_stamped_where_somebody_asks(folder: Path, way: str) -> None:
    device = Kept({})
    program = Program(folder, device, way="ticketed")  # type: ignore[arg-type]
    stamps = program.profile(way)
    assert stamps.shape == (len(program.about["tables"]["items"]) // 8, 4) and stamps.dtype == np.int64
    assert [name for name, _, _ in device.started] == [way] * 3
    with pytest.raises(ValueError, match="not of 'launches'"):
        program.profile("launches")


def test_a_trace_has_a_row_for_each_multiprocessor(folder: Path, tmp_path: Path) -> None:
    program = Program(folder, Kept({}), way="ticketed")  # type: ignore[arg-type]
    program.trace(tmp_path / "trace.json", "pinned")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == program._count and {one["ph"] for one in events} == {"X"}
    assert {one["name"].partition(" ")[0] for one in events} <= set(program.about["kernels"])
    assert {one["tid"] for one in events} == {0} and all(one["dur"] == 0 for one in events), "this device keeps no time"
