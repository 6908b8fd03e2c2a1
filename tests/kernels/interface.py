"""A program's C interface from Python, for tests: a listing compiled and loaded, its functions and its tensors."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence

import numpy as np

from kernels.dtype import DType
from kernels.emit.processor import Requirement
from kernels.emit.program import Emitted, emit, stored_weights
from kernels.emit.types import CODES
from kernels.listing import Listing
from kernels.llvm.load import Loaded
from kernels.run import aligned
from kernels.target import host

OK, BAD_ARGUMENT, BAD_WEIGHTS, BAD_PROCESSOR, NO_MEMORY = range(5)


class CTensor(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p), ("dtype", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_int64)), ("data", ctypes.c_void_p),
    )  # fmt: skip


def tensor(name: str | None, array: np.ndarray, **changes: object) -> CTensor:
    dims = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    code = CODES[DType.of(array.dtype)]
    made = CTensor(None if name is None else name.encode(), code, array.ndim, dims, array.ctypes.data)
    for field, value in changes.items():
        setattr(made, field, value)
    return made


class Options(ctypes.Structure):
    """What a model is created with; its size is set unless a test sets another one."""

    _fields_ = (
        ("bytes", ctypes.c_size_t), ("weights_path", ctypes.c_char_p), ("weights", ctypes.c_void_p),
        ("weights_bytes", ctypes.c_size_t), ("pool", ctypes.c_void_p), ("memory_limit", ctypes.c_uint64),
        ("sizes", ctypes.c_void_p), ("size_count", ctypes.c_size_t), ("threads", ctypes.c_int32),
        ("pinned", ctypes.c_int32), ("read", ctypes.c_int32), ("contexts", ctypes.c_int32),
    )  # fmt: skip

    def __init__(self, **fields: object) -> None:
        super().__init__(**{"bytes": ctypes.sizeof(Options), **fields})


class Library:
    """A listing compiled and loaded, with its functions."""

    def __init__(
        self,
        listing: Listing,
        weights: bytes = b"",
        needed: Sequence[Requirement] | None = None,
        emitted: Emitted | None = None,
    ) -> None:
        """Or what was `emitted` under the listing's name for its weights."""
        self.stored = stored_weights(listing, weights)
        if emitted is None:
            emitted = emit(listing, host(), self.stored, needed)
        self._loaded = Loaded(emitted.objects(), host())
        self._name = listing.name
        self._kept: list[np.ndarray] = []
        self._models: set[int | None] = set()
        pointer, size, code = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        self.create = self._creating("create", ctypes.c_char_p)
        self.create_with = self._creating("create_with", ctypes.POINTER(Options))
        self.check = self._function("check", code, pointer)
        self.describe = self._function("describe", ctypes.c_char_p)
        self.version = self._function("version", ctypes.c_char_p)
        self.pool = self._function("pool", pointer, pointer)
        self.run = self._function("run", code, pointer, pointer, size, pointer, size)
        self.run_raw = self._function("run_raw", code, pointer, pointer, pointer)
        self.dims = self._function("dims", code, pointer, size, ctypes.POINTER(ctypes.c_int64))
        self.profile = self._function("profile", None, pointer, pointer, ctypes.c_int64)
        self.after_fork = self._function("after_fork", None, pointer)
        self.error = self._function("error", ctypes.c_char_p, pointer)
        destroy = self._function("destroy", None, pointer)
        models = self._models

        def destroyed(model: ctypes.c_void_p | None) -> None:
            models.discard(model.value if isinstance(model, ctypes.c_void_p) else model)
            destroy(model)

        self.destroy = destroyed
        weakref.finalize(self, _destroy_all, models, destroy, self._loaded)

    def _creating(self, name: str, *given: object) -> Callable[..., int]:
        """A function that makes a model; what is not destroyed is, before the code goes: its threads run it."""
        function = self._function(name, ctypes.c_int, ctypes.c_void_p, *given)  # type: ignore[arg-type]
        models = self._models

        def create(place: int | None, *rest: object) -> int:
            code: int = function(place, *rest)
            if place:
                models.add(ctypes.c_void_p.from_address(place).value)
            return code

        return create

    def _function(self, name: str, result: type | None, *given: type) -> ctypes._FuncPointer:  # type: ignore[name-defined]
        return ctypes.CFUNCTYPE(result, *given)(self._loaded.address(f"{self._name}_{name}"))

    def made(self, **options: object) -> ctypes.c_void_p:
        """A model of the weights in memory."""
        kept = aligned(self.stored.size, np.uint8)
        kept[:] = self.stored
        self._kept.append(kept)  # it belongs to the caller
        model = ctypes.c_void_p()
        given = Options(weights=kept.ctypes.data, weights_bytes=kept.size, **options)
        assert self.create_with(ctypes.addressof(model), ctypes.byref(given)) == OK, self.error(model)
        return model

    def refusal(self, model: ctypes.c_void_p, inputs: Sequence[CTensor], outputs: Sequence[CTensor]) -> str:
        code = self.run(model, (CTensor * len(inputs))(*inputs), len(inputs), (CTensor * len(outputs))(*outputs),
                        len(outputs))  # fmt: skip
        assert code == BAD_ARGUMENT
        return str(self.error(model).decode())


def _destroy_all(models: set[int | None], destroy: Callable[[int | None], None], loaded: Loaded) -> None:
    for model in models:
        destroy(model)
    del loaded


def call(library: Library, model: ctypes.c_void_p, inputs: dict[str, np.ndarray], **outputs: np.ndarray) -> None:
    given = (CTensor * len(inputs))(*(tensor(name, array) for name, array in inputs.items()))
    made = (CTensor * len(outputs))(*(tensor(name, array) for name, array in outputs.items()))
    code = library.run(model, given, len(given), made, len(made))
    assert code == OK, library.error(model)
