"""The records of operators agree with ONNX: its schemas, and its node tests as its reference evaluator runs them."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

import graphopt
from graphopt.model.contrib.bodies import IN_STANDARD
from graphopt.model.facts import Facts
from graphopt.model.operators.axes import Axes
from graphopt.model.operators.movement import slice_bounds
from graphopt.model.operators.parameters import Unclear
from graphopt.model.operators.record import Operator
from graphopt.model.operators.table import FAMILIES, OPERATORS, operator_of
from graphopt.rewrite.rule import Match, Refused, bind
from tests import support

STANDARD = [operator for operator in OPERATORS.values() if not operator.domain]
LARGEST = 1 << 16  # elements of an input; the same operators are tested on small ones


@dataclass(frozen=True, slots=True)
class Case:
    """One node with the inputs and results of one of ONNX's tests."""

    name: str
    model: onnx.ModelProto
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]

    @property
    def node(self) -> onnx.NodeProto:
        return self.model.graph.node[0]

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """The node on other inputs."""
        names = [name for name in self.node.input if name]
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # the tests overflow on purpose
            return list(ReferenceEvaluator(self.model).run(None, dict(zip(names, inputs, strict=True))))

    def node_with_facts(self) -> tuple[ir.Node, Facts]:
        """The node with all inputs as constants, and what is known of them."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        names = [name for name in self.node.input if name]
        given = [numpy_helper.from_array(array, name) for name, array in zip(names, self.inputs, strict=True)]
        del model.graph.input[:]
        model.graph.initializer.extend(given)
        whole = ir.from_proto(model)
        return next(iter(whole.graph)), Facts(whole)


@cache
def all_cases() -> tuple[Case, ...]:
    """ONNX's tests of one node of its own domain, with tensors of NumPy's types and each input read once."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tests = sorted(load_model_tests(kind="node"), key=lambda case: case.name)
        for case in tests:
            model = case.model
            if model is None or len(model.graph.node) != 1 or model.graph.initializer or not case.data_sets:
                continue
            given, wanted = case.data_sets[0]
            arrays = [[_array(value) for value in values] for values in (given, wanted)]
            names = [name for name in model.graph.node[0].input if name]
            if any(array is None for values in arrays for array in values) or len(set(names)) != len(arrays[0]):
                continue
            if all(array is not None and array.size <= LARGEST for array in arrays[0]):
                found.append(Case(case.name, model, tuple(arrays[0]), tuple(arrays[1])))  # type: ignore[arg-type]
    return tuple(found)


def _array(value: object) -> np.ndarray | None:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if not isinstance(value, (np.ndarray, np.generic)) or np.asarray(value).dtype.kind not in "biufcO":
        return None
    return np.asarray(value)


def cases_of(holds: str) -> Iterator[tuple[Case, Operator]]:
    """The tests of operators with a field that says something, each with the record."""
    for case in all_cases():
        operator = OPERATORS.get((case.node.domain, case.node.op_type))
        if operator is not None and getattr(operator, holds) not in (None, False, "own", "all"):
            yield case, operator


def assert_same(found: np.ndarray, wanted: np.ndarray, case: Case) -> None:
    """Equal numbers; floats but for their last digits, since NumPy's vectors of functions depend on the place."""
    assert found.shape == wanted.shape, case.name
    assert found.dtype == wanted.dtype, case.name
    if wanted.dtype.kind == "f":
        tolerance = 4 * np.finfo(wanted.dtype).eps if wanted.dtype.itemsize > 1 else 0
        given, right = (array.astype(np.float64) for array in (found, wanted))
        np.testing.assert_allclose(given, right, rtol=tolerance, atol=tolerance, err_msg=case.name)
    else:
        np.testing.assert_array_equal(found, wanted, err_msg=case.name)


# -- schemas ----------------------------------------------------------------------------------------------------------


def test_every_operator_is_one_of_onnx_and_has_one_record() -> None:
    names = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    assert {operator.name for operator in STANDARD} <= names | IN_STANDARD  # which ONNX Runtime puts there
    assert len(OPERATORS) == sum(len(family) for family in FAMILIES)


def _names_in(node: ast.AST) -> Iterator[ast.expr]:
    """Where a name of an operator is written: patterns, new nodes, and comparisons with a node's type."""
    if isinstance(node, ast.Call):
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if called in ("any_node", "inner_node", "made_by"):
            yield from node.args
        elif called in ("op", "node_of"):
            yield from node.args[:1]
    elif isinstance(node, ast.Compare) and getattr(node.left, "attr", "") == "op_type":
        for side in node.comparators:
            yield from side.elts if isinstance(side, (ast.Tuple, ast.Set)) else [side]


def test_every_name_that_the_source_compares_with_is_an_operator() -> None:
    ours = {operator.name for family in FAMILIES for operator in family if operator.domain.startswith("graphopt.")}
    written = {
        name.value
        for path in Path(graphopt.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _names_in(node)
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    }
    assert "QuickGelu" in written, "names are found"
    schemas = [*get_all_operator_schema(), *onnx.defs.get_all_schemas_with_history()]
    assert not written - ours - {schema.name for schema in schemas}


def test_operators_that_draw_are_those_whose_schema_says_so() -> None:
    said = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if schema.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic
    }
    random = {operator.name for operator in STANDARD if operator.purity == "random"}
    # The others hold graphs that may draw (the definition of AffineGrid does hold one), or draw when they train.
    assert random == said - {"If", "Loop", "Scan", "SequenceMap", "AffineGrid", "Dropout"}
    assert OPERATORS["", "Dropout"].purity == "training"


@pytest.mark.parametrize("operator", [one for one in STANDARD if one.parameters], ids=lambda one: one.name)
def test_parameters_became_inputs_with_the_opset_that_is_said(operator: Operator) -> None:
    for name, place in operator.parameters.items():
        after = onnx.defs.get_schema(operator.name, place.since)
        assert after.since_version == place.since
        assert after.inputs[place.position].name == name
        assert name not in after.attributes
        try:
            before = onnx.defs.get_schema(operator.name, place.since - 1)
        except onnx.defs.SchemaError:
            continue  # the operator came with the parameter as an input
        assert name in before.attributes or name == "steps", "steps of a Slice came when the bounds became inputs"


@pytest.mark.parametrize("operator", [one for one in STANDARD if one.broadcasts], ids=lambda one: one.name)
def test_operators_broadcast_since_the_opset_that_is_said(operator: Operator) -> None:
    assert operator.broadcasts is not None
    schema = onnx.defs.get_schema(operator.name, operator.broadcasts)
    assert schema.since_version == operator.broadcasts
    assert "multidirectional" in schema.doc
    if operator.broadcasts > 1 and onnx.defs.has(operator.name, operator.broadcasts - 1):
        assert "multidirectional" not in onnx.defs.get_schema(operator.name, operator.broadcasts - 1).doc


def test_fields_of_a_record_fit_together() -> None:
    for operator in OPERATORS.values():
        assert operator.formula is None or operator.axes in ("each", "broadcast") or operator.along, operator.name
        assert operator.formula is None or not operator.epilogue, f"{operator.name} is an anchor or elementwise"
        assert not operator.moves or operator.flops(ir.Node("", operator.name, []), [(2,)], [(2,)]) == 0, operator.name
        same_elements = operator.moves or operator.purity == "training"
        assert operator.storage != "same" or same_elements or operator.name == "BitCast", operator.name


# -- node tests --------------------------------------------------------------------------------------------------------


def test_results_that_are_the_operands_bytes_are_equal_to_them() -> None:
    seen = set()
    for case, operator in cases_of("storage"):
        if operator.storage == "same" and not (operator.name == "Dropout" and len(case.inputs) > 2):
            assert case.outputs[0].tobytes() == case.inputs[0].tobytes(), case.name
            seen.add(operator.name)
    assert seen == {operator.name for operator in STANDARD if operator.storage == "same"}


def test_joined_operands_and_pieces_are_blocks_of_the_whole() -> None:
    for case, operator in cases_of("storage"):
        parts, whole = {"joined": (case.inputs, case.outputs[0]), "pieces": (case.outputs, case.inputs[0])}.get(
            operator.storage, ((), case.inputs[0])
        )
        axis = next((attribute.i for attribute in case.node.attribute if attribute.name == "axis"), 0)
        if parts and int(np.prod(whole.shape[:axis] if axis >= 0 else whole.shape[: whole.ndim + axis])) == 1:
            assert b"".join(part.tobytes() for part in parts) == whole.tobytes(), case.name


def test_what_moves_gives_back_elements_of_its_first_operand() -> None:
    seen = set()
    for case, operator in cases_of("moves"):
        if case.inputs[0].dtype.kind != "O" and case.inputs[0].size:
            assert np.isin(case.outputs[0], case.inputs[0]).all(), case.name
            seen.add(operator.name)
    assert seen == {operator.name for operator in STANDARD if operator.moves}


def test_no_result_is_negative_where_none_can_be() -> None:
    for case, _ in cases_of("not_negative"):
        operands = [-np.abs(case.inputs[0]) if case.inputs[0].dtype.kind == "f" else case.inputs[0], *case.inputs[1:]]
        results = case.run(*operands)[0]
        assert not (results < 0).any(), case.name


def test_commutative_operators_give_the_same_when_operands_change_places() -> None:
    for case, _ in cases_of("commutative"):
        if len(case.inputs) == 2:
            assert_same(case.run(*reversed(case.inputs))[0], case.outputs[0], case)


def test_elementwise_operators_commute_with_slicing_and_with_every_order_of_axes() -> None:
    seen = set()
    for case, operator in cases_of("axes"):
        rank = case.outputs[0].ndim
        if operator.axes not in ("each", "broadcast") or rank == 0 or case.inputs[0].dtype.kind == "O":
            continue
        whole = case.outputs[0].shape
        tensors = len(case.inputs) if operator.axes == "broadcast" else 1
        operands = [np.broadcast_to(array, whole) for array in case.inputs[:tensors]]
        others, wanted = case.inputs[tensors:], case.run(*case.inputs)[0]
        turned = case.run(*(np.ascontiguousarray(array.T) for array in operands), *others)[0]
        assert_same(turned, np.ascontiguousarray(wanted.T), case)
        for axis in range(rank):
            at = (slice(None),) * axis + (slice(0, (whole[axis] + 1) // 2),)
            assert_same(case.run(*(array[at] for array in operands), *others)[0], wanted[at], case)
        seen.add(operator.name)
    expected = {operator.name for operator in STANDARD if operator.axes in ("each", "broadcast")}
    assert seen == expected


def test_along_axes_that_are_not_bound_positions_stay_side_by_side() -> None:
    seen = set()
    for case, operator in cases_of("axes"):
        if isinstance(operator.axes, str) or case.inputs[0].dtype.kind == "O":
            continue
        assert callable(operator.axes)
        try:
            axes = operator.axes(*case.node_with_facts())
        except Unclear:
            continue
        wanted = case.run(*case.inputs)
        for axis in set(range(axes.rank)) - axes.bound:
            if _is_alike(case, axes, axis):
                half = [_half(array, axis) if at < axes.operands else array for at, array in enumerate(case.inputs)]
                gone = sum(other < axis for other in axes.bound) if axes.gone else 0
                for found, whole in zip(case.run(*half), wanted, strict=True):
                    assert_same(found, _half(whole, axis - gone), case)
                seen.add(operator.name)
    assert len(seen) >= 25, sorted(seen)


def _is_alike(case: Case, axes: Axes, axis: int) -> bool:
    sizes = {array.shape[axis] for array in case.inputs[: axes.operands] if array.ndim == axes.rank}
    return len(sizes) == 1 and sizes.pop() > 1


def _half(array: np.ndarray, axis: int) -> np.ndarray:
    return array.take(range((array.shape[axis] + 1) // 2), axis)


def _with_counts(operator: Operator, node: ir.Node, facts: Facts, case: Case) -> tuple[object, ...]:
    """The first result's dims; those that data decides as the case has them, when they are no more than they can be."""
    shape = list(facts.shape(node.outputs[0]) or ())
    for counting in () if operator.counted is None else operator.counted(node, facts):
        axis = counting.axes[0]
        assert axis is not None and isinstance(counting.most, int) and case.outputs[0].shape[axis] <= counting.most
        shape[axis] = case.outputs[0].shape[axis]
    return tuple(shape)


def test_shape_rules_say_what_the_results_are() -> None:
    seen = set()
    for case, operator in cases_of("shape"):
        node, facts = case.node_with_facts()
        assert operator.shape is not None
        known = operator.shape(node, facts)
        if known is not None and known[0].shape is not None:
            found = _with_counts(operator, node, facts, case)
            assert all(isinstance(dim, int) for dim in found), f"{case.name}: all inputs are constants"
            assert found == case.outputs[0].shape, case.name
            assert known[0].dtype == ir.DataType.from_numpy(case.outputs[0].dtype), case.name
            seen.add(operator.name)
    assert len(seen) >= 90, len(seen)


def test_evaluators_compute_what_the_reference_does() -> None:
    seen = set()
    for case, operator in cases_of("evaluate"):
        assert operator.evaluate is not None
        opset = case.model.opset_import[0].version
        node, _ = case.node_with_facts()
        arrays = iter(case.inputs)
        given = [None if value is None else next(arrays) for value in node.inputs]
        with np.errstate(all="ignore"):
            result = operator.evaluate(node, given, opset)
        if result is not None:
            assert_same(np.asarray(result), case.outputs[0], case)
            seen.add(operator.name)
    assert len(seen) >= 28, sorted(seen)


def test_content_of_numbers_is_what_the_operator_gives() -> None:
    text = """g (float[1] unused) => (int64[3] a, bool[3] b, int64[3] c, int64[1, 3] d, int64[] e) {
        a = Mul(x, y)  b = Less(x, y)  c = Max(x, y)  d = Unsqueeze(x, zero)  e = Gather(x, place)
    }"""
    x, y = np.array([3, 4, 5]), np.array([5, 4, 2])
    proto = support.model(text, x=x, y=y, zero=np.array([0]), place=np.array(-1))
    whole = ir.from_proto(proto)
    facts = Facts(whole)
    held = {node.outputs[0].name: facts.content(node.outputs[0]) for node in whole.graph}
    said = {name: None if content is None else content.tolist() for name, content in held.items()}
    assert said == {"a": [15, 16, 10], "b": [True, False, False], "c": [5, 4, 5], "d": [[3, 4, 5]], "e": 5}


def test_an_operator_of_another_domain_has_no_record() -> None:
    assert operator_of(ir.Node("com.example", "Relu", [])) is None
    assert operator_of(ir.Node("ai.onnx", "Relu", [])) is OPERATORS["", "Relu"]
    assert re.search("Gelu", OPERATORS["com.microsoft", "QuickGelu"].name)


# -- parameters -------------------------------------------------------------------------------------------------------


def _one_node(text: str, opset: int, **weights: np.ndarray) -> tuple[ir.Node, Facts]:
    whole = ir.from_proto(support.model(text, opset, **weights))
    return next(iter(whole.graph)), Facts(whole)


def test_bounds_of_a_slice_are_read_alike_from_attributes_and_inputs() -> None:
    text = "g (float[5,6] x) => (float[a,b] y) {{ y = Slice{} }}"
    before = _one_node(text.format("<starts = [1], ends = [4], axes = [1]>(x)"), 9)
    after = _one_node(text.format("(x, s, e, a)"), 13, s=np.array([1]), e=np.array([4]), a=np.array([1]))
    assert slice_bounds(before[1], before[0]) == slice_bounds(after[1], after[0]) == ((1,), (4,), (1,), (1,))
    without = _one_node(text.format("(x, s, e)"), 13, s=np.array([1, 0]), e=np.array([4, 2]))
    assert slice_bounds(without[1], without[0]).axes == (0, 1)


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        ("g (float[5] x, int64[1] s) => (float[a] y) { y = Slice(x, s, e) }", 13, "a start is not constant"),
        ("g (float[5] x, int64[1] s) => (float[a] y) { y = Slice(x, e, e, e, s) }", 13, "a step is not constant"),
        ("g (float[5] x) => (float[a] y) { y = Slice(x, e, t) }", 13, "the bounds are of different number"),
        ("g (float[5] x) => (float[a] y) { y = Slice<ends = [2]>(x) }", 9, "Slice 'y' lacks its bounds"),
    ],
)
def test_bounds_that_are_not_known_are_refused(text: str, opset: int, reason: str) -> None:
    node, facts = _one_node(text, opset, e=np.array([2]), t=np.array([1, 2]))
    with pytest.raises(Unclear, match=reason):
        slice_bounds(facts, node)


@pytest.mark.parametrize("opset", [12, 13])
def test_a_rule_gives_parameters_as_attributes_at_every_opset(opset: int) -> None:
    node, facts = _one_node("g (float[1,6] x) => (float[6] y) { y = Relu(x) }", opset)
    match = Match(node, bind(node), facts)
    made = match.node_of("Squeeze", node.inputs[0], attributes={"axes": (0,)})
    if opset < 13:
        assert made.attributes["axes"].as_ints() == (0,) and len(made.inputs) == 1
    else:
        assert "axes" not in made.attributes and facts.ints(made.inputs[1]) == (0,)
    assert match.parameter(made, "axes") == (0,)


def test_a_parameter_that_only_a_run_can_tell_is_refused() -> None:
    node, facts = _one_node("g (float[1,6] x, int64[1] a) => (float[6] y) { y = Squeeze(x, a) }", 13)
    with pytest.raises(Refused, match="the list of axes is not constant"):
        Match(node, bind(node), facts).parameter(node, "axes")
