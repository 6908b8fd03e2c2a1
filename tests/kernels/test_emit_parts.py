"""The parts of a program's start: what is asked of the processor, the checksum, the guards around its memory."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.emit import processor
from kernels.emit.checksum import STRIPE, checksum, write_checksum
from kernels.emit.layout import HUGE_PAGE, layout_of
from kernels.emit.processor import Requirement, requirements, write_missing
from kernels.listing import InvalidListing, Listing, Place, Run
from kernels.llvm.compile import compile_object
from kernels.llvm.function import Function
from kernels.llvm.load import Loaded
from kernels.llvm.module import Module
from kernels.target import Target, aarch64, host, x86_64_v3, x86_64_v4
from tests.kernels.guard import guarded
from tests.kernels.interface import BAD_PROCESSOR, OK, Library, Options, call
from tests.kernels.listings import difference, perceptron

needs_x86 = pytest.mark.skipif(host().architecture.name != "x86_64", reason="the processor is no x86")

# The kernel's names of features whose names differ from LLVM's.
_KERNELS = {
    "sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm", "prfchw": "3dnowprefetch",
    "avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni", "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq", "avx512vp2intersect": "avx512_vp2intersect", "avx512fp16": "avx512_fp16",
    "avxvnni": "avx_vnni", "avx512bf16": "avx512_bf16", "amx-bf16": "amx_bf16", "amx-tile": "amx_tile",
    "amx-int8": "amx_int8",
}  # fmt: skip
_UNNAMED = {"avxifma", "avxvnniint8", "avxneconvert", "avxvnniint16"}  # of which /proc/cpuinfo has no flag


def missing(*needed: Requirement) -> str | None:
    """What the generated function says of this processor."""
    module = Module(host())
    write_missing(module, "lacking", needed)
    f = Function(module, "ask", (), exported=True, result="ptr")
    found = f.call("lacking", result="ptr")
    assert found is not None
    f.give(found)
    f.finish()
    loaded = Loaded(compile_object(module.text(), host()), host())
    answer = ctypes.CFUNCTYPE(ctypes.c_char_p)(loaded.address("ask"))()
    return None if answer is None else str(answer.decode())


@needs_x86
def test_cpuid_agrees_with_the_kernel_on_every_feature() -> None:
    line = next(one for one in Path("/proc/cpuinfo").read_text().splitlines() if one.startswith("flags"))
    flags = set(line.split())
    for one in processor.FEATURES["x86_64"]:
        if one.name not in _UNNAMED:
            present = _KERNELS.get(one.name, one.name) in flags
            assert (missing(one) is None) == present, one


def test_this_processor_has_what_code_for_it_needs() -> None:
    assert missing(*requirements(host())) is None


@needs_x86
def test_the_first_missing_feature_is_named() -> None:
    there = requirements(host())[:3]
    assert missing(*there, Requirement("time travel", 1, 0, 2, 31, state=1 << 30)) == "time travel"
    assert missing(Requirement("leaf of the future", 0x1234, 0, 0, 0)) == "leaf of the future"


@needs_x86
def test_each_leaf_is_asked_for_once() -> None:
    """And what the last leaf is, of either kind; and one that says whether registers are saved."""
    module, needed = Module(host()), requirements(x86_64_v4())
    write_missing(module, "lacking", needed)
    leaves = {(one.leaf, one.subleaf) for one in needed}
    kinds = {leaf & 0x80000000 for leaf, _ in leaves}
    assert module.text().count("call void @cpuid(") == 1 + len(leaves) + len(kinds) < len(needed)


@needs_x86
def test_a_program_for_another_processor_is_refused_at_creation() -> None:
    """Also its weights are not looked at: the checksum is code for that processor."""
    needed = (*requirements(host()), Requirement("avx9000", 0x7FFF, 0, 0, 3))
    written = perceptron(host())
    library = Library(written.listing, written.weights, needed)
    model = ctypes.c_void_p()
    assert library.create(ctypes.addressof(model), b"no such file") == BAD_PROCESSOR
    sentence = (
        b"this processor lacks 'avx9000', which the code was compiled for; compile it for a processor like this one."
    )
    assert library.error(model) == sentence
    library.destroy(model)


def test_named_targets_ask_for_their_level() -> None:
    v3, v4 = ({one.name for one in requirements(target)} for target in (x86_64_v3(), x86_64_v4()))
    assert {"avx2", "fma", "bmi2"} <= v3 and "avx512f" not in v3
    assert v3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"} == v4
    assert {one.name for one in requirements(aarch64())} == {"neon", "fp-armv8"}


# -- checksum ----


def _compiled(target: Target) -> Callable[[np.ndarray, int], int]:
    module = Module(target)
    write_checksum(module, "sum")
    loaded = Loaded(compile_object(module.text(), target), target)
    function = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(loaded.address("sum"))

    def call(data: np.ndarray, before: int = 0, _keep: Loaded = loaded) -> int:
        return int(function(data.ctypes.data, data.size, before))

    return call


COMPILED = [_compiled(one) for one in ((host(), x86_64_v3()) if host().architecture.name == "x86_64" else (host(),))]


@settings(deadline=None, max_examples=40)
@given(stripes=st.integers(0, 40), seed=st.integers(0, 2**32 - 1), shift=st.integers(0, 7), cut=st.integers(0, 40))
def test_machine_code_and_numpy_agree(stripes: int, seed: int, shift: int, cut: int) -> None:
    """Also piece by piece."""
    data = np.random.default_rng(seed).integers(0, 256, stripes * STRIPE + shift, np.uint8)[shift:]
    whole, before = checksum(np.ascontiguousarray(data)), min(cut, stripes) * STRIPE
    first, rest = np.ascontiguousarray(data[:before]), np.ascontiguousarray(data[before:])
    assert (checksum(first) + checksum(rest, before)) % 2**64 == whole
    for function in COMPILED:
        assert function(data, 0) == whole
        assert (function(data[:before], 0) + function(data[before:], before)) % 2**64 == whole


def test_more_than_one_chunk() -> None:
    data = np.random.default_rng(0).integers(0, 256, 3_000_000 // STRIPE * STRIPE, np.uint8)
    assert {function(data, 0) for function in COMPILED} == {checksum(data)}


def test_a_few_words_by_the_formula_in_plain_integers() -> None:
    data = np.arange(STRIPE, dtype=np.uint8)
    total, wrap = 0, 2**64
    for number in range(8):
        word = int.from_bytes(data[8 * number : 8 * number + 8].tobytes(), "little")
        mixed = word ^ (number + 1) * 0x9E3779B97F4A7C15 % wrap
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 % wrap
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % wrap
        total = (total + (mixed ^ mixed >> 31)) % wrap
    assert checksum(data) == total


def test_damage_is_seen() -> None:
    data = np.zeros(16 * STRIPE, np.uint8)
    seen = {checksum(data)}
    for bit in range(8 * data.size):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(checksum(data))
        data[bit // 8] ^= 1 << bit % 8
    words = np.arange(128, dtype=np.uint64)
    for other in range(1, 128):  # two words exchanged
        words[[0, other]] = words[[other, 0]]
        seen.add(checksum(words.view(np.uint8)))
        words[[0, other]] = words[[other, 0]]
    assert len(seen) == 1 + 8 * data.size + 127


# -- memory ----


def ended_by(work: Callable[[], None]) -> int:
    """The signal that ended a process that did this; 0 when it came to its end."""
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "the process failed: see its output above"
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


@pytest.mark.parametrize("before", [True, False])
def test_nothing_outside_arena_weights_and_arguments_is_touched(before: bool) -> None:
    """The arena is a whole page, so that it fills the space between its guards."""
    written = perceptron(host(), (19, 32, 21), rows=32)
    assert (
        written.listing.arena_bytes == layout_of(written.listing, host()).page or host().architecture.name != "x86_64"
    )
    library = Library(written.listing, written.weights)
    x = np.random.default_rng(0).standard_normal((32, 19)).astype(np.float32)

    def work() -> None:
        kept, weights = guarded(library.stored.size, before=before)
        weights[:] = library.stored
        kept_x, given = guarded(x.nbytes, before=before)
        given[:] = x.reshape(-1).view(np.uint8)
        kept_y, made = guarded(32 * 21 * 4, before=before)
        model = ctypes.c_void_p()
        options = Options(weights=weights.ctypes.data, weights_bytes=weights.size)
        assert library.create_with(ctypes.addressof(model), ctypes.byref(options)) == OK
        y = made.view(np.float32).reshape(32, 21)
        call(library, model, {"x": given.view(np.float32).reshape(32, 19)}, y=y)
        assert (np.abs(y - written.answer(x)) <= written.bound(x)).all()
        library.destroy(model)
        del kept, kept_x, kept_y

    assert ended_by(work) == 0


@pytest.mark.parametrize("before", [True, False])
def test_a_kernel_that_leaves_the_arena_meets_a_guard(before: bool) -> None:
    """A kernel that says less than it writes, and a place that is changed after the listing has looked at it."""
    page = layout_of(difference(host()), host()).page
    listing = difference(host())
    (kernel,) = listing.kernels
    lying = replace(kernel, operands=tuple(replace(one, elements=0) for one in kernel.operands))
    outside = Place("arena", 0 if before else page - 32)
    places = tuple(outside if one.role == "output" else Place("input") for one in kernel.operands)
    broken = replace(listing, kernels=(lying,), runs=(Run(kernel.name, places),), arena_bytes=page)
    if before:
        object.__setattr__(outside, "offset", -32)
    library = Library(broken)
    arrays = {name: np.zeros((3, 5), np.float32) for name in ("left", "right", "delta")}

    def work() -> None:
        model = library.made()
        call(library, model, {one: arrays[one] for one in ("left", "right")}, delta=arrays["delta"])

    assert ended_by(work) == signal.SIGSEGV


def test_places_do_not_overlap_and_large_ones_start_at_huge_pages() -> None:
    written = perceptron(host())
    for arena in (0, 1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5):
        layout = layout_of(replace(written.listing, arena_bytes=max(arena, 128)), host())
        assert layout.page <= layout.arena <= layout.scratch - layout.page - max(arena, 128)
        assert layout.scratch + layout.page <= layout.weights
        assert layout.weights + layout.weights_bytes + layout.page <= layout.reserved
        if arena >= HUGE_PAGE:
            assert layout.arena % HUGE_PAGE == 0 == layout.alignment % HUGE_PAGE


# -- listings ----


def _with_place(listing: Listing, name: str, place: Place) -> Listing:
    (kernel,), (run,) = listing.kernels, listing.runs
    places = tuple(
        place if operand.name == name else one for operand, one in zip(kernel.operands, run.operands, strict=True)
    )
    return replace(listing, runs=(replace(run, operands=places),))


def test_listings_that_do_not_fit_together() -> None:
    listing = replace(difference(host()), arena_bytes=256)
    for place, message in (
        (Place("arena", 2), "operand 'delta' of kernel 'subtract' starts at byte 2, which is no multiple of its"),
        (Place("input"), "kernel 'subtract' writes operand 'delta', which lies in the input: that is only read"),
        (Place("arena", 200), "takes 60 bytes from 200 of the arena, which has 256"),
        (Place("output", 0, 1), "takes 60 bytes from 0 of the output, which has -1"),
        (Place("output", 0, -1), "takes 60 bytes from 0 of the output, which has -1"),
    ):
        with pytest.raises(InvalidListing, match=message):
            _with_place(listing, "delta", place)
    with pytest.raises(InvalidListing, match="'größe' is no C identifier"):
        replace(listing, name="größe")
    with pytest.raises(InvalidListing, match="has two inputs called 'left'"):
        replace(listing, inputs=(listing.inputs[0], listing.inputs[0]))
    with pytest.raises(InvalidListing, match="has a null character"):
        replace(listing, inputs=(replace(listing.inputs[0], name="a\0b"), listing.inputs[1]))
