"""Programs in this process: the answer is NumPy's, and a wrong call is refused in words."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import warnings

import ml_dtypes
import numpy as np
import pytest

from graphopt.errors import BundleError
from graphopt.program.deploy import runtime
from graphopt.program.deploy.session import Program
from kernels import run
from kernels.dtype import DType
from kernels.emit.layout import BUSY, HUGE_PAGE
from kernels.listing import Argument, Listing
from kernels.run import aligned
from kernels.target import Target, host
from tests.kernels.listings import difference, passing, perceptron
from tests.kernels.targets import HERE


def _rows(count: int, columns: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, columns)).astype(np.float32)


@pytest.mark.parametrize("target", HERE, ids=lambda one: one.cpu)
def test_two_layers_equal_numpy(target: Target) -> None:
    written = perceptron(target, rows=7)
    program = Program(written.listing, written.weights, target)
    x = _rows(7, 16)
    (y,) = program.run(None, {"x": x})
    assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()
    assert program.arena_bytes == 7 * 32 * 4


def test_an_elementwise_program_without_weights() -> None:
    program = Program(difference(host()), b"")
    left, right = _rows(3, 5, 1), _rows(3, 5, 2)
    assert np.array_equal(program(right=right, left=left)["delta"], left - right)


def test_names_choose_outputs_and_their_order() -> None:
    program = Program(difference(host()), b"")
    feeds = {"left": _rows(3, 5, 1), "right": _rows(3, 5, 2)}
    assert len(program.run(["delta", "delta"], feeds)) == 2
    with pytest.raises(BundleError, match="there is no output 'gamma'; the program has 'delta'"):
        program.run(["gamma"], feeds)


def test_results_are_the_callers_own() -> None:
    program = Program(difference(host()), b"")
    left, right = _rows(3, 5, 1), _rows(3, 5, 2)
    first = program(left=left, right=right)["delta"]
    program(left=right, right=right)
    assert np.array_equal(first, left - right)


def test_arrays_that_are_not_dense_or_not_aligned_are_copied() -> None:
    program = Program(difference(host()), b"")
    wide = _rows(5, 6)
    odd = np.frombuffer(b"\0" + wide[:3, :5].tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 5)
    assert not odd.flags.aligned
    assert np.array_equal(program(left=wide[:, :3].T, right=odd)["delta"], wide[:, :3].T - wide[:3, :5])


ML_DTYPES = {
    DType.BF16: "bfloat16", DType.E4M3FN: "float8_e4m3fn", DType.E4M3FNUZ: "float8_e4m3fnuz", DType.E5M2: "float8_e5m2",
    DType.E5M2FNUZ: "float8_e5m2fnuz", DType.E8M0: "float8_e8m0fnu", DType.E2M1: "float4_e2m1fn", DType.I4: "int4",
    DType.U4: "uint4", DType.I2: "int2", DType.U2: "uint2",
}  # fmt: skip


@pytest.mark.parametrize("dtype", DType, ids=lambda one: one.value)
def test_every_type_of_element_passes_through(dtype: DType) -> None:
    program = Program(passing(host(), dtype), b"")
    codes = 2 if dtype is DType.BOOL else 16 if dtype is DType.E2M1 else min(100, 1 << dtype.bits)
    bits = np.random.default_rng(0).integers(0, codes, (3, 5))
    x = bits.astype(dtype.numpy)
    x.flags.writeable = False
    tensor, y = program.inputs[0], program(x=x)["y"]
    assert x.dtype == tensor.stored and y.dtype == tensor.dtype and np.array_equal(y.view(x.dtype), x)
    if dtype.held is not dtype and dtype is not DType.F16:  # what NumPy lacks
        assert tensor.dtype == getattr(ml_dtypes, ML_DTYPES[dtype])
        assert np.array_equal(program(x=x.view(tensor.dtype))["y"].view(x.dtype), x)


def test_data_needs_no_more_alignment_than_its_elements() -> None:
    written = perceptron(host(), rows=7)
    program = Program(written.listing, written.weights)
    x = _rows(7, 16)
    for offset in (4, 12, 36):
        odd = aligned(x.size, np.float32, offset=offset).reshape(x.shape)
        odd[:] = x
        assert odd.ctypes.data % 64 == offset
        assert np.array_equal(program(x=odd)["y"], program(x=x)["y"])


def test_threads_take_turns() -> None:
    program = Program(difference(host()), b"")
    wrong = []

    def work(number: int) -> None:
        left, right = np.full((3, 5), number, np.float32), np.ones((3, 5), np.float32)
        if any((program(left=left, right=right)["delta"] != number - 1).any() for _ in range(300)):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"z": np.zeros((1, 16), np.float32)}, "there is no input 'z'; the program has 'x'"),
        ({}, "input 'x' is missing; the program has 'x'"),
        ({"x": np.zeros((1, 16))}, "input 'x' has elements of type float64; expected is float32"),
        ({"x": np.zeros((1, 16), ">f4")}, "input 'x' has elements of type >f4; expected is float32"),
        ({"x": np.zeros(16, np.float32)}, r"input 'x' has the shape \[16\]; expected is \[1, 16\]"),
        ({"x": np.zeros((1, 17), np.float32)}, r"input 'x' has the shape \[1, 17\]; expected is \[1, 16\]"),
    ],
)
def test_feeds_that_do_not_fit(feeds: dict[str, np.ndarray], message: str) -> None:
    written = perceptron(host())
    program = Program(written.listing, written.weights)
    with pytest.raises(BundleError, match=message):
        program.run(None, feeds)


def test_a_closed_program_refuses() -> None:
    program = Program(difference(host()), b"")
    program.close()
    program.close()
    with pytest.raises(BundleError, match="closed"):
        program(left=np.zeros((3, 5), np.float32), right=np.zeros((3, 5), np.float32))


def test_weights_of_another_size() -> None:
    written = perceptron(host())
    with pytest.raises(BundleError, match=f"has {len(written.weights):,} bytes of weights, not 3"):
        Program(written.listing, b"abc")


def test_a_listing_that_does_nothing() -> None:
    empty = Listing("nothing", (Argument("x", DType.F32, ()),), (), (), (), 0, 0)
    assert Program(empty, b"")(x=np.float32(3)) == {}


def test_a_bound_call_reads_what_the_arrays_hold_now() -> None:
    program = Program(difference(host()), b"")
    left, right = _rows(3, 5, 1), _rows(3, 5, 2)
    bound = program.bind({"left": left, "right": right})
    for _ in range(2):
        bound()
        np.testing.assert_array_equal(bound.outputs[0], left - right)
        left += 1
    with pytest.raises(BundleError, match="input 'right' is missing"):
        program.bind({"left": left})


def _child(program: Program) -> int:
    """The exit status of a child process that runs a program: 0 when its answer is right, 3 when it would wait."""
    left, right = np.full((3, 5), 7, np.float32), np.ones((3, 5), np.float32)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if program._lock.acquire(blocking=False):
                program._lock.release()
                status = 0 if (program(left=left, right=right)["delta"] == 6).all() else 2
            else:
                status = 3
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_call_that_meets_another_one_raises() -> None:
    program = Program(difference(host()), b"")
    feeds = {"left": _rows(3, 5, 1), "right": _rows(3, 5, 2)}
    bound = program.bind(feeds)
    busy = ctypes.c_int32.from_address((program._model or 0) + BUSY)
    busy.value = 1  # as another thread's call leaves it while it runs
    for call in (bound, lambda: program.run(None, feeds)):
        with pytest.raises(BundleError, match="the program runs another call at this moment; load it again for each"):
            call()
    busy.value = 0
    bound()
    assert np.array_equal(bound.outputs[0], feeds["left"] - feeds["right"])


@pytest.mark.parametrize("held", ["lock", "model"])
def test_a_child_runs_whatever_another_thread_was_in(held: str) -> None:
    program = Program(difference(host()), b"")
    begun, end = threading.Event(), threading.Event()

    def other() -> None:
        with program._lock:
            begun.set()
            end.wait()

    thread = threading.Thread(target=other)
    if held == "lock":
        thread.start()
        begun.wait()
    else:
        ctypes.c_int32.from_address((program._model or 0) + BUSY).value = 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of a fork beside threads
            assert _child(program) == 0
    finally:
        end.set()
        if held == "lock":
            thread.join()


def test_a_closed_program_does_not_disturb_a_fork() -> None:
    closed, program = Program(difference(host()), b""), Program(difference(host()), b"")
    closed.close()
    assert _child(program) == 0


def test_a_library_of_another_interface_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "ABI", 0)
    with pytest.raises(BundleError, match="the library has ABI 1; this code knows 0: load it with the Python file of"):
        Program(difference(host()), b"")
    assert "older than the first ABI" in str(runtime._why_not(None))


def test_weights_start_where_a_huge_page_may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    class Noted(mmap.mmap):
        def madvise(self, option: int, *_: int) -> None:
            asked.append(option)

    monkeypatch.setattr(run.mmap, "mmap", Noted)
    weights = np.arange(192, dtype=np.uint8)
    placed = run.placed(weights)
    assert placed.ctypes.data % HUGE_PAGE == 0 and placed.tolist() == weights.tolist()
    assert asked == [mmap.MADV_HUGEPAGE]
