"""A program on an NVIDIA GPU, through the driver's interface alone: no toolkit, no package but numpy.

    program = Program("folder")                     # PTX, weights and tables that graphopt has written
    outputs = program.run(None, {"x": array})       # as ONNX Runtime's session does
    program.run_on_device({"x": pointer}, {"y": pointer}, stream)     # addresses on the device, or DLPack tensors

A program is one launch of persistent blocks that wait for one another: pinned to lists of their own, or claiming what
is next. The same work is also a graph of one launch for each region. Which of the three is fastest is measured when a
program is created, unless `way` says which to take. Nothing is allocated after creation.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["CudaError", "Device", "Program", "Timer"]

_MULTIPROCESSORS, _MAJOR, _MINOR, _SHARED_MEMORY = 16, 75, 76, 97  # CUdevice_attribute
_DYNAMIC_SHARED = 8  # CUfunction_attribute: the most bytes of dynamic shared memory
_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES = 5, 6  # CUjit_option
COOPERATIVE_TOO_LARGE = 720  # CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
_CAPTURE_THREAD_LOCAL = 1  # CUstreamCaptureMode
_CHOOSING = 7  # runs by each way, of which the median counts

Array = npt.NDArray[Any]


class CudaError(Exception):
    """A call of the driver that failed, or a device that is not there; `code` is its CUresult, or -1."""

    def __init__(self, text: str, code: int = -1) -> None:
        super().__init__(text)
        self.code = code


class Device:
    """A GPU with its primary context. Raises CudaError where there is no driver, or no such GPU."""

    def __init__(self, number: int = 0) -> None:
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise CudaError(f"NVIDIA's driver is not installed here: {error}.") from error
        self.call("cuInit", 0)
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self._device = device
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.call("cuCtxSetCurrent", self._context)
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, 128, device)
        self.name = name.value.decode()
        self.multiprocessors = self._attribute(_MULTIPROCESSORS)
        self.capability = (self._attribute(_MAJOR), self._attribute(_MINOR))
        self.shared_memory = self._attribute(_SHARED_MEMORY)

    def call(self, name: str, *arguments: Any) -> None:
        """A function of the driver; raises CudaError where it fails."""
        code = getattr(self._cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(f"{name} failed with {code} ({(text.value or b'?').decode()}).", code)

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self._device)
        return value.value

    def load(self, code: bytes) -> ctypes.c_void_p:
        """A module of PTX or machine code; what the driver's compiler objects to is in the error."""
        self.call("cuCtxSetCurrent", self._context)  # of this thread
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(_JIT_ERROR_LOG, _JIT_ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.cast(log, ctypes.c_void_p), ctypes.c_void_p(len(log)))
        try:
            self.call("cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(code), 2, options, values)
        except CudaError as error:
            said = log.value.decode(errors="replace").strip()
            raise CudaError(f"{error} {said}".strip(), error.code) from None
        return module

    def function(self, module: ctypes.c_void_p, name: str, shared: int = 0) -> ctypes.c_void_p:
        """A kernel of a module, with so many bytes of dynamic shared memory."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > 48 << 10:
            self.call("cuFuncSetAttribute", function, _DYNAMIC_SHARED, shared)
        return function

    def resident(self, function: ctypes.c_void_p, threads: int, shared: int = 0) -> int:
        """Blocks of the kernel that are resident on one multiprocessor, as the driver says."""
        count = ctypes.c_int()
        name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
        self.call(name, ctypes.byref(count), function, threads, ctypes.c_size_t(shared))
        return count.value

    def allocate(self, size: int) -> int:
        """The address of so many bytes, which hold zeros."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 16)))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(max(size, 16)))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Give memory back."""
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def write(self, pointer: int, array: Array, stream: int = 0) -> None:
        """Copy an array to the device."""
        data = np.ascontiguousarray(array)
        if data.nbytes:
            host, size = data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)
            self.call("cuMemcpyHtoDAsync_v2", ctypes.c_uint64(pointer), host, size, ctypes.c_void_p(stream))
            self.wait(stream)

    def read(self, pointer: int, shape: Sequence[int], dtype: npt.DTypeLike, stream: int = 0) -> Array:
        """An array from the device."""
        data = np.empty(tuple(shape), dtype)
        if data.nbytes:
            host, size = data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)
            self.call("cuMemcpyDtoHAsync_v2", host, ctypes.c_uint64(pointer), size, ctypes.c_void_p(stream))
            self.wait(stream)
        return data

    def launch(
        self, function: ctypes.c_void_p, blocks: int, threads: int, arguments: Sequence[Any], *, shared: int = 0,
        stream: int = 0, cooperative: bool = False,
    ) -> None:  # fmt: skip
        """Start a kernel; arguments are of ctypes."""
        table = (ctypes.c_void_p * max(len(arguments), 1))(
            *(ctypes.cast(ctypes.pointer(one), ctypes.c_void_p) for one in arguments)
        )
        shape = (blocks, 1, 1, threads, 1, 1, shared, ctypes.c_void_p(stream), table)
        if cooperative:
            self.call("cuLaunchCooperativeKernel", function, *shape)
        else:
            self.call("cuLaunchKernel", function, *shape, None)

    def stream(self) -> int:
        """A stream of its own."""
        made = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(made), 1)
        return made.value or 0

    def wait(self, stream: int = 0) -> None:
        """Until everything that was started on a stream has ended."""
        self.call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def captured(self, stream: int, work: Callable[[], None]) -> Callable[[int], None]:
        """What `work` starts on a stream, as a graph: a function that starts all of it on any stream."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), _CAPTURE_THREAD_LOCAL)
        work()
        self.call("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self.call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_uint64(0))
        return lambda where: self.call("cuGraphLaunch", ready, ctypes.c_void_p(where))


class Timer:
    """Microseconds between two marks on a stream."""

    def __init__(self, device: Device, stream: int = 0) -> None:
        self._device, self._stream = device, stream
        self._marks = [ctypes.c_void_p(), ctypes.c_void_p()]
        for mark in self._marks:
            device.call("cuEventCreate", ctypes.byref(mark), 0)

    def of(self, work: Callable[[], None]) -> float:
        """What `work` takes on the device."""
        device, found = self._device, ctypes.c_float()
        device.call("cuEventRecord", self._marks[0], ctypes.c_void_p(self._stream))
        work()
        device.call("cuEventRecord", self._marks[1], ctypes.c_void_p(self._stream))
        device.call("cuEventSynchronize", self._marks[1])
        device.call("cuEventElapsedTime", ctypes.byref(found), *self._marks)
        return 1000.0 * found.value


class Program:
    """A bundle on a device: its memory, and its kernels.

    `way` is "pinned", "ticketed" or "launches"; with None the fastest is taken, by the device's own clock. Raises
    CudaError where the device is older than the code, has less shared memory than a block needs, or less room than the
    pinned program's blocks need, and ValueError for another way.
    """

    def __init__(
        self, folder: str | os.PathLike[str], device: Device | None = None, way: str | None = None
    ) -> None:  # fmt: skip
        path = Path(folder)
        self.about: dict[str, Any] = json.loads((path / "program.json").read_text())
        self.device = device or Device()
        self._stream = self.device.stream()
        about = self.about
        wanted = tuple(about["capability"])
        if self.device.capability < wanted:
            mine, theirs = (".".join(map(str, one)) for one in (self.device.capability, wanted))
            raise CudaError(f"the code is for GPUs of capability {theirs}; {self.device.name} has {mine}.")
        self._shared, self._threads = int(about["shared"]), int(about["threads"])
        if self._shared > self.device.shared_memory:
            raise CudaError(
                f"a block needs {self._shared:,} bytes of shared memory; "
                f"{self.device.name} has {self.device.shared_memory:,}."
            )
        code = (path / "program.ptx").read_bytes() + b"\0"
        self._module = self.device.load(code)
        self._ticketed = self.device.function(self._module, "ticketed", self._shared)
        self._pinned = self.device.function(self._module, "pinned", self._shared)
        each = [self.device.resident(one, self._threads, self._shared) for one in (self._ticketed, self._pinned)]
        self.blocks = self.device.multiprocessors * max(1, each[0])
        self._workers = len(about["tables"]["lists"]) - 1
        # Pinned blocks wait for one another in any order: all of them have to be resident, which the driver sees to.
        has_room = 0 < self._workers <= self.device.multiprocessors * each[1]
        self._alone = [self.device.function(self._module, f"launch_{one}", self._shared) for one in about["kernels"]]
        self._load(path)
        self._ways = {"ticketed": self.ticketed, "launches": self.device.captured(self._stream, self._launch_all)}
        if has_room:
            self._ways["pinned"] = self.pinned
        if way is not None and way not in ("pinned", "ticketed", "launches"):
            raise ValueError(f"a program runs pinned, ticketed or by launches, not '{way}'.")
        if way is not None and way not in self._ways:
            raise CudaError(f"{self._workers:,} blocks are not resident at once on {self.device.name}.")
        self.way = way or self._fastest()

    def _fastest(self) -> str:
        """The way that takes the least time of the device, with inputs of zeros."""
        timer, taken = Timer(self.device, self._stream), dict[str, float]()
        for name, start in self._ways.items():
            start(self._stream)
            found = sorted(timer.of(functools.partial(start, self._stream)) for _ in range(_CHOOSING))
            taken[name] = found[_CHOOSING // 2]
        self.check()
        return min(taken, key=lambda name: taken[name])

    def _launch_all(self) -> None:
        self.launches(self._stream)

    def _load(self, path: Path) -> None:
        device, about = self.device, self.about
        words = {name: np.asarray(rows or [0], np.int32) for name, rows in about["tables"].items()}
        self._runs, self._order = words["runs"].reshape(-1, 3), about["order"]
        self._count = len(about["tables"]["items"]) // 8
        self._words = {name: device.allocate(words[name].nbytes) for name in ("items", "waits", "lists", "pinned")}
        for name, pointer in self._words.items():
            device.write(pointer, words[name])
        weights = np.fromfile(path / "weights.bin", np.uint8)
        self._bases = {("arena", 0): device.allocate(about["arena"]), ("weights", 0): device.allocate(weights.nbytes)}
        device.write(self._bases["weights", 0], weights)
        for role in ("input", "output"):
            for number, one in enumerate(about[f"{role}s"]):
                self._bases[role, number] = device.allocate(_bytes(one))
        self._counters, self._claimed = device.allocate(4 * len(self._runs)), device.allocate(4)
        self._seats = device.allocate(4 * max(self._workers, 1))
        self._errors = device.allocate(8)
        self._epoch = self._base = 0
        self._pointers = device.allocate(8 * len(about["places"]))
        self._placed: Array | None = None
        self._place(self._bases)

    def _place(self, bases: Mapping[tuple[str, int], int]) -> None:
        found = [bases[space, argument] + offset for space, argument, offset in self.about["places"]]
        placed = np.array(found or [0], np.uint64)
        if self._placed is None or not np.array_equal(placed, self._placed):
            self.device.write(self._pointers, placed, self._stream)
            self._placed = placed

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs (those named, all with None) for arrays by the names of inputs."""
        self._place(self._bases)
        for number, one in enumerate(self.about["inputs"]):
            array = np.asarray(feeds[one["name"]])
            if list(array.shape) != one["shape"] or array.dtype != np.dtype(one["dtype"]):
                raise ValueError(
                    f"'{one['name']}' is {one['dtype']} of {one['shape']}; "
                    f"it was given {array.dtype} of {list(array.shape)}."
                )
            self.device.write(self._bases["input", number], array, self._stream)
        self.start()
        self.device.wait(self._stream)
        self.check()
        found = {
            one["name"]: self.device.read(self._bases["output", number], one["shape"], one["dtype"], self._stream)
            for number, one in enumerate(self.about["outputs"])
        }
        return [found[name] for name in (names or found)]

    def run_on_device(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], stream: int = 0) -> None:
        """Start a run on arrays that lie on the device: addresses, or whatever has `__dlpack__` or `data_ptr`."""
        bases = dict(self._bases)
        for role, given in (("input", inputs), ("output", outputs)):
            for number, one in enumerate(self.about[f"{role}s"]):
                bases[role, number] = _address(given[one["name"]])
        self._place(bases)
        self.start(stream)

    def start(self, stream: int | None = None) -> None:
        """Start a run on what lies in the program's memory."""
        self._ways[self.way](self._stream if stream is None else stream)

    def pinned(self, stream: int, stamps: int = 0) -> None:
        """Start a run whose blocks have lists of their own; at `stamps` it leaves 32 bytes for each item."""
        self._epoch += 1
        lists, items, waits = (self._words[name] for name in ("lists", "pinned", "waits"))
        before = _addresses(lists, items, waits, self._pointers, self._counters, self._seats, self._errors)
        arguments = (*before, _word(self._epoch), *_addresses(stamps))
        self.device.launch(
            self._pinned, self._workers, self._threads, arguments, shared=self._shared, stream=stream, cooperative=True
        )

    def ticketed(self, stream: int, stamps: int = 0) -> None:
        """Start a run whose blocks claim items; at `stamps` it leaves 32 bytes for each item."""
        self._epoch += 1
        (items, waits), count = _addresses(self._words["items"], self._words["waits"]), _word(self._count)
        tables = _addresses(self._pointers, self._counters, self._claimed)
        errors, place = _addresses(self._errors, stamps)
        arguments = (items, count, waits, *tables, _word(self._base), errors, _word(self._epoch), place)
        self._base += self._count + self.blocks
        self.device.launch(self._ticketed, self.blocks, self._threads, arguments, shared=self._shared, stream=stream)

    def launches(self, stream: int | None = None) -> None:
        """Start the same work as one launch for each region, in their order."""
        where = self._stream if stream is None else stream
        for run in self._order:
            self.alone(run, where)

    def alone(self, run: int, stream: int) -> None:
        """Start one region by itself."""
        task, first, blocks = (int(one) for one in self._runs[run])
        if blocks:
            row = (ctypes.c_uint64(self._pointers + 8 * first),)
            self.device.launch(self._alone[task], blocks, self._threads, row, shared=self._shared, stream=stream)

    def profile(self, way: str = "pinned", calls: int = 3) -> Array:
        """When each item of a pinned or ticketed run began to wait, began, and had ended, and its multiprocessor.

        A row of four for each item, int64, nanoseconds of the device; of the last of so many calls, on what lies in the
        program's memory. Rows are in the order of the table `pinned` or `items`.
        """
        if way not in ("pinned", "ticketed"):
            raise ValueError(f"items are those of a pinned or ticketed program, not of '{way}'.")
        stamps = self.device.allocate(32 * self._count)
        for _ in range(calls):
            (self.pinned if way == "pinned" else self.ticketed)(self._stream, stamps)
        self.device.wait(self._stream)
        self.check()
        found = self.device.read(stamps, (self._count, 4), np.int64, self._stream)
        self.device.free(stamps)
        return found

    def trace(self, file: str | os.PathLike[str], way: str = "pinned") -> None:
        """Write what `profile` gives as a trace for Perfetto: a row for each multiprocessor, a bar for each block."""
        stamps, kernels = self.profile(way), self.about["kernels"]
        items = np.asarray(self.about["tables"]["pinned" if way == "pinned" else "items"], np.int64).reshape(-1, 8)
        start = int(stamps[:, 0].min(initial=2**62))
        events = [
            {
                "name": f"{kernels[item[2]]} {item[1]}", "cat": f"run {item[0]}", "ph": "X", "pid": 0, "tid": row[3],
                "ts": (row[1] - start) / 1000, "dur": (row[2] - row[1]) / 1000,
                "args": {"waited us": (row[1] - row[0]) / 1000},
            }
            for item, row in zip(items.tolist(), stamps.tolist(), strict=True)
        ]  # fmt: skip
        Path(file).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))

    def check(self) -> None:
        """Raise CudaError where a wait of an earlier run was given up."""
        late = int(self.device.read(self._errors, (2,), np.int32)[1])
        if late:
            raise CudaError(f"{late} waits were given up: blocks of the program did not end.")


def _bytes(one: Mapping[str, Any]) -> int:
    return int(np.dtype(one["dtype"]).itemsize * np.prod(one["shape"], dtype=np.int64))


def _addresses(*places: int) -> tuple[Any, ...]:
    return tuple(map(ctypes.c_uint64, places))


def _word(number: int) -> Any:
    return ctypes.c_uint32(number & 0xFFFFFFFF)


def _address(given: Any) -> int:
    """Where an array on the device begins."""
    if isinstance(given, int):
        return given
    if hasattr(given, "data_ptr"):
        return int(given.data_ptr())
    capsule = given.__dlpack__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = ctypes.cast(pointer(capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
    return int(tensor.data or 0) + int(tensor.byte_offset)


class _Tensor(ctypes.Structure):
    """DLTensor, as DLPack lays it out."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint32),
        ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip
