"""The block of a program's constants: equal ones lie there once, and large ones are packed where they lie."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx

import graphopt
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.weights import Weights, bytes_of
from kernels.target import named
from tests import support

SIDE = 1024
BYTES = 4 * SIDE**2


def lowered_of(proto: onnx.ModelProto | Path) -> Lowered:
    return lower(graphopt.load(proto), named("x86-64-v3"))


def chain(*weights: np.ndarray) -> onnx.ModelProto:
    """Products one after the other."""
    names = {f"w{n}": one for n, one in enumerate(weights)}
    rows = "\n".join(f"x{n + 1} = MatMul(x{n}, w{n})" for n in range(len(weights)))
    size = weights[0].shape[0]
    text = f"g (float[1, {size}] x0) => (float[1, {size}] x{len(weights)}) {{ {rows} }}"
    return support.model(text, 17, **names)


def test_constants_lie_as_their_kernels_want_them_and_equal_ones_once() -> None:
    rng = np.random.default_rng(0)
    some, other = (rng.standard_normal((70, 70)).astype(np.float32) for _ in range(2))
    lowered = lowered_of(chain(some, other, some.copy(), other + 1))
    weights = Weights(bytes_of(lowered))
    places = weights.add(lowered)
    expected = {one: lowered.constants[one].packed().reshape(-1).view(np.uint8) for one in places}
    for one, start in places.items():
        np.testing.assert_array_equal(weights.bytes[start : start + one.size], expected[one])
    assert len(set(places.values())) == 3 and len(weights.held) == 3
    filled = np.zeros(weights.bytes.size, bool)
    for one, start in places.items():
        filled[start : start + one.size] = True
    assert not weights.bytes[~filled].any(), "what lies between is zeros, also where an equal constant was"
    assert weights.add(lowered) == places, "a second program brings nothing new"


def test_packing_holds_no_second_copy_of_a_large_constant() -> None:
    rng = np.random.default_rng(0)
    lowered = lowered_of(chain(*(rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(3))))
    weights = Weights(bytes_of(lowered))
    tracemalloc.start()  # which does not see the block: that is a map
    try:
        weights.add(lowered)
        assert tracemalloc.get_traced_memory()[1] < BYTES / 8
    finally:
        tracemalloc.stop()
    assert weights.bytes.size >= 3 * BYTES


def test_pages_of_a_data_file_go_once_they_are_packed(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    rng = np.random.default_rng(0)
    proto = chain(*(rng.standard_normal((SIDE, SIDE)).astype(np.float32) for _ in range(4)))
    onnx.save(proto, file, save_as_external_data=True, location="m.data", size_threshold=1024)
    lowered = lowered_of(file)
    weights = Weights(bytes_of(lowered))
    weights.add(lowered)
    assert resident_of(tmp_path / "m.data") < BYTES
    assert weights.bytes.any()


def resident_of(file: Path) -> int:
    """Bytes of a file that this process has mapped and in memory."""
    found, is_here = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            is_here = words[-1] == str(file)
        elif is_here and words[0] == "Rss:":
            found += int(words[1]) << 10
    return found
