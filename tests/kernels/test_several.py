"""Several programs in one library: the level that the processor has, and the listed sizes that a call has."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from kernels.emit.processor import Requirement
from kernels.emit.program import Variant, emit_several, stored_weights
from kernels.target import Target, host, x86_64_v3
from tests.kernels.interface import BAD_ARGUMENT, BAD_PROCESSOR, OK, Library, Options, call, tensor
from tests.kernels.listings import Written, perceptron

ROWS = (4, 1, 300)
NEVER = Requirement("of9000", 0x7FFF, 0, 0, 3)
needs_x86 = pytest.mark.skipif(host().architecture.name != "x86_64", reason="the processor is no x86")


def made(choices: Sequence[tuple[Target, Sequence[int], tuple[Requirement, ...] | None]]) -> tuple[Written, Library]:
    """A library of perceptrons with these numbers of rows, which is a dim where there is more than one."""
    written = [[perceptron(target, rows=rows) for rows in numbers] for target, numbers, _ in choices]
    first = written[0][0]
    assert all(one.weights == first.weights for some in written for one in some), "packed alike"
    points = [(("rows", rows),) if len(choices[0][1]) > 1 else () for rows in choices[0][1]]
    emitted = emit_several(
        "mlp",
        [
            Variant(target, tuple(one.listing for one in some), needed)
            for (target, _, needed), some in zip(choices, written, strict=True)
        ],
        points, stored_weights(first.listing, first.weights),
    )  # fmt: skip
    return first, Library(replace(first.listing, name="mlp"), first.weights, emitted=emitted)


@pytest.fixture(scope="module")
def sized() -> Iterator[tuple[Written, Library]]:
    yield made([(host(), ROWS, None)])


def x_of(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).standard_normal((rows, 16)).astype(np.float32)


def assert_answers(written: Written, library: Library, model: ctypes.c_void_p, rows: int) -> None:
    x, y = x_of(rows), np.full((rows, 10), np.nan, np.float32)
    call(library, model, {"x": x}, y=y)
    assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_dims_of_a_call_choose_the_program(sized: tuple[Written, Library], threads: int) -> None:
    written, library = sized
    model = library.made(threads=threads)
    for rows in (*ROWS, *reversed(ROWS), 4, 4):
        assert_answers(written, library, model, rows)
        dims = (ctypes.c_int64 * 2)()
        assert library.dims(model, 0, dims) == OK and tuple(dims) == (rows, 10)
    message = library.refusal(model, [tensor("x", x_of(5))], [tensor("y", np.zeros((5, 10), np.float32))])
    assert message == (
        "input 'x' has dim 0 of 5; its shape is [4, 16]. The program is made for rows=4; rows=1; rows=300."
    )
    assert_answers(written, library, model, 300)
    assert library.check(model) == OK
    library.destroy(model)
    assert library.run(model, None, 0, None, 0) == BAD_ARGUMENT


def test_sizes_are_set_for_unchecked_runs(sized: tuple[Written, Library]) -> None:
    written, library = sized
    model = library.made()
    set_dim = library._function("set_dim", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64)
    for rows in (None, 300, 1, 4):
        if rows is not None:
            assert set_dim(model, b"rows", rows) == OK
        x, y = x_of(rows or 4), np.full((rows or 4, 10), np.nan, np.float32)
        given, out = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
        assert library.run_raw(model, given, out) == OK
        assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()
    for name, size, message in (
        (b"rows", 5, b"'rows' cannot be 5; the program is made for 1, 4, 300."),
        (b"columns", 5, b"there is no free dim 'columns'; the program has 'rows'."),
        (None, 5, b"no name of a dim is given; the program has 'rows'."),
    ):
        assert set_dim(model, name, size) == BAD_ARGUMENT and library.error(model) == message
    assert set_dim(None, b"rows", 1) == BAD_ARGUMENT
    library.destroy(model)


def test_sizes_at_creation(sized: tuple[Written, Library]) -> None:
    written, library = sized
    sizes = (ctypes.c_int64 * 1)(300)
    model = library.made(sizes=ctypes.addressof(sizes), size_count=1)
    x, y = x_of(300), np.full((300, 10), np.nan, np.float32)
    given, out = (ctypes.c_void_p * 1)(x.ctypes.data), (ctypes.c_void_p * 1)(y.ctypes.data)
    assert library.run_raw(model, given, out) == OK
    assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()
    sizes[0] = 7
    for count, message in (
        (1, "the program is not made for these sizes, but for rows=4; rows=1; rows=300."),
        (2, "2 sizes are given; the program has 1 free dims."),
    ):
        with pytest.raises(AssertionError, match=message):
            library.made(sizes=ctypes.addressof(sizes), size_count=count)


def test_the_arena_is_the_largest_points(sized: tuple[Written, Library]) -> None:
    """A model of the largest point alone takes nearly as much as one of all points."""
    library = sized[1]
    largest = made([(host(), (300,), None)])[1]

    def taken(one: Library) -> int:
        low, high = 0, 1 << 30
        while low + 1 < high:
            limit = (low + high) // 2
            model, options = ctypes.c_void_p(), Options(weights=0, memory_limit=limit, threads=1)
            one.create_with(ctypes.addressof(model), ctypes.byref(options))
            beyond = b"its options allow" in one.error(model)
            one.destroy(model)
            low, high = (limit, high) if beyond else (low, limit)
        return high

    assert taken(library) < taken(largest) + 8000
    description = json.loads(library.describe())
    assert description["arena_bytes"] == json.loads(largest.describe())["arena_bytes"]
    assert [one["sizes"] for one in description["points"]] == [{"rows": rows} for rows in ROWS]
    assert [one["inputs"][0]["shape"] for one in description["points"]] == [[rows, 16] for rows in ROWS]


def test_memory_that_is_not_there_for_a_later_point(sized: tuple[Written, Library]) -> None:
    with pytest.raises(AssertionError, match="of memory or more; its options allow 100"):
        sized[1].made(memory_limit=100)


@needs_x86
def test_the_first_level_that_the_processor_has_is_run() -> None:
    """Of the first the processor is asked for something that no processor has."""
    wide, narrow = (host(), (1,), (NEVER,)), (replace(x86_64_v3(), vector_bytes=host().vector_bytes), (1,), ())
    written, library = made([wide, narrow])
    assert json.loads(library.describe())["cpu"] == "x86-64-v3"
    model = library.made()
    assert_answers(written, library, model, 1)
    library.destroy(model)
    written, library = made([(host(), (1,), None), narrow])
    assert json.loads(library.describe())["cpu"] == host().cpu
    assert_answers(written, library, library.made(), 1)


@needs_x86
def test_a_processor_without_any_level() -> None:
    _, library = made([(host(), (1,), (NEVER,)), (host(), (1,), (NEVER,))])
    model, options = ctypes.c_void_p(), Options()
    for way, given in ((library.create_with, ctypes.byref(options)), (library.create, b"x")):
        assert way(ctypes.addressof(model), given) == BAD_PROCESSOR
        assert library.error(model).startswith(b"this processor lacks 'of9000', which all code here is compiled for")
        assert library.run_raw(model, None, None) == BAD_ARGUMENT
        library.destroy(model)
    assert library.create(None, b"x") == BAD_ARGUMENT
