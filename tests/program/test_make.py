"""Budgets of a program: order, regions that run again, tiles, and what is said where none of it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from bench.node_tests import node_test, value_of
from graphopt.errors import BudgetNotKept, OptionError
from graphopt.program import make as making
from graphopt.program.deploy.compiled import Whole
from graphopt.program.deploy.hybrid import Hybrid
from graphopt.program.listing import link
from graphopt.program.make import make, make_listing
from graphopt.program.order import in_best_order, region_graph, run_in_order, side_by_side, within_budget
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from kernels.llvm.load import ObjectCache
from kernels.target import Target, host, named
from tests import support
from tests.program.regions.running import run_lowered

TARGET = named("x86-64-v3")
SIZE = 64 * 64 * 4  # bytes of one matrix
# a is needed at the end, and is cheap to compute again; b to e need two matrices beside it, as sums are not in place.
LATE = """g (float[64,64] x) => (float[64,64] y) {
    a = Relu(x) b = CumSum(a, across) c = CumSum(b, down) d = CumSum(c, across) e = CumSum(d, down)
    f = CumSum(e, across) y = Gemm(f, a)
}"""
AXES = {"down": np.array(0), "across": np.array(1)}
# Two long branches; in the order of the text both widest values live at once.
WIDE = """g (float[8,8] x) => (float[8,8] y) {
    a = Softmax(x) b = Concat<axis = 1>(a, a, a, a) c = Softmax<axis = 0>(x) d = Concat<axis = 1>(c, c, c, c)
    e = ReduceSum<keepdims = 1>(b, axes) f = ReduceSum<keepdims = 1>(d, axes) g = Mul(e, f) y = Add(x, g)
}"""


def _model(text: str, **arrays: np.ndarray) -> ir.Model:
    return ir.from_proto(support.model(text, 18, **arrays))


def _arena(lowered: Lowered) -> int:
    return link(lowered, "g").listing.arena_bytes


def test_regions_run_in_the_order_of_the_least_memory() -> None:
    lowered = lower(_model(WIDE, axes=np.array([1])), TARGET)
    better = in_best_order(lowered)
    assert _arena(better) < _arena(lowered)
    feeds = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    here = lower(_model(WIDE, axes=np.array([1])), host())
    np.testing.assert_array_equal(run_lowered(in_best_order(here), feeds)[0], run_lowered(here, feeds)[0])
    assert in_best_order(better) is better, "an order that is not improved stays"


def test_under_a_budget_regions_run_again() -> None:
    lowered = lower(_model(LATE, **AXES), host())
    plain = _arena(in_best_order(lowered))
    assert plain == 3 * SIZE
    kept = within_budget(lowered, 2 * SIZE)
    assert _arena(kept) == 2 * SIZE and len(kept.regions) == len(lowered.regions) + 1
    assert {buffer.run for buffer in kept.temporaries} == {1, 2}
    assert len(within_budget(lowered, plain).regions) == len(lowered.regions), "no more than is needed"
    feeds = {"x": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    np.testing.assert_array_equal(run_lowered(kept, feeds)[0], run_lowered(lowered, feeds)[0])
    with pytest.raises(BudgetNotKept) as refusal:
        within_budget(lowered, SIZE)
    assert refusal.value.least == 2 * SIZE


# c is two copies, side by side into one buffer, and is needed at the end.
JOINED = """g (float[64,32] p, float[64,32] q) => (float[64,64] y) {
    c = Concat<axis = 1>(p, q) d = CumSum(c, across) e = CumSum(d, down) f = CumSum(e, across) h = CumSum(f, down)
    y = Gemm(h, c)
}"""


def test_regions_that_write_one_buffer_side_by_side_run_again_together() -> None:
    lowered = lower(_model(JOINED, **AXES), host())
    (group,) = side_by_side(lowered).values()
    assert _arena(in_best_order(lowered)) == 3 * SIZE and len(group) == 2
    kept = within_budget(lowered, 2 * SIZE)
    assert _arena(kept) == 2 * SIZE and len(kept.regions) == len(lowered.regions) + len(group)
    generator = np.random.default_rng(0)
    feeds = {name: generator.standard_normal((64, 32)).astype(np.float32) for name in ("p", "q")}
    np.testing.assert_array_equal(run_lowered(kept, feeds)[0], run_lowered(lowered, feeds)[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("g (float[64,32] p, float[64,32] q) => (float[64,64] y) { c = Concat<axis = 1>(p, q) y = Softmax(c) }",
         "it is read once"),
        ("g (float[64,64] x) => (float[64,64] y) { a = Softmax(x) b = Softmax<axis = 0>(a) y = Gemm(b, a) }",
         "each has a buffer of its own"),
        ("g (float[64,32] p, float[64,32] q) => (float[64,64] c, float[64,64] y) "
         "{ c = Concat<axis = 1>(p, q) d = Softmax(c) y = Gemm(d, c) }", "it is given out"),
    ],
)  # fmt: skip
def test_regions_stay_by_themselves(text: str, why: str) -> None:
    assert not side_by_side(lower(_model(text), host())), why


def test_what_is_given_out_is_written_once() -> None:
    text = "g (float[64,64] x) => (float[64,64] y) { a = Softmax(x) b = Softmax(a) y = Add(a, b) }"
    graph = region_graph(lower(_model(text), TARGET))
    assert [operator.recomputable for operator in graph.operators] == [True, False]


def test_a_repeated_region_writes_a_buffer_of_its_own() -> None:
    lowered = lower(_model(LATE, **AXES), TARGET)
    names = [str(number) for number in range(len(lowered.regions))]
    again = run_in_order(lowered, [*names[:-1], "0", names[-1]])
    assert again.regions[-2].writes[0].name == "value:a#2"
    assert again.regions[-1].reads[-1] == again.regions[-2].writes[0]
    assert run_in_order(lowered, names) == lowered


CONVOLUTIONS = """g (float[1,8,64,64] x) => (float[1,8,32,32] y) {
    a = Conv<pads = [1, 1, 1, 1]>(x, w) b = Relu(a) c = Conv<pads = [1, 1, 1, 1]>(b, w) d = Relu(c)
    e = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(d) y = Conv<pads = [1, 1, 1, 1]>(e, w)
}"""


def _convolutions() -> ir.Model:
    generator = np.random.default_rng(0)
    return _model(CONVOLUTIONS, w=generator.standard_normal((8, 8, 3, 3)).astype(np.float32))


def test_a_smaller_budget_is_kept_by_tiles() -> None:
    whole = make(_convolutions(), TARGET, "g", False, None, "elsewhere")
    assert isinstance(whole, Whole) and whole.program is None
    plain = whole.linked.listing.arena_bytes
    tiled = make(_convolutions(), TARGET, "g", False, plain * 2 // 3, "elsewhere")
    assert isinstance(tiled, Whole) and tiled.linked.listing.arena_bytes <= plain * 2 // 3
    assert len(tiled.lowered.regions) > len(whole.lowered.regions)


POOLED = """g (float[1,4,24,24] x) => (float[1,64,1,1] y) {
    a = Conv(x, up) b = Conv(a, across) y = GlobalAveragePool(b)
}"""


def test_tiles_end_in_a_pool() -> None:
    generator = np.random.default_rng(0)
    up, across = (generator.standard_normal((64, wide, 1, 1)).astype(np.float32) for wide in (4, 64))
    budget = 100 << 10  # of two maps of 144 KiB
    tiled = make(_model(POOLED, up=up, across=across), TARGET, "g", False, budget, "elsewhere")
    assert isinstance(tiled, Whole) and tiled.linked.listing.arena_bytes <= budget


HALF = "g (float[4,5] x) => (float[4,5] y) { a = Relu(x) b = Softmax(a) c = Hardmax(b) d = Exp(c) y = Softmax(d) }"


@pytest.mark.usefixtures("some_lack_kernels")
def test_parts_in_onnxruntime_take_no_budget_and_no_other_machine() -> None:
    made = make(_model(HALF), host(), "g", False, None, None)
    assert isinstance(made, Hybrid) and made.missing == ("Hardmax 'c'",)
    with pytest.raises(OptionError, match="a memory budget is kept only by a program that has all kernels: Hardmax"):
        make(_model(HALF), host(), "g", False, 1000, None)
    with pytest.raises(OptionError, match="ONNX Runtime cannot run parts of the program, as it is elsewhere: Hardmax"):
        make(_model(HALF), host(), "g", False, None, "it is elsewhere")


@pytest.mark.usefixtures("some_lack_kernels")
def test_a_model_that_the_checker_refuses_and_that_runs_is_compiled() -> None:
    proto = support.model(HALF, 18)
    odd = proto.graph.value_info.add()
    odd.CopyFrom(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.FLOAT, [4, 6]))
    with pytest.raises(onnx.shape_inference.InferenceError):
        onnx.checker.check_model(proto, full_check=True)
    assert isinstance(make(ir.from_proto(proto), host(), "g", False, None, None), Hybrid)


def test_a_program_has_the_dims_that_a_model_declares_where_an_engine_makes_others() -> None:
    """Of the loop that Range is in its schema ONNX Runtime stacks [2, 1], and the model says [2]."""
    test = node_test("test_range_int32_type_negative_delta_expanded")
    names = [value.name for value in test.model.graph.input]
    feed = dict(zip(names, map(value_of, test.data_sets[0][0]), strict=True))
    (found,) = graphopt.compile(test.model, feeds=[feed], threads=1).run(None, feed)
    assert found.shape == (2,) and (found == value_of(test.data_sets[0][1][0])).all()


def test_under_a_budget_kernels_are_compiled_once_they_are_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A search lowers many models in tiles, and most of their kernels are in no program."""
    begun: list[str] = []
    told: list[bool] = []

    class Heard(ObjectCache):
        def begin(self, text: str, target: Target) -> None:
            begun.append(text)

    def lowered(*given: Any, **how: Any) -> Lowered:
        told.extend([how["written"] is not None] if how["tight"] else [])
        return lower(*given, **how)

    monkeypatch.setattr(making, "lower", lowered)
    weights = {"grow": np.ones((32, 256), np.float32), "shrink": np.ones((256, 32), np.float32)}
    model = _model("g (float[64,32] x) => (float[64,32] y) { a = MatMul(x, grow) y = MatMul(a, shrink) }", **weights)
    found, linked = make_listing(model, host(), "g", False, 40 << 10, begun=Heard(tmp_path))
    assert linked.plan.arena_size <= 40 << 10
    assert told and not any(told)
    names = {region.kernel.name for region in found.regions}
    assert all(any(name in text for text in begun) for name in names)
