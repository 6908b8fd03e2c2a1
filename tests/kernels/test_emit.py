"""Programs through their C interface, called with ctypes: what they compute, and what they refuse."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.emit.layout import layout_of
from kernels.emit.program import WrongWeights, emit, stored_weights
from kernels.kernel import renamed
from kernels.listing import Argument, Listing, Place, Run
from kernels.llvm.link import link_shared
from kernels.run import aligned
from kernels.target import aarch64, host
from tests.kernels.arm import needs_arm
from tests.kernels.interface import (
    BAD_ARGUMENT,
    BAD_WEIGHTS,
    NO_MEMORY,
    OK,
    CTensor,
    Library,
    Options,
    call,
    tensor,
)
from tests.kernels.listings import Written, difference, perceptron


def rows(count: int, columns: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, columns)).astype(np.float32)


@pytest.fixture(scope="module")
def small() -> tuple[Written, Library]:
    written = perceptron(host())
    return written, Library(written.listing, written.weights)


def assert_answers(written: Written, library: Library, model: ctypes.c_void_p, seed: int = 1) -> None:
    shape, made = written.listing.inputs[0].shape, written.listing.outputs[0].shape
    x, y = rows(shape[0], shape[1], seed), np.full(made, np.nan, np.float32)
    call(library, model, {"x": x}, y=y)
    assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()


# -- what it computes ----


def test_two_layers_equal_numpy(small: tuple[Written, Library]) -> None:
    written, library = small
    model = library.made()
    assert_answers(written, library, model)
    library.destroy(model)


def test_kernels_of_several_blocks() -> None:
    written = perceptron(host(), (300, 900, 500), rows=130)
    assert max(kernel.blocks for kernel in written.listing.kernels) > 1
    library = Library(written.listing, written.weights)
    assert_answers(written, library, library.made())


def test_tensors_are_found_by_name_in_any_order() -> None:
    library = Library(difference(host()))
    left, right, delta = rows(3, 5, 1), rows(3, 5, 2), np.zeros((3, 5), np.float32)
    call(library, library.made(), {"right": right, "left": left}, delta=delta)
    assert np.array_equal(delta, left - right)


def test_unchecked_runs_take_the_declared_order() -> None:
    library = Library(difference(host()))
    left, right, delta = rows(3, 5, 1), rows(3, 5, 2), np.zeros((3, 5), np.float32)
    given = (ctypes.c_void_p * 2)(left.ctypes.data, right.ctypes.data)
    assert library.run_raw(library.made(), given, (ctypes.c_void_p * 1)(delta.ctypes.data)) == OK
    assert np.array_equal(delta, left - right)


def test_many_runs_follow_one_another() -> None:
    """x - y, again minus y, ...: 600 runs from one half of the arena to the other."""
    once = difference(host())
    halves = [Place("arena", 0), Place("arena", 64)]
    names = [operand.name for operand in once.kernels[0].operands]
    runs = []
    for number in range(600):
        source = Place("input", 0, 0) if number == 0 else halves[number % 2]
        goal = Place("output") if number == 599 else halves[(number + 1) % 2]
        places = {"left": source, "right": Place("input", 0, 1), "delta": goal}
        runs.append(Run("subtract", tuple(places[name] for name in names)))
    library = Library(replace(once, runs=tuple(runs), arena_bytes=128))
    left, right = np.full((3, 5), 1000, np.float32), np.ones((3, 5), np.float32)
    delta = np.zeros((3, 5), np.float32)
    call(library, library.made(), {"left": left, "right": right}, delta=delta)
    assert (delta == 400).all()


def test_two_models_of_one_library_side_by_side(small: tuple[Written, Library]) -> None:
    written, library = small
    first, second = library.made(), library.made()
    wrong: list[int] = []

    def work(model: ctypes.c_void_p, seed: int) -> None:
        try:
            for turn in range(200):
                assert_answers(written, library, model, seed + turn)
        except AssertionError:
            wrong.append(seed)

    threads = [threading.Thread(target=work, args=(one, 1000 * n)) for n, one in enumerate((first, second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    library.destroy(first)
    assert_answers(written, library, second)
    library.destroy(second)


def test_large_weights_and_arena_take_huge_pages_and_stay_right(tmp_path: Path) -> None:
    written = perceptron(host(), (700, 1000, 300), rows=600)
    assert len(written.weights) > 2 << 20 and written.listing.arena_bytes > 2 << 20
    library = Library(written.listing, written.weights)
    path = tmp_path / "weights"
    path.write_bytes(library.stored.tobytes())
    for read in (0, 1):
        model, options = ctypes.c_void_p(), Options(weights_path=str(path).encode(), read=read)
        assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == OK, library.error(model)
        assert library.check(model) == OK
        assert_answers(written, library, model)
        library.destroy(model)


def test_memory_comes_back(tmp_path: Path) -> None:
    written = perceptron(host(), (700, 1000, 300), rows=600)
    library = Library(written.listing, written.weights)
    path = tmp_path / "weights"
    path.write_bytes(library.stored.tobytes())

    def turn() -> int:
        for read in (0, 1):
            model, options = ctypes.c_void_p(), Options(weights_path=str(path).encode(), read=read)
            assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == OK
            library.destroy(model)
        return int(Path("/proc/self/statm").read_text().split()[0])  # pages of address space

    before = turn()
    assert max(turn() for _ in range(10)) - before < written.listing.arena_bytes // os.sysconf("SC_PAGE_SIZE")


# -- what it refuses ----

X, Y = np.zeros((1, 16), np.float32), np.zeros((1, 10), np.float32)
ODD = np.zeros(65, np.uint8)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([tensor("z", X)], [tensor("y", Y)], "there is no input 'z'; the program has 'x'."),
        ([tensor(None, X)], [tensor("y", Y)], "input number 0 has no name."),
        ([], [tensor("y", Y)], "input 'x' is missing; the program has 'x'."),
        ([tensor("x", X)], [], "output 'y' is missing; the program has 'y'."),
        ([tensor("x", X)] * 2, [tensor("y", Y)], "2 inputs are given, one of them twice; the program has 'x'."),
        ([tensor("x", X), tensor("y", Y)], [tensor("y", Y)], "there is no input 'y'; the program has 'x'."),
        ([tensor("x", X.astype(float))], [tensor("y", Y)], "input 'x' has elements of type 11; expected are 1, f32."),
        ([tensor("x", X[0])], [tensor("y", Y)], "input 'x' has 1 dims; expected are 2: its shape is [1, 16]."),
        ([tensor("x", X[None])], [tensor("y", Y)], "input 'x' has 3 dims; expected are 2: its shape is [1, 16]."),
        ([tensor("x", X, rank=-1)], [tensor("y", Y)], "input 'x' has -1 dims; expected are 2: its shape is [1, 16]."),
        ([tensor("x", X.T)], [tensor("y", Y)], "input 'x' has dim 0 of 16; its shape is [1, 16]."),
        ([tensor("x", X)], [tensor("y", Y[:, :9])], "output 'y' has dim 1 of 9; its shape is [1, 10]."),
        ([tensor("x", X, dims=None)], [tensor("y", Y)], "input 'x' has no dims; its shape is [1, 16]."),
        ([tensor("x", X, data=None)], [tensor("y", Y)], "input 'x' has no data."),
        ([tensor("%s%n", X)], [tensor("y", Y)], "there is no input '%s%n'; the program has 'x'."),
    ],
    ids=itertools.count(),
)
def test_tensors_that_do_not_fit(
    small: tuple[Written, Library], inputs: list[CTensor], outputs: list[CTensor], message: str
) -> None:
    written, library = small
    model = library.made()
    assert library.refusal(model, inputs, outputs) == message
    assert_answers(written, library, model)  # the model is as good as before
    library.destroy(model)


def test_data_that_starts_between_elements(small: tuple[Written, Library]) -> None:
    _, library = small
    odd = (-ODD.ctypes.data % 4) + 1 + ODD.ctypes.data
    message = library.refusal(library.made(), [tensor("x", X, data=odd)], [tensor("y", Y)])
    assert message == f"input 'x' starts at {odd:#x}; its elements must start at multiples of 4 bytes."


def test_no_array_of_tensors_and_no_model(small: tuple[Written, Library]) -> None:
    _, library = small
    model = library.made()
    assert library.run(model, None, 1, None, 1) == BAD_ARGUMENT
    assert library.error(model) == b"no inputs are given."
    assert library.run(None, None, 0, None, 0) == BAD_ARGUMENT
    assert b"there is no model" in library.error(None)
    assert library.create(None, b"weights") == BAD_ARGUMENT
    assert library.run_raw(None, None, None) == library.check(None) == BAD_ARGUMENT
    assert library.dims(None, 0, None) == BAD_ARGUMENT and library.pool(None) is None
    library.profile(None, None, 0)
    library.after_fork(None)
    library.destroy(None)


def test_a_name_longer_than_the_message(small: tuple[Written, Library]) -> None:
    _, library = small
    message = library.refusal(library.made(), [tensor("n" * 2000, X)], [tensor("y", Y)])
    assert len(message) == 511 and message.startswith("there is no input 'nnnn")


@pytest.mark.parametrize("read", [0, 1])
def test_weights_files_that_are_not_the_programs(small: tuple[Written, Library], tmp_path: Path, read: int) -> None:
    written, library = small
    size = library.stored.size
    whole, path = library.stored.tobytes(), tmp_path / "weights"
    flipped = bytearray(whole)
    flipped[1234] ^= 1
    cases: list[tuple[bytes | None, str]] = [
        (None, f"weights file '{path}' cannot be opened: No such file or directory."),
        (whole[:-64], f"weights file '{path}' has {size - 64} bytes instead of {size}: it is cut off"),
        (whole + b"\0", f"weights file '{path}' has {size + 1} bytes instead of {size}"),
        (b"", f"weights file '{path}' has 0 bytes instead of {size}"),
    ]
    options = Options(weights_path=str(path).encode(), read=read)
    for content, message in cases:
        if content is not None:
            path.write_bytes(content)
        model = ctypes.c_void_p()
        assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == BAD_WEIGHTS
        assert library.error(model).decode().startswith(message)
        assert library.check(model) == BAD_ARGUMENT
        assert library.run(model, None, 0, None, 0) == BAD_ARGUMENT, "a model that was not created does not run"
        library.destroy(model)
    for content, code in ((bytes(flipped), BAD_WEIGHTS), (whole, OK)):  # what is in the file is looked at when asked
        path.write_bytes(content)
        model = ctypes.c_void_p()
        assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == OK
        assert library.check(model) == code
        if code:
            assert library.error(model).startswith(b"the weights are damaged, or another program's: their checksum is ")
        else:
            assert_answers(written, library, model)
        library.destroy(model)


def test_a_weights_path_that_is_a_folder_or_missing(small: tuple[Written, Library], tmp_path: Path) -> None:
    _, library = small
    model = ctypes.c_void_p()
    assert library.create(ctypes.addressof(model), str(tmp_path).encode()) == BAD_WEIGHTS
    library.destroy(model)
    assert library.create(ctypes.addressof(model), None) == BAD_ARGUMENT
    assert library.error(model) == b"no path of a weights file is given."
    library.destroy(model)


def test_weights_in_memory_of_the_wrong_size_or_place(small: tuple[Written, Library]) -> None:
    _, library = small
    model, size = ctypes.c_void_p(), library.stored.size
    room = aligned(size + 64, np.uint8)
    for start, bytes_given, code, message in (
        (room.ctypes.data, size - 64, BAD_WEIGHTS, f"{size - 64} bytes of weights are given instead of {size}."),
        (room.ctypes.data + 4, size, BAD_ARGUMENT, "which is no multiple of 64 bytes."),
        (None, size, BAD_ARGUMENT, "no weights are given."),
    ):
        options = Options(weights=start, weights_bytes=bytes_given)
        assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == code
        assert message in library.error(model).decode()
        library.destroy(model)


def test_memory_that_is_not_there() -> None:
    listing = replace(difference(host()), arena_bytes=1 << 60)
    model, library = ctypes.c_void_p(), Library(listing)
    assert library.create_with(ctypes.addressof(model), ctypes.byref(Options())) == NO_MEMORY
    assert library.error(model).startswith(b"there are not 1,152,9")
    library.destroy(model)


def test_weights_of_another_size_than_the_listings() -> None:
    with pytest.raises(WrongWeights, match="listing 'difference' has 0 bytes of weights, not 5"):
        stored_weights(difference(host()), b"abcde")


@pytest.mark.parametrize("name", ["read", "snprintf", "difference_run"])
def test_a_kernel_may_have_a_name_of_the_c_library_or_of_the_interface(name: str) -> None:
    listing = difference(host())
    kernel, run = renamed(listing.kernels[0], name), replace(listing.runs[0], kernel=name)
    library = Library(replace(listing, kernels=(kernel,), runs=(run,)))
    left, right, delta = rows(3, 5, 1), rows(3, 5, 2), np.zeros((3, 5), np.float32)
    call(library, library.made(), {"right": right, "left": left}, delta=delta)
    assert np.array_equal(delta, left - right)


def test_options_of_other_headers(small: tuple[Written, Library]) -> None:
    """A shorter record is none; a longer one is taken where what this library does not know is not set."""
    written, library = small
    room = (ctypes.c_char * (ctypes.sizeof(Options) + 16))()
    weights = aligned(library.stored.size, np.uint8)
    weights[:] = library.stored
    given = Options(weights=weights.ctypes.data, weights_bytes=weights.size)
    for size, last, message in (
        (0, 0, b"the options say that they have 0 bytes; set 'bytes' to sizeof of their type."),
        (79, 0, b"the options say that they have 79 bytes; set 'bytes' to sizeof of their type."),
        (len(room), 7, b"byte 95 of the options is set, which this library does not know: its header is older."),
        (len(room), 0, None),
    ):
        given.bytes = size
        room[: ctypes.sizeof(Options)] = bytes(given)
        room[len(room) - 1] = last
        model = ctypes.c_void_p()
        code = library.create_with(ctypes.addressof(model), ctypes.cast(room, ctypes.POINTER(Options)))
        if message is None:
            assert code == OK
            assert_answers(written, library, model)
        else:
            assert code == BAD_ARGUMENT and library.error(model) == message
        library.destroy(model)


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"memory_limit": 100}, NO_MEMORY, "the model takes .* bytes of memory or more; its options allow 100."),
        ({"contexts": 2}, BAD_ARGUMENT, "2 contexts are asked for; a model has one"),
        ({"contexts": -1}, BAD_ARGUMENT, "-1 contexts are asked for; a model has one"),
        ({"sizes": 64}, BAD_ARGUMENT, "sizes are given; the program has one size of every dim."),
    ],
)
def test_options_that_are_refused(
    small: tuple[Written, Library], fields: dict[str, int], code: int, message: str
) -> None:
    _, library = small
    model, options = ctypes.c_void_p(), Options(**fields)
    assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == code
    assert re.match(message, library.error(model).decode())
    library.destroy(model)


def test_a_limit_counts_what_the_model_takes(small: tuple[Written, Library], tmp_path: Path) -> None:
    """Weights that are read count; those of the caller, mapped ones and guards do not."""
    written, library = small
    page = layout_of(written.listing, host()).record + written.listing.arena_bytes + written.listing.scratch_bytes
    library.destroy(library.made(memory_limit=page, threads=1))
    with pytest.raises(AssertionError, match=f"takes {page} bytes of memory or more; its options allow {page - 1}"):
        library.made(memory_limit=page - 1, threads=1)
    path = tmp_path / "weights"
    path.write_bytes(library.stored.tobytes())
    for read, code in ((0, OK), (1, NO_MEMORY)):
        options = Options(weights_path=str(path).encode(), memory_limit=page, threads=1, read=read)
        model = ctypes.c_void_p()
        assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == code
        library.destroy(model)


def test_a_model_that_was_destroyed_is_told(small: tuple[Written, Library]) -> None:
    _, library = small
    model = library.made()
    library.destroy(model)
    assert library.run(model, None, 0, None, 0) == library.run_raw(model, None, None) == BAD_ARGUMENT
    assert library.error(model).startswith(b"there is no model: it was destroyed")
    library.destroy(model)


def test_a_library_says_where_it_comes_from(small: tuple[Written, Library]) -> None:
    _, library = small
    assert json.loads(library.version()) == {"producer": "", "abi": 1, "model": ""}


# -- other machines ----


@needs_arm
def test_a_program_for_arm_links_and_is_the_same_twice() -> None:
    written = perceptron(aarch64())
    stored = stored_weights(written.listing, written.weights)
    libraries = []
    for _ in range(2):
        emitted = emit(written.listing, aarch64(), stored)
        libraries.append(link_shared(emitted.objects(), aarch64(), exported=emitted.exported, name="libmlp.so"))
    assert emitted.description.features == ("neon", "fp-armv8")
    assert libraries[0] == libraries[1]
    assert libraries[0][:4] == b"\x7fELF" and libraries[0][18] == 183  # EM_AARCH64


def test_a_listing_may_have_no_arguments_of_a_kind() -> None:
    listing = Listing("idle", (), (Argument("y", DType.F32, (0, 3)),), (), (), 0, 0)
    library = Library(listing)
    call(library, library.made(), {}, y=np.zeros((0, 3), np.float32))
