# SPDX-License-Identifier: Apache-2.0
"""A compiled program from Python. It needs this file's folder, numpy, and nothing else: without ml_dtypes, elements
that NumPy lacks (bf16, floats of 8 bits, ...) are uint16 or uint8 with their bits.

    program = load()                          # or load("another/folder")
    first, second = program.run(None, {"x": x})
    y = program(x=x)["y"]
    stamps = program.profile({"x": x})        # who ran which block, and when

One program runs one call at a time: threads that call it wait for one another, and a prepared call (`bind`) that
meets another one raises. Load it again for threads that shall run side by side. Errors are a ProgramError.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import hashlib
import json
import math
import os
import platform
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

try:
    import ml_dtypes
except ImportError:  # elements that NumPy lacks are bits then
    ml_dtypes = None  # type: ignore[assignment]

Array = npt.NDArray[Any]
SCHEMA = "graphopt.bundle/2"  # 2: an ABI, which is additive
ABI = 1  # of the functions in the library: the newest that this code knows
# A block that was run, as `profile` notes it. Times are in nanoseconds of a clock that nobody sets.
STAMP = np.dtype([(name, np.int64) for name in ("row", "worker", "block", "begin", "end")])
_ROOM = 1 << 14  # blocks of a call, at first
_MODEL_BUSY = 5  # of the codes that a run gives
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # the machines of ELF, as the system calls them
_STORED = {"f64": "f8", "f32": "f4", "f16": "f2", "bf16": "u2", "bool": "?"}  # the others are as NumPy has them: "i64"
# What NumPy lacks, as ml_dtypes calls it; all but bf16 take a byte for each element.
_SHORT = {
    "bf16": "bfloat16", "e4m3fn": "float8_e4m3fn", "e4m3fnuz": "float8_e4m3fnuz", "e5m2": "float8_e5m2",
    "e5m2fnuz": "float8_e5m2fnuz", "e8m0": "float8_e8m0fnu", "e2m1": "float4_e2m1fn", "i4": "int4", "u4": "uint4",
    "i2": "int2", "u2": "uint2",
}  # fmt: skip


class ProgramError(Exception):
    """A program that cannot be loaded, or a call that does not fit it."""


Terms = tuple[tuple[int, tuple[str, ...]], ...]  # a sum of products: a factor, and names of free dims, or min(dim, 8)


def _size(name: str, sizes: Mapping[str, int]) -> int:
    """The size of a free dim, or of two sums the smaller or greater one or the quotient, as "min(rows, 8)" is."""
    if name in sizes:
        return sizes[name]
    text, known = name, dict(sizes)
    for number, dim in enumerate(sorted(sizes, key=len, reverse=True)):
        if not dim.isidentifier():  # as "DynamicDimension.1" is not
            known[f"_dim{number}_"] = sizes[dim]
            text = text.replace(dim, f"_dim{number}_")
    return _value(ast.parse(text, mode="eval").body, known)


def _value(tree: ast.expr, sizes: Mapping[str, int]) -> int:
    match tree:
        case ast.Name(name):
            return sizes[name]
        case ast.Constant(int(number)):
            return number
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, sizes)
        case ast.BinOp(left, ast.Add(), right):
            return _value(left, sizes) + _value(right, sizes)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left, sizes) * _value(right, sizes)
        case ast.BinOp(left, ast.FloorDiv(), right):
            return _value(left, sizes) // _value(right, sizes)
        case ast.Call(ast.Name("min" | "max" as word), [left, right]):
            return (min if word == "min" else max)(_value(left, sizes), _value(right, sizes))
    raise ProgramError(f"the bundle has a dim that this code cannot compute: {ast.unparse(tree)}.")


class Tensor(NamedTuple):
    """An input or output: dense, row-major. What NumPy lacks is of ml_dtypes, or of unsigned integers without it."""

    name: str
    type: str  # "f32", "bf16", ...
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: np.dtype[Any]  # NumPy's own type of as many bytes
    held: Mapping[int, int] = {}  # what an input has to hold, by place in the flat array: dims follow from it
    counted: tuple[int, ...] = ()  # axes of an output for which `shape` has the most, and each run finds its own dim
    free: Mapping[int, Terms] = {}  # axes whose dim follows from the sizes of a run; `shape` has the greatest
    room: tuple[int, ...] = ()  # of a cache: dims that its memory has room for, by whose strides its elements lie
    cache: int = -1  # of an output: the input in whose memory it lies

    @property
    def is_changed(self) -> bool:
        """Whether it is an input that runs change in place."""
        return bool(self.room) and self.room == self.shape and not self.free

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in a run of these sizes of free dims."""
        if not self.free:
            return self.shape
        return tuple(
            sum(factor * math.prod(_size(name, sizes) for name in names) for factor, names in self.free[axis])
            if axis in self.free else dim
            for axis, dim in enumerate(self.shape)
        )  # fmt: skip


class Point(NamedTuple):
    """Sizes of dims that a program is made for, and its tensors then."""

    sizes: Mapping[str, int]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class _Options(ctypes.Structure):
    _fields_ = (
        ("bytes", ctypes.c_size_t), ("weights_path", ctypes.c_char_p), ("weights", ctypes.c_void_p),
        ("weights_bytes", ctypes.c_size_t), ("pool", ctypes.c_void_p), ("memory_limit", ctypes.c_uint64),
        ("sizes", ctypes.c_void_p), ("size_count", ctypes.c_size_t), ("threads", ctypes.c_int32),
        ("pinned", ctypes.c_int32), ("read", ctypes.c_int32), ("contexts", ctypes.c_int32),
    )  # fmt: skip


class Interface:
    """The functions of a library, found by `address` of their names without prefix."""

    def __init__(self, address: Callable[[str], int]) -> None:
        pointer, text, code = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int

        def function(name: str, result: Any, *given: Any) -> Any:
            return ctypes.CFUNCTYPE(result, *given)(address(name))

        self.later = function  # for what programs of earlier versions lack, where it is wanted
        self.describe = function("describe", text)
        self.create_with = function("create_with", code, pointer, ctypes.POINTER(_Options))
        self.pool = function("pool", pointer, pointer)
        self.run_raw = function("run_raw", code, pointer, pointer, pointer)
        self.after_fork = function("after_fork", None, pointer)
        self.error = function("error", text, pointer)
        self.destroy = function("destroy", None, pointer)


class Program:
    """A program with its memory. `inputs` and `outputs` describe its tensors; `arena_bytes` is what they share."""

    refusal: ClassVar[type[Exception]] = ProgramError

    def __init__(
        self,
        interface: Interface,
        weights: Path | Array,
        *,
        read: bool = False,
        threads: int = 0,
        pinned: bool = False,
        pool: Program | None = None,
        memory_limit: int = 0,
        keep: object = None,
    ) -> None:
        """`weights`: their file, which is mapped, so that processes share one copy, or the array itself.

        `read`: the file is read into memory of the program's own, in huge pages, where they may be read faster.
        `threads` run it together, 0: as many as there are cores; `pinned`: each of them stays on one core; `pool`: a
        program whose threads are used instead of ones of its own. `memory_limit` in bytes: a program that would take
        more is refused; 0: any. `keep` is whatever the functions need to stay alive.
        """
        self.description: dict[str, Any] = json.loads(interface.describe())
        if (why := _why_not(self.description.get("abi"))) is not None:
            raise self.refusal(why)
        self.inputs = tuple(_tensor(one) for one in self.description["inputs"])
        self.outputs = tuple(_tensor(one) for one in self.description["outputs"])
        self.points = tuple(
            Point(
                one["sizes"], tuple(_tensor(tensor) for tensor in one["inputs"]),
                tuple(_tensor(tensor) for tensor in one["outputs"]),
            )
            for one in self.description.get("points", ())
        )  # fmt: skip
        if self.points:
            self.inputs, self.outputs = self.points[0].inputs, self.points[0].outputs
        self.arena_bytes: int = self.description["arena_bytes"]
        model, options = ctypes.c_void_p(), _Options(threads=threads, pinned=pinned, read=read)
        options.bytes, options.memory_limit = ctypes.sizeof(_Options), memory_limit
        if isinstance(weights, Path):
            options.weights_path = str(weights).encode()
        else:
            options.weights, options.weights_bytes = weights.ctypes.data, weights.nbytes
        if pool is not None:
            options.pool = pool._pool
        code = interface.create_with(ctypes.addressof(model), ctypes.byref(options))
        self._model = model.value
        self._close = weakref.finalize(self, _destroy, interface, self._model, (weights, keep, pool))
        if code:
            message = interface.error(self._model).decode(errors="replace")
            self._close()
            raise self.refusal(message)
        self._pool: int | None = interface.pool(self._model)
        self._run = interface.run_raw
        self._interface = interface
        self._counts = any(one.counted for one in self.outputs)
        if self._counts:
            self._dims = interface.later("dims", ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        free = self.description.get("sizes", ())
        self.ranges: dict[str, tuple[int, int]] = {one["name"]: (one["least"], one["most"]) for one in free}
        self._sizes = {name: most for name, (_, most) in self.ranges.items()}
        if self.ranges:
            self._set_dim = interface.later("set_dim", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
        self._room = _ROOM
        self._after_fork = interface.after_fork
        self._lock = threading.Lock()
        self._changed: dict[int, weakref.ref[Array]] = {}  # arrays that runs changed in place, by their ids
        self._places = {one.name: number for number, one in enumerate(self.inputs)}
        self._given = (ctypes.c_void_p * max(1, len(self.inputs)))()
        self._made = (ctypes.c_void_p * max(1, len(self.outputs)))()
        _programs.add(self)

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs of these names, in their order; all of them for None."""
        found = {one.name: array for one, array in zip(self.outputs, self._outputs(feeds), strict=True)}
        for name in names or ():
            if name not in found:
                raise self.refusal(f"there is no output '{name}'; the program has {_names(self.outputs)}.")
        return [found[name] for name in (found if names is None else names)]

    def __call__(self, **feeds: Array) -> dict[str, Array]:
        """All outputs by name."""
        return {one.name: array for one, array in zip(self.outputs, self._outputs(feeds), strict=True)}

    def bind(self, feeds: Mapping[str, Array]) -> Bound:
        """A call with fixed inputs and outputs: nothing is checked or made again. Write new values into the arrays."""
        self._choose(feeds)
        arrays = [self._array(one.name, feeds[one.name]) for one in self.inputs if one.name in feeds]
        if len(arrays) != len(self.inputs) or len(feeds) != len(self.inputs):
            self._outputs(feeds)  # says what is wrong
        return Bound(self, arrays, self._sizes_of(feeds))

    @property
    def is_shared(self) -> bool:
        """Whether several workers run it."""
        return self._pool is not None

    def profile(self, feeds: Mapping[str, Array]) -> npt.NDArray[Any]:
        """The blocks of one call as an array of `STAMP`, in the order in which they began.

        A `row` is the run's position in the order in which workers claim runs, or in the program's order where one
        worker runs it. A call whose blocks are more than were expected is made again.
        """
        while True:
            stamps = np.empty(self._room + 1, STAMP)
            stamps[:] = 0  # the memory is there before the call
            self._outputs(feeds, stamps)
            count = int(stamps["row"][0])
            if count <= self._room:
                return np.sort(stamps[1 : count + 1], order=("begin", "row", "block"))
            self._room = count

    def check(self) -> None:
        """Read all weights and compare their checksum with the library's; raises where they are not its own."""
        with self._lock:
            if self._model is None:
                raise self.refusal("the program is closed.")
            check = self._interface.later("check", ctypes.c_int, ctypes.c_void_p)
            if check(self._model):
                raise self.refusal(self._interface.error(self._model).decode(errors="replace"))

    def close(self) -> None:
        """Give the memory back now; the program cannot run again."""
        with self._lock:
            self._model = None
            self._close()

    def _outputs(self, feeds: Mapping[str, Array], stamps: npt.NDArray[Any] | None = None) -> list[Array]:
        """The outputs; the call's blocks are noted in `stamps`."""
        with self._lock:
            if self._model is None:
                raise self.refusal("the program is closed.")
            self._choose(feeds)
            return self._called(feeds, stamps)

    def _called(self, feeds: Mapping[str, Array], stamps: npt.NDArray[Any] | None) -> list[Array]:
        arrays = [self._array(name, array) for name, array in feeds.items()]  # kept until the run has ended
        if len(feeds) != len(self.inputs):
            missing = next(one.name for one in self.inputs if one.name not in feeds)
            raise self.refusal(f"input '{missing}' is missing; the program has {_names(self.inputs)}.")
        sizes = self._sizes_of(feeds)
        outputs = self._made_for(sizes, dict(zip(feeds, arrays, strict=True)))
        self._resize(sizes)
        for name, array in zip(feeds, arrays, strict=True):
            self._given[self._places[name]] = _address(array)
        for number, array in enumerate(outputs):
            self._made[number] = _address(array)
        if stamps is not None:
            self._note(stamps.ctypes.data, len(stamps) - 1)
        try:
            self._checked(self._run(self._model, self._given, self._made))
        finally:
            if stamps is not None:
                self._note(None, 0)
        return self._found(outputs)

    def _choose(self, feeds: Mapping[str, Array]) -> None:
        """Of a program for several sizes take those that the inputs have, where it has them."""
        if not self.points or _fits(self.inputs, feeds):
            return
        for point in self.points:
            if _fits(point.inputs, feeds):
                self._take(point)
                return
        if all(one.name in feeds for one in self.inputs) and len(feeds) == len(self.inputs):
            shapes = ", ".join(f"'{name}' {list(np.shape(array))}" for name, array in feeds.items())
            listed = "; ".join(", ".join(f"{name}={size}" for name, size in one.sizes.items()) for one in self.points)
            raise self.refusal(f"the inputs have the shapes {shapes}; the program is made for {listed}.")

    def _take(self, point: Point) -> None:
        """The calls that follow have these sizes."""
        set_dim = self._interface.later("set_dim", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
        for name, size in point.sizes.items():
            self._checked(set_dim(self._model, name.encode(), size))
        self.inputs, self.outputs = point.inputs, point.outputs

    def _made_for(self, sizes: Mapping[str, int], given: Mapping[str, Array]) -> list[Array]:
        """Arrays for outputs: of their own, or in the memory of an input, which `given` has with all its room."""
        found: list[Array] = []
        for one in self.outputs:
            if one.cache < 0:
                found.append(np.empty(one.at(sizes), one.stored))
            else:
                room = given[self.inputs[one.cache].name]
                found.append(room[tuple(slice(0, dim) for dim in one.at(sizes))])
        return found

    def _sizes_of(self, feeds: Mapping[str, Array]) -> dict[str, int]:
        """The size of each free dim, as the inputs have it."""
        found: dict[str, int] = {}
        for one in self.inputs if self.ranges else ():
            shape = np.shape(feeds[one.name])
            if len(shape) == len(one.shape):
                for axis, terms in one.free.items():
                    factors = {names: factor for factor, names in terms if names}
                    (names, factor), *others = factors.items()
                    if not others and len(names) == 1 and names[0] in self.ranges:
                        behind = sum(number for number, names in terms if not names)
                        found.setdefault(names[0], (shape[axis] - behind) // factor)
        for name, size in found.items():
            least, most = self.ranges[name]
            if not least <= size <= most:
                raise self.refusal(f"'{name}' cannot be {size}; the program is made for {least} to {most}.")
        for one in self.inputs if self.ranges else ():
            if (shape := np.shape(feeds[one.name])) != (wanted := one.at(found)):
                said = f"expected is {list(wanted)}, as {', '.join(f'{n} is {size}' for n, size in found.items())}"
                raise self.refusal(f"input '{one.name}' has the shape {list(shape)}; {said}.")
        return found

    def _resize(self, sizes: Mapping[str, int]) -> None:
        """Set the sizes of the next runs; they are inside their ranges."""
        if sizes != self._sizes:
            for name, size in sizes.items():
                self._checked(self._set_dim(self._model, name.encode(), size))
            self._sizes = dict(sizes)

    def _note(self, stamps: int | None, room: int) -> None:
        note = self._interface.later("profile", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        note(self._model, stamps, room)

    def _found(self, arrays: Sequence[Array]) -> list[Array]:
        """The outputs as arrays of their types, under the dims that the last run found."""
        found = []
        for number, (array, one) in enumerate(zip(arrays, self.outputs, strict=True)):
            if one.counted:
                dims = (ctypes.c_int64 * len(one.shape))()
                self._dims(self._model, number, dims)
                array = array.reshape(-1)[: math.prod(dims)].reshape(tuple(dims))
            found.append(shown(array, one.type))
        return found

    def _checked(self, code: int) -> None:
        """Raises what a run's code says: that it met another call, or what the program says of it."""
        if code and code != _MODEL_BUSY:
            raise self.refusal(self._interface.error(self._model).decode(errors="replace"))
        if code:
            why = "the program runs another call at this moment"
            raise self.refusal(f"{why}; load it again for each thread that runs it.")

    def _renew(self) -> None:
        """After a fork, in the child: threads that held the lock, or were in a call, are not here."""
        self._lock = threading.Lock()
        if self._model is not None:
            self._after_fork(self._model)

    def _array(self, name: str, given: Array) -> Array:
        """What the program reads: of the right type and shape, dense and aligned."""
        if name not in self._places:
            raise self.refusal(f"there is no input '{name}'; the program has {_names(self.inputs)}.")
        wanted = self.inputs[self._places[name]]
        array = np.asarray(given)
        if wanted.type in _SHORT and array.dtype.name == _SHORT[wanted.type]:
            array = array.view(wanted.stored)
        if array.dtype != wanted.stored:
            raise self.refusal(f"input '{name}' has elements of type {array.dtype}; expected is {wanted.dtype}.")
        if array.shape != wanted.shape and not wanted.free:
            raise self.refusal(f"input '{name}' has the shape {list(array.shape)}; expected is {list(wanted.shape)}.")
        for place, number in wanted.held.items():
            if (found := int(array.reshape(-1)[place])) != number:
                why = f"holds {found} at place {place}; the program is compiled for {number} there"
                raise self.refusal(f"input '{name}' {why}.")
        if wanted.is_changed:
            mapped = isinstance(given, np.memmap) and given.mode in ("r+", "w+")  # to be written: it is meant to change
            return array if mapped and array.flags.c_contiguous and array.flags.aligned else self._own_array(array)
        if wanted.room:
            return _with_room(array, wanted.room)
        return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")

    def _own_array(self, array: Array) -> Array:
        """What a run changes in place: an array that an earlier run gave is taken as it is, any other is copied."""
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        known = self._changed.get(id(owner))
        if known is not None and known() is owner and owner.shape == array.shape and owner.dtype == array.dtype:
            return owner
        made = np.array(array, order="C")
        key = id(made)
        self._changed[key] = weakref.ref(made, lambda _: self._changed.pop(key, None))
        return made


def _with_room(rows: Array, room: tuple[int, ...]) -> Array:
    """The memory of a cache, with all that it has room for: that of the rows, if they are its first; else a copy."""
    owner = rows
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    whole = owner.reshape(-1) if owner.flags.c_contiguous else np.empty(0, rows.dtype)
    first = _address(rows) - _address(whole)
    strides = np.empty(room, rows.dtype).strides if rows.dtype == whole.dtype else ()
    dims = zip(rows.shape, rows.strides, strides, strict=False)
    if strides and all(mine == wanted for dim, mine, wanted in dims if dim > 1) and first % rows.itemsize == 0:
        start, count = first // rows.itemsize, math.prod(room)
        if start >= 0 and start + count <= whole.size:
            return whole[start : start + count].reshape(room)
    made = np.empty(room, rows.dtype)
    made[tuple(slice(0, dim) for dim in rows.shape)] = rows
    return made


class Bound:
    """A prepared call of a program: every call writes `outputs` anew. Raises where another call of it runs."""

    def __init__(self, program: Program, arrays: Sequence[Array], sizes: Mapping[str, int]) -> None:
        self.inputs = tuple(arrays)
        self._sizes = sizes
        named = dict(zip((one.name for one in program.inputs), arrays, strict=True))
        self._arrays = program._made_for(sizes, named)
        self.outputs = tuple(shown(array, one.type) for array, one in zip(self._arrays, program.outputs, strict=True))
        self._given = (ctypes.c_void_p * max(1, len(arrays)))(*(_address(array) for array in self.inputs))
        self._made = (ctypes.c_void_p * max(1, len(self._arrays)))(*(_address(array) for array in self._arrays))
        self._program = program
        self._run = program._run
        self._point = Point({}, program.inputs, program.outputs)
        if program.points:
            self._point = next(one for one in program.points if one.inputs == program.inputs)

    def __call__(self) -> None:
        """Run once; the program must not have been closed."""
        program = self._program
        if self._point.inputs is not program.inputs:  # another call had other sizes
            program._take(self._point)
        if self._sizes != program._sizes:
            program._resize(self._sizes)
        if code := self._run(program._model, self._given, self._made):
            program._checked(code)
        if program._counts:  # arrays of the dims that this call found, in the same memory
            self.outputs = tuple(program._found(self._arrays))


def _fits(tensors: Sequence[Tensor], feeds: Mapping[str, Array]) -> bool:
    """Whether arrays have the dims of these inputs."""
    return all(one.name in feeds and np.shape(feeds[one.name]) == one.shape for one in tensors)


def _why_not(abi: object) -> str | None:
    """Why this code does not run a library with this ABI, as a sentence; None where it does."""
    if not isinstance(abi, int):
        return "the library is older than the first ABI; compile the model again."
    if abi > ABI:
        return f"the library has ABI {abi}; this code knows {ABI}: load it with the Python file of its own bundle."
    return None


_programs: weakref.WeakSet[Program] = weakref.WeakSet()


def _after_fork() -> None:
    for program in _programs:
        program._renew()


os.register_at_fork(after_in_child=_after_fork)


def _destroy(interface: Interface, model: int | None, keep: object) -> None:
    del keep
    interface.destroy(model)


def _address(array: Array) -> int:
    """Where the data starts. `array.ctypes` makes several objects for the same answer, which takes a microsecond."""
    if array.flags.writeable and array.size and array.flags.c_contiguous:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    return int(array.ctypes.data)


def shown(array: Array, name: str) -> Array:
    """An array of bits in the type that elements of this name are given out in; any other array as it is."""
    return array if name not in _SHORT or ml_dtypes is None else array.view(getattr(ml_dtypes, _SHORT[name]))


def _tensor(known: Mapping[str, Any]) -> Tensor:
    name = known["dtype"]
    short = "u1" if name in _SHORT else None
    stored = np.dtype(_STORED.get(name) or short or f"{name[0]}{int(name[1:]) // 8}")
    dtype = np.dtype(getattr(ml_dtypes, _SHORT[name])) if name in _SHORT and ml_dtypes is not None else stored
    held, counted = dict(known.get("held", ())), tuple(known.get("counted", ()))
    free = {axis: tuple((factor, tuple(names)) for factor, names in terms) for axis, terms in known.get("free", ())}
    room, cache = tuple(known.get("room", ())), known.get("cache", -1)
    return Tensor(known["name"], name, tuple(known["shape"]), dtype, stored, held, counted, free, room, cache)


def _names(tensors: Sequence[Tensor]) -> str:
    return ", ".join(f"'{one.name}'" for one in tensors) or "none"


def load(
    folder: str | Path | None = None,
    *,
    read: bool = False,
    threads: int = 0,
    pinned: bool = False,
    pool: Program | None = None,
    memory_limit: int = 0,
) -> Program:
    """The program in a folder (None: the one this file lies in); the options are those of a `Program`.

    The weights are not read through: `program.check()` does that, and `graphopt check FOLDER`.
    """
    interface, weights = opened(Path(folder) if folder is not None else Path(__file__).parent)
    return Program(
        interface, weights, read=read, threads=threads, pinned=pinned, pool=pool, memory_limit=memory_limit
    )  # fmt: skip


def opened(folder: Path, refusal: type[Exception] = ProgramError) -> tuple[Interface, Path]:
    """The functions of a bundle and the path of its weights; raises `refusal` for one that is not whole."""
    name, digest = _listed(folder, refusal)
    path = (folder / f"lib{name}.so").resolve()
    # Loading a library that was cut off ends the process, so it is looked at before.
    try:
        code = path.read_bytes()
    except OSError as error:
        raise refusal(f"'{path}' cannot be read: {error.strerror}.") from error
    if hashlib.sha256(code).hexdigest() != digest:
        raise refusal(f"'{path}' is damaged, or was changed: it is not the file that its manifest names.")
    wanted, here = _MACHINES.get(int.from_bytes(code[18:20], "little"), "another machine"), platform.machine()
    if wanted != here:
        raise refusal(f"'{path}' is compiled for {wanted}; this machine is {here}.")
    with contextlib.suppress(OSError):
        ctypes.CDLL("libm.so.6", ctypes.RTLD_GLOBAL)  # for kernels that call the C library's mathematics
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise refusal(f"'{path}' cannot be loaded: {error}") from error

    def address(function: str) -> int:
        try:
            found = ctypes.cast(getattr(library, f"{name}_{function}"), ctypes.c_void_p).value
        except AttributeError:
            raise refusal(f"'{path}' has no function '{name}_{function}'; compile the model again.") from None
        assert found is not None, "a function has an address"
        return found

    return Interface(address), folder / f"{name}.weights"


def _listed(folder: Path, refusal: type[Exception]) -> tuple[str, str]:
    """The program's name and the SHA-256 of its library, as the manifest has them."""
    place = folder / "manifest.json"
    try:
        manifest = json.loads(place.read_bytes())
    except FileNotFoundError:
        raise refusal(f"'{folder}' is no compiled program: it has no manifest.json.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise refusal(f"'{place}' cannot be read: {error}") from error

    def entry(known: Any, key: str, kind: type, what: str) -> Any:
        found = known.get(key)
        if not isinstance(found, kind):
            raise refusal(f"'{place}' is damaged: {what}; compile the model again.")
        return found

    if not isinstance(manifest, dict):
        raise refusal(f"'{place}' is damaged: it is no JSON object; compile the model again.")
    schema = entry(manifest, "schema", str, "it names no schema")
    if schema != SCHEMA:
        raise refusal(f"'{folder}' has the schema '{schema}'; this code reads '{SCHEMA}'.")
    name = entry(manifest, "name", str, "it names no program")
    if not name.isidentifier():
        raise refusal(f"'{place}' is damaged: {name!r} is no name of a program; compile the model again.")
    files = entry(manifest, "files", dict, "it lists no files")
    library = entry(files, f"lib{name}.so", dict, f"it does not list 'lib{name}.so'")
    return name, entry(library, "sha256", str, f"it has no checksum of 'lib{name}.so'")
