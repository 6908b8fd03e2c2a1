"""Parts of a channel shuffle are made by themselves, with the same bits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.memory.tiling.shuffles import with_shuffles_apart
from graphopt.model.load import load
from graphopt.model.save import to_proto
from graphopt.program.in_place import in_place
from graphopt.program.lifetimes import memory_problem
from graphopt.program.regions.lower import lower
from kernels.target import host
from memplan.bounds import live_peak
from tests import support
from tests.program.regions.running import run_lowered

DRAW = np.random.default_rng(5)
HEAD = "g (float[1,6,2,3] x, float[1,6,2,3] z) => (float[] y)"
BODY = """a = Exp(x) c = Concat<axis = 1>(a, z) r = Reshape(c, split) t = Transpose<perm = [0, 2, 1, 3, 4]>(r)
    s = Reshape(t, joined)"""
HALVES = "p, q = Split<axis = 1>(s, halves) n = Neg(q) y = Concat<axis = 1>(p, n)"
SHUFFLED = f"{HEAD} {{ {BODY} {HALVES} }}"
ARRAYS = {
    "split": np.array([1, 2, 6, 2, 3]), "joined": np.array([1, 12, 2, 3]), "halves": np.array([6, 6]),
    "uneven": np.array([5, 7]), "other": np.array([1, 12, 3, 2]), "three": np.array([1, 3, 4, 2, 3]),
    "twice": np.array([1, 2, 1, 1]),
}  # fmt: skip


def _apart(text: str) -> tuple[ir.Model, bool]:
    """The model afterwards, and whether there was a shuffle; the results have the same bits."""
    model = load(support.model(text, **ARRAYS))
    found = with_shuffles_apart(model)
    feeds = {name: DRAW.standard_normal((1, 6, 2, 3)).astype(np.float32) for name in ("x", "z")}
    expected, got = (support.session(to_proto(one)).run(None, feeds) for one in (model, found))
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(other, one)
    return found, found is not model


def test_halves_are_made_each_of_halves() -> None:
    found, _ = _apart(SHUFFLED)
    part = ["Slice", "Reshape", "Slice", "Reshape", "Concat", "Reshape"]
    assert [node.op_type for node in found.graph] == ["Exp", *part, *part, "Neg", "Concat"]


def test_a_shuffle_that_is_read_whole_is_written_once() -> None:
    found, _ = _apart(f"{HEAD} {{ {BODY} y = Neg(s) }}")
    assert [node.op_type for node in found.graph].count("Concat") == 1
    assert not any(node.op_type == "Transpose" for node in found.graph)


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD} {{ {BODY} p, q = Split<axis = 1>(s, uneven) y = Concat<axis = 1>(p, q) }}",  # a group is cut
        f"{HEAD} {{ {BODY} y = Neg(s) }}".replace("split)", "three)"),  # a group has some of both operands
        SHUFFLED.replace("[0, 2, 1, 3, 4]", "[0, 1, 2, 4, 3]"),  # no channels change places
        SHUFFLED.replace("s = Reshape(t, joined)", "o = Reshape(t, other) s = Reshape(o, joined)"),
        SHUFFLED.replace("(float[] y)", "(float[] y, float[1,12,2,3] c)"),  # results of the model
        SHUFFLED.replace("y = Concat<axis = 1>(p, n)", "m = Exp(c) y = Concat<axis = 1>(p, n, m)"),
        SHUFFLED.replace("Concat<axis = 1>(a, z)", "Tile(a, twice)"),  # no Concat
    ],
)  # fmt: skip
def test_other_values_stay_whole(text: str) -> None:
    assert not _apart(text)[1]


def test_a_program_has_neither_the_whole_nor_what_was_joined() -> None:
    """Units of ShuffleNet: 64 channels, of which half go on as they are; the same bits, in less memory."""
    weights = {
        "w": DRAW.standard_normal((32, 32, 1, 1)).astype(np.float32), "halves": np.array([32, 32]),
        "groups": np.array([1, 2, 32, 8, 8]), "mixed": np.array([1, 64, 8, 8]),
    }  # fmt: skip
    text = """g (float[1,64,8,8] x) => (float[1,64,8,8] y) {
        a, b = Split<axis = 1>(x, halves) c = Conv(b, w) d = Sigmoid(a) e = Concat<axis = 1>(d, c)
        r = Reshape(e, groups) t = Transpose<perm = [0, 2, 1, 3, 4]>(r) s = Reshape(t, mixed)
        f, g = Split<axis = 1>(s, halves) h = Conv(g, w) i = Concat<axis = 1>(f, h)
        k = Reshape(i, groups) l = Transpose<perm = [0, 2, 1, 3, 4]>(k) m = Reshape(l, mixed)
        n, o = Split<axis = 1>(m, halves) p = Conv(o, w) y = Concat<axis = 1>(n, p)
    }"""
    model = load(support.model(text, **weights))
    before, after = (in_place(lower(one, host(), tight=True)) for one in (model, with_shuffles_apart(model)))
    assert live_peak(memory_problem(after)) < live_peak(memory_problem(before))
    feed = {"x": DRAW.standard_normal((1, 64, 8, 8)).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(after, feed)[0], run_lowered(before, feed)[0])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(2, 4), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_any_shuffle_has_the_same_bits(batch: int, groups: int, times: int, count: int, sliced: bool) -> None:
    """Of as many operands as groups; each part takes `times` channels of each group."""
    each, edge = times * count, 3
    total = groups * each
    names = [f"x{number}" for number in range(groups)]
    inputs = ", ".join(f"float[{batch},{each},{edge}] {name}" for name in names)
    arrays = {
        "split": np.array([batch, groups, each, edge]), "joined": np.array([batch, total, edge]),
        "sizes": np.array([groups * times] * count), "one": np.array([1]),
    }  # fmt: skip
    bounds = [groups * times * number for number in range(count + 1)]
    arrays |= {f"at{number}": np.array([bound]) for number, bound in enumerate(bounds)}
    parts = [f"p{number}" for number in range(count)]
    if sliced:
        take = " ".join(f"{part} = Slice(s, at{at}, at{at + 1}, one)" for at, part in enumerate(parts))
    else:
        take = f"{', '.join(parts)} = Split<axis = 1>(s, sizes)"
    text = f"""g ({inputs}) => ({", ".join(f"float[] {part}" for part in parts)}) {{
        c = Concat<axis = 1>({", ".join(names)}) r = Reshape(c, split) t = Transpose<perm = [0, 2, 1, 3]>(r)
        s = Reshape(t, joined) {take}
    }}"""
    model = load(support.model(text, **arrays))
    found = with_shuffles_apart(model)
    assert not any(node.op_type == "Transpose" for node in found.graph)
    feeds = {name: DRAW.standard_normal((batch, each, edge)).astype(np.float32) for name in names}
    expected, got = (support.session(to_proto(one)).run(None, feeds) for one in (model, found))
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(other, one)
