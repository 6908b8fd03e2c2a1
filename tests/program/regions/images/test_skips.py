"""What waits long for a Concat: room for all of it is not held until then where memory is tight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.model.nodes import TILED
from graphopt.program.regions.images.joining import FAR
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.target import host
from tests import support
from tests.program.regions.running import run_lowered

WEIGHTS = {"w": np.random.default_rng(3).standard_normal((16, 16, 3, 3)).astype(np.float32) / 8}


def _skip(between: int, *, tight: bool) -> Lowered:
    """A value that the next one reads, and a Concat so many convolutions later."""
    names = ["a", *(f"b{number}" for number in range(between))]
    body = [f"{after} = Conv<pads = [1, 1, 1, 1]>({one}, w)" for one, after in zip(["x", *names], names, strict=False)]
    text = f"g (float[1,16,6,6] x) => (float[] y) {{ {' '.join(body)} c = Concat<axis = 1>(a, {names[-1]})"
    model = support.model(f"{text} y = MaxPool<kernel_shape = [2, 2]>(c) }}", 18, **WEIGHTS)
    return lower(ir.from_proto(model), host(), tight=tight)


def _dense(body: str) -> ir.Model:
    """The first map of a DenseNet, which waits for all of them, and as many layers as are far."""
    names = ["a", *(f"b{number}" for number in range(FAR))]
    layers = [
        f"c{number} = Concat<axis = 1>({', '.join(names[: number + 1])})"
        f" {after} = Conv<pads = [1, 1, 1, 1]>(c{number}, w{number})"
        for number, after in enumerate(names[1:])
    ]
    weights = {f"w{number}": np.ones((16, 16 * number + 16, 3, 3), np.float32) / 999 for number in range(FAR)}
    body = f"{body} {' '.join(layers)} c = Concat<axis = 1>({', '.join(names)})"
    text = f"g (float[1,16,6,6] x) => (float[] y) {{ {body} y = MaxPool<kernel_shape = [2, 2]>(c) }}"
    bounds = {f"n{one}": np.array([one]) for one in (0, 2, 3, 4, 6)}
    return ir.from_proto(support.model(text, 18, **WEIGHTS, **weights, **bounds))


def test_what_is_concatenated_again_lies_in_the_largest_result() -> None:
    model = _dense("a = Conv<pads = [1, 1, 1, 1]>(x, w)")
    plain, tight = (lower(model, host(), tight=tight) for tight in (False, True))
    assert [region.places for region in tight.regions] == [region.places for region in plain.regions]


def test_what_is_made_in_tiles_moves_there_when_it_is_concatenated() -> None:
    """The room for all is not held from the first tile on, and the value is copied once."""
    model = _dense(
        "p = Slice(x, n0, n4, n2) q = Slice(x, n2, n6, n2) d = Conv<pads = [1, 1, 0, 1]>(p, w)"
        " e = Conv<pads = [0, 1, 1, 1]>(q, w) a = Concat<axis = 2>(d, e)"
    )
    next(node for node in model.graph if node.outputs[0].name == "a").metadata_props[TILED] = "a"
    plain, tight = (lower(model, host(), tight=tight) for tight in (False, True))
    assert len(tight.regions) == len(plain.regions) + 1
    largest = max(tight.temporaries, key=lambda one: one.size)
    first = next(step for step, one in enumerate(tight.regions) if largest in (place.buffer for place in one.places))
    assert str(tight.regions[first].nodes[0]).startswith("Concat") and largest not in tight.regions[first].reads
    feed = {"x": np.random.default_rng(0).standard_normal((1, 16, 6, 6)).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(tight, feed)[0], run_lowered(plain, feed)[0])


def _first_use(lowered: Lowered) -> int:
    """The region that first touches what is joined, of those that compute nodes."""
    computing = [region for region in lowered.regions if region.nodes]
    return next(
        step for step, region in enumerate(computing)
        if any(place.buffer.purpose == "joined" for place in region.places)
    )  # fmt: skip


@pytest.mark.parametrize(("between", "tight", "at_once"), [(FAR, True, False), (FAR, False, True), (2, True, True)])
def test_a_value_that_waits_long_is_copied(between: int, tight: bool, at_once: bool) -> None:
    lowered = _skip(between, tight=tight)
    assert (_first_use(lowered) == 0) is at_once
    feed = {"x": np.random.default_rng(0).standard_normal((1, 16, 6, 6)).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(lowered, feed)[0], run_lowered(_skip(between, tight=False), feed)[0])


@pytest.mark.parametrize(("tight", "read", "copies"), [(True, "a", 1), (True, "c", 0), (False, "a", 0)])
def test_a_value_that_is_read_after_what_it_is_concatenated_to_lies_apart(tight: bool, read: str, copies: int) -> None:
    """Else all of that is held for some of its rows; not so where all of it is read then too."""
    text = f"""g (float[1,16,6,6] x) => (float[] y) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, w) n = Conv<pads = [1, 1, 1, 1]>(x, w) c = Concat<axis = 1>(n, a)
        d = Conv(c, v) e = Conv<pads = [1, 1, 1, 1]>(d, w) p = Slice(a, n0, n4, n2) q = Slice({read}, n0, n4, n2)
        f = MaxPool<kernel_shape = [2, 2]>(p) h = MaxPool<kernel_shape = [2, 2]>(q)
        g = MaxPool<kernel_shape = [4, 2]>(e) y = Concat<axis = 1>(f, g, h)
    }}"""
    bounds = {f"n{one}": np.array([one]) for one in (0, 2, 4)}
    model = ir.from_proto(support.model(text, 18, **WEIGHTS, v=np.ones((16, 32, 1, 1), np.float32), **bounds))
    lowered = lower(model, host(), tight=tight)
    assert (
        sum(one.operator == "Concat" and one.name == "c" for region in lowered.regions for one in region.nodes)
        == copies
    )
    feed = {"x": np.random.default_rng(0).standard_normal((1, 16, 6, 6)).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(lowered, feed)[0], run_lowered(lower(model, host()), feed)[0])
