"""What a run tells about memory, and that nothing is told where it cannot be run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from graphopt.memory import heap, measured
from graphopt.memory.heap import counter
from graphopt.memory.measured import Use, use_in_onnxruntime
from graphopt.memory.observed import observed
from graphopt.model.load import load
from kernels.errors import KernelsError
from tests import support

TEXT = "g (float[2,4] x, float[4] z) => (float[2,4] y) { a = Exp(x) y = Add(a, z) }"

# Where there is no linker or another C library, nothing is counted, and the product says so.
needs_counter = pytest.mark.skipif(counter() is None, reason="no linker, or not the GNU C library")
measured_books = 64 << 10  # bytes that ONNX Runtime takes for itself


class Runs:
    """Stands for the process that runs the model: what it was asked, and what it prints."""

    def __init__(self, printed: str) -> None:
        self.printed, self.asked = printed, dict[str, object]()
        self.feed: list[np.ndarray] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.asked = json.loads(command[-1])
        with np.load(str(self.asked["feed"])) as arrays:
            self.feed = [arrays[name] for name in arrays.files]
        models = self.asked["models"]
        assert isinstance(models, list) and all(Path(path).exists() for path in models)
        return subprocess.CompletedProcess(command, 0, self.printed)


@pytest.mark.parametrize("contract", [False, True])
def test_the_model_its_feed_and_its_options_are_handed_over(contract: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs("[[4096, 1024, [2.0]], [8192, 2048, [3.0]]]")
    monkeypatch.setattr(measured.subprocess, "run", runs)
    model = load(support.model(TEXT))
    found = use_in_onnxruntime((model, model), contract=contract)
    assert found == (Use(4096, 1024, (2.0,)), Use(8192, 2048, (3.0,)))
    assert (runs.asked["contract"], runs.asked["names"], runs.asked["runs"]) == (contract, ["x", "z"], measured.RUNS)
    assert [array.shape for array in runs.feed] == [(2, 4), (4,)]


def test_nothing_is_told_where_it_cannot_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load(support.model(TEXT))
    monkeypatch.setattr(measured.subprocess, "run", Runs("no figure"))
    assert use_in_onnxruntime([model], contract=True) is None, "the process prints none"
    monkeypatch.setattr(measured.subprocess, "run", Runs("[[1, 2, []]]"))
    assert use_in_onnxruntime([load(support.model(TEXT.replace("2,4", "n,4")))], contract=True) is None, "a dim is open"
    monkeypatch.setattr(measured, "counter", lambda: None)
    monkeypatch.setattr(measured.Path, "exists", lambda _: False)
    assert use_in_onnxruntime([model], contract=True) is None, "nothing counts, and the system tells no peak"


@needs_counter
def test_the_heap_of_a_run_is_that_of_the_tensors_that_live_together() -> None:
    """Each of three values has 1 MiB and results are not in place: two are live at a time, of four in the chain."""
    text = "g (float[256,1024] x) => (float[256,1024] y) { a = Sin(x) b = Cos(a) c = Erf(b) y = Tanh(c) }"
    (use,) = use_in_onnxruntime([load(support.model(text, 18))], contract=True, rounds=2) or ()
    assert 2 << 20 <= use.tensors <= use.heap <= (2 << 20) + measured_books
    assert len(use.milliseconds) == 2 and min(use.milliseconds) > 0


@needs_counter
def test_without_the_contract_the_arena_takes_more() -> None:
    text = "g (float[256,1024] x) => (float[256,1024] y) { a = Sin(x) b = Cos(a) y = Erf(b) }"
    model = load(support.model(text, 18))
    (kept,), (loose,) = (use_in_onnxruntime([model], contract=one, rounds=1) or () for one in (True, False))
    assert loose.heap > kept.heap


def test_what_grew_is_told_where_nothing_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "counter", lambda: None)
    text = "g (float[1024,1024] x) => (float[1024,1024] y) { a = Sin(x) b = Cos(a) y = Erf(b) }"
    found = use_in_onnxruntime([load(support.model(text, 18))], contract=True, rounds=1)
    assert found is None or found[0].heap >= 4 << 20


@needs_counter
def test_the_counter_counts_what_the_allocators_give_and_take(tmp_path: Path) -> None:
    library = counter()
    assert library is not None
    (tmp_path / "libheap.so").write_bytes(library)
    script = """
import ctypes, json
c = ctypes.CDLL(None)
for name in ("heap_now", "heap_most", "heap_aligned_most"):
    getattr(c, name).restype = ctypes.c_size_t
for name in ("malloc", "calloc", "realloc", "memalign", "aligned_alloc"):
    getattr(c, name).restype = ctypes.c_void_p
    getattr(c, name).argtypes = [ctypes.c_size_t] * (1 if name == "malloc" else 2)
c.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
c.free.argtypes = [ctypes.c_void_p]
size = 3 << 20
seen = []
def told(what, before=[0]):
    seen.append((what, c.heap_now() - start, c.heap_most() - start, c.heap_aligned_most()))
c.heap_reset()
start = c.heap_now()
one = c.malloc(size); told("malloc")
two = c.calloc(3, 1 << 20); told("calloc")
one = c.realloc(one, 2 * size); told("realloc")
c.free(two); told("free")
three = c.memalign(64, size); told("memalign")
c.free(three)
four = c.aligned_alloc(64, size); told("aligned")
place = ctypes.c_void_p()
c.posix_memalign(ctypes.byref(place), 64, size); told("posix")
c.free(four); c.free(place.value); c.free(one); c.free(None); told("end")
print(json.dumps(seen))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | {"LD_PRELOAD": str(tmp_path / "libheap.so")}, check=True,
        capture_output=True,
    )  # fmt: skip
    near = {what: tuple(round(size / (3 << 20), 1) for size in sizes) for what, *sizes in json.loads(done.stdout)}
    assert near == {  # in units of one block: held now, held at the most, aligned ones at the most
        "malloc": (1, 1, 0), "calloc": (2, 2, 0), "realloc": (3, 3, 0), "free": (2, 3, 0), "memalign": (3, 3, 1),
        "aligned": (3, 3, 1), "posix": (4, 4, 2), "end": (0, 4, 2),
    }  # fmt: skip


def test_shapes_are_seen_in_a_run() -> None:
    text = """g (float[2,4] x) => (float[2,4] y) {
        n = NonZero(x) e = Cast<to = 11>(n) s = SequenceConstruct(x, x) z = SequenceAt(s, i) y = Neg(z)
    }"""
    model = load(support.model(text, i=np.array(0)))
    assert observed(model, ["n", "e", "s", "z"]) == {
        "n": ("int64", (2, 8), 128), "e": ("float64", (2, 8), 128), "z": ("float32", (2, 4), 32),
    }  # fmt: skip


def test_a_model_that_stops_shows_nothing() -> None:
    """Row 9 of a table of two rows."""
    text = "g (float[2,4] x) => (float[4] y) { a = Exp(x) y = Gather(a, nine) }"
    assert observed(load(support.model(text, nine=np.array(9))), ["a"]) == {}


def test_of_several_processes_the_most_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime numbers nodes by addresses, and runs them by their numbers."""
    printed = iter(["[[4096, 1024, [2.0]]]", "[[4000, 2048, []]]", "[[8192, 512, []]]"])
    monkeypatch.setattr(measured.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, next(printed)))
    found = use_in_onnxruntime([load(support.model(TEXT))], contract=True, processes=3)
    assert found == (Use(8192, 2048, (2.0,)),)


@pytest.mark.parametrize(
    ("system", "library", "links", "expected"),
    [
        ("linux", "glibc", True, b"the counter"),
        ("linux", "musl", True, None),
        ("darwin", "glibc", True, None),
        ("linux", "glibc", False, None),
    ],
)
def test_the_counter_is_for_linux_with_the_gnu_library_and_a_linker(
    system: str, library: str, links: bool, expected: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(objects: list[bytes], target: object, *, exported: tuple[str, ...]) -> bytes:
        if not links:
            raise KernelsError("there is no linker")
        assert objects == [b"an object"] and {"heap_reset", "malloc"} < set(exported)
        return b"the counter"

    monkeypatch.setattr(heap.sys, "platform", system)
    monkeypatch.setattr(heap.platform, "libc_ver", lambda: (library, "2"))
    monkeypatch.setattr(heap, "compile_object", lambda text, target: b"an object")
    monkeypatch.setattr(heap, "link_shared", link)
    assert counter.__wrapped__() == expected
