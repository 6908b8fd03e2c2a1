"""Positions in ONNX Runtime's interface, held to the installed library; and a library that meets an older one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import graphopt
from graphopt.program.deploy.custom import operators
from graphopt.program.deploy.custom.interface import (
    API_VERSION,
    ENTRIES,
    FAIL,
    GET_API,
    GET_VERSION_STRING,
    INVALID_ARGUMENT,
    OPERATOR,
    OPERATOR_BYTES,
)
from kernels.emit.processor import Requirement
from kernels.emit.program import emit
from kernels.target import host
from tests import support

POINTER = ctypes.c_void_p
GET_ERROR_MESSAGE, CREATE_TENSOR, CREATE_MEMORY_INFO, RELEASE_VALUE, RELEASE_MEMORY_INFO = 2, 49, 69, 96, 94


def _library() -> Path:
    (found,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    return found


def _table(address: int, number: int, result: Any, *given: Any) -> Callable[..., Any]:
    """A function of a table of pointers."""
    entry = POINTER.from_address(address + 8 * number).value
    return ctypes.CFUNCTYPE(result, *given)(entry)  # type: ignore[no-any-return]


class Api:
    """OrtApi of the installed library, by the positions that are in the product."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(_library()))
        library.OrtGetApiBase.restype = POINTER
        base = library.OrtGetApiBase()
        self.version = _table(base, GET_VERSION_STRING, ctypes.c_char_p)().decode()
        self.at = _table(base, GET_API, POINTER, ctypes.c_uint32)(API_VERSION)

    def call(self, name: str | int, *given: Any, result: Any = POINTER) -> Any:
        number = ENTRIES[name] if isinstance(name, str) else name
        kinds = [type(one) if isinstance(one, ctypes._SimpleCData) else POINTER for one in given]
        return _table(self.at, number, result, *kinds)(*given)


def test_functions_are_where_the_product_looks_for_them() -> None:
    api = Api()
    assert api.version == onnxruntime.__version__ and api.at
    status = api.call("CreateStatus", ctypes.c_int(INVALID_ARGUMENT), ctypes.c_char_p(b"a sentence"))
    assert api.call(GET_ERROR_MESSAGE, status, result=ctypes.c_char_p) == b"a sentence"
    assert api.call(1, status, result=ctypes.c_int) == INVALID_ARGUMENT
    api.call("ReleaseStatus", status, result=None)
    domain = POINTER()
    assert api.call("CreateCustomOpDomain", ctypes.c_char_p(b"somebody"), ctypes.byref(domain)) is None
    assert domain.value
    api.call("ReleaseCustomOpDomain", domain, result=None)


def test_a_tensor_says_its_type_and_dims_without_a_copy() -> None:
    api = Api()
    memory, value, data = POINTER(), POINTER(), np.arange(6, dtype=np.float32).reshape(2, 3)
    assert api.call(CREATE_MEMORY_INFO, ctypes.c_int(0), ctypes.c_int(0), ctypes.byref(memory)) is None
    dims = (ctypes.c_int64 * 2)(2, 3)
    given = (memory, POINTER(data.ctypes.data), ctypes.c_size_t(24), ctypes.byref(dims), ctypes.c_size_t(2))
    assert api.call(CREATE_TENSOR, *given, ctypes.c_int(1), ctypes.byref(value)) is None
    kind, rank, place = ctypes.c_int(), ctypes.c_size_t(), ctypes.POINTER(ctypes.c_int64)()
    held = (value, ctypes.byref(kind), ctypes.byref(place), ctypes.byref(rank))
    assert api.call("GetTensorElementTypeAndShapeDataReference", *held) is None
    assert (kind.value, rank.value, place[:2]) == (1, 2, [2, 3])
    found = POINTER()
    assert api.call("GetTensorMutableData", value, ctypes.byref(found)) is None
    assert found.value == data.ctypes.data
    api.call(RELEASE_VALUE, value, result=None)
    api.call(RELEASE_MEMORY_INFO, memory, result=None)


def test_the_operator_s_record() -> None:
    """OrtCustomOp: a version in eight bytes, and 25 functions, as the header of the interface's version has them."""
    assert OPERATOR_BYTES == 208 and len(set(OPERATOR)) == len(OPERATOR) == 25
    places = {name: 8 + 8 * place for place, name in enumerate(OPERATOR)}
    assert places["KernelDestroy"] == 72 and places["CreateKernelV2"] == 136 and places["GetEndVersion"] == 168


def _small(folder: Path) -> Path:
    model = support.model("g (float[2] x) => (float[2] y) { y = Neg(x) }", 20)
    graphopt.compile(model, form="onnxruntime", name="small", threads=1).save(folder)
    return folder


def test_an_older_onnx_runtime_is_told(tmp_path: Path) -> None:
    said: list[tuple[int, bytes]] = []

    def status(code: int, text: bytes) -> int:
        said.append((code, text))
        return 1

    create = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_char_p)(status)
    table = (POINTER * 1)(ctypes.cast(create, POINTER))
    asked: list[int] = []

    def version(number: int) -> int:
        asked.append(number)
        return ctypes.addressof(table) if number == 1 else 0

    get = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_uint32)(version)
    kept = ctypes.create_string_buffer(b"1.20.1")
    name = ctypes.CFUNCTYPE(ctypes.c_size_t)(lambda: ctypes.addressof(kept))
    base = (POINTER * 2)(ctypes.cast(get, POINTER), ctypes.cast(name, POINTER))
    library = ctypes.CDLL(str(_small(tmp_path / "small") / "libsmall.so"))
    library.RegisterCustomOps.restype = POINTER
    assert library.RegisterCustomOps(None, ctypes.byref(base)) == 1
    assert asked == [API_VERSION, 1]
    assert said == [(FAIL, b"these custom operators need ONNX Runtime 1.24 or a later one; this is 1.20.1.")]


def test_the_processor_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of a library for a processor with more than this one is refused; nothing runs."""
    lacking = (Requirement("somethingnew", *((0x7FFF, 0, 0, 3) if "x86" in host().triple else (16, 0, 0, 63))),)
    monkeypatch.setattr(operators, "emit", lambda *given: emit(*given, needed=lacking))
    with pytest.raises(graphopt.GraphoptError, match="this processor lacks 'somethingnew'"):
        graphopt.compile(support.model("g (float[2] x) => (float[2] y) { y = Neg(x) }", 20), form="onnxruntime")
