"""The pattern language: what a pattern binds, what it says where it does not fit, all ways to fit by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphopt.model.facts import Facts
from graphopt.rewrite.pattern import Const, Miss, Op, Pattern, Var, const, match, may_match, op, scalar, var
from tests import support

WEIGHTS = {
    "two": np.full(1, 2.0, np.float32),
    "three": np.full((4,), 3.0, np.float32),
    "many": np.arange(4, dtype=np.float32),
}
ADDS = op("Add", op("Add", var("x"), const("a"), name="inner"), const("b"))
# Pattern, the body of a graph of x and z to y, and what is bound, or why nothing is. The pattern is tried at y.
FITS: list[tuple[Op, str, str]] = [
    (ADDS, "p = Add(x, two) y = Add(p, many)", "a=two b=many x=x; inner=p; y p"),
    (ADDS, "p = Add(two, x) y = Add(many, p)", "a=two b=many x=x; inner=p; y p"),
    (ADDS, "p = Add(two, many) y = Add(p, three)", "a=many b=three x=two; inner=p; y p"),
    (op("Sub", var("x"), var("x")), "y = Sub(z, z)", "x=z; ; y"),
    (op("Sub", var("x"), const("c")), "y = Sub(z, two)", "c=two x=z; ; y"),
    (op("Mul", var("x"), op("Sigmoid", var("x"))), "p = Sigmoid(x) y = Mul(p, x)", "x=x; ; y p"),
    (op(("Relu", "Abs"), var("v"), name="it"), "y = Abs(x)", "v=x; it=y; y"),
    (op("Neg", op("Abs", var("v"), shared=True)), "p = Abs(x) q = Exp(p) r = Neg(p) y = Neg(p)", "v=x; ; y p"),
    (op("Neg", op("Split", var("v"), output=1)), "p, q = Split<axis = 0>(x, halves) y = Neg(q)", "v=x; ; y p"),
    (op("Split", var("v")), "y, q = Split<axis = 0>(x, halves)", "v=x; ; y"),
    (op("Sub", var("x"), scalar("c")), "p = ConstantOfShape(four) y = Sub(x, p)", "c=p x=x; ; y"),
    (op("Add", var("x"), scalar("c", 2.0000015)), "y = Add(x, two)", "c=two x=x; ; y"),
    (op("Clip", var("x"), const("low"), exact=True), "y = Clip(x, two)", "low=two x=x; ; y"),
]
MISSES: list[tuple[Op, str, str]] = [
    (ADDS, "y = Sub(x, two)", "Sub 'y' stands where Add is wanted"),
    (op(("Relu", "Abs"), var("v")), "y = Neg(x)", "Neg 'y' stands where Relu or Abs is wanted"),
    (ADDS, "p = Sub(x, two) y = Add(p, many)", "'p' is not a constant"),
    (op("Sub", op("Add", var("x"), const("a")), const("b")), "p = Add(x, z) y = Sub(p, two)", "'x' is not a constant"),
    (op("Sub", op("Add", var("x"), var("a")), var("b")), "y = Sub(x, two)", "'x' is not computed by Add"),
    (op("Sub", op(("Add", "Mul"), var("x"), var("a")), var("b")), "y = Sub(x, z)", "'x' is not computed by Add or Mul"),
    (op("Sub", var("v"), var("v")), "y = Sub(x, z)", "'z' stands where 'x' is wanted"),
    (op("Neg", op("Abs", var("v"))), "p = Abs(x) q = Exp(p) y = Neg(p)", "the result of Abs 'p' is read elsewhere too"),
    (op("Neg", op("Abs", var("v"))), "w = Abs(x) y = Neg(w)", "the result of Abs 'w' is read elsewhere too"),
    (op("Neg", op("Split", var("v"))), "p, q = Split<axis = 0>(x, halves) y = Neg(q)",
     "'q' is another output of Split 'p'"),
    (op("Sub", var("x"), scalar("c")), "y = Sub(x, many)", "constant 'many' holds more than one number"),
    (op("Sub", var("x"), scalar("c", 2.000003)), "y = Sub(x, two)", "constant 'two' is 2.0, not 2.000003"),
    (op("Sub", var("x"), scalar("c", -2.0)), "y = Sub(x, two)", "constant 'two' is 2.0, not -2.0"),
    (op("Clip", var("x"), const("low"), const("high")), "y = Clip(x, two)", "Clip 'y' lacks an input"),
    (op("Clip", var("x"), const("low")), "y = Clip(x, , two)", "Clip 'y' lacks an input"),
    (op("Clip", var("x"), exact=True), "y = Clip(x, two)", "Clip 'y' has more inputs than the pattern allows"),
    (op("Neg", op("Neg", var("v"))), "p = Abs(x) y = Neg(p)", "Abs 'p' stands where Neg is wanted"),
]  # fmt: skip


def place(body: str) -> tuple[ir.Node, Facts]:
    """The node that computes y of a graph of this body."""
    returned = "" if " w =" in f" {body}" else "w = Exp(z)"
    text = f"g (float[4] x, float[4] z) => (float[4] y, float[n] w) {{ {body} {returned} }}"
    model = ir.from_proto(support.model(text, **WEIGHTS, halves=np.array([4, 0]), four=np.array([4])))
    (node,) = [node for node in model.graph if node.outputs[0].name == "y"]
    return node, Facts(model)


@pytest.mark.parametrize(("pattern", "body", "bound"), FITS)
def test_what_a_pattern_binds(pattern: Op, body: str, bound: str) -> None:
    node, facts = place(body)
    assert may_match(pattern, node)
    binding = match(pattern, node, facts)
    values = " ".join(f"{name}={value.name}" for name, value in sorted(binding.values.items()))
    named = " ".join(f"{name}={found.outputs[0].name}" for name, found in binding.nodes.items())
    assert f"{values}; {named}; {' '.join(str(each.outputs[0].name) for each in binding.inner)}" == bound


@pytest.mark.parametrize(("pattern", "body", "reason"), MISSES)
def test_what_a_pattern_says_where_it_does_not_fit(pattern: Op, body: str, reason: str) -> None:
    node, facts = place(body)
    with pytest.raises(Miss) as miss:
        match(pattern, node, facts, explain=True)
    assert str(miss.value) == reason
    with pytest.raises(Miss) as silent:
        match(pattern, node, facts)
    assert str(silent.value) == "", "nobody asked, so nothing is written"


def test_an_operator_of_an_outer_graph_is_not_the_branchs_to_take() -> None:
    model = ir.from_proto(support.model(
        """g (float[4] x, bool c) => (float[4] y) { p = Abs(x) y = If(c) <
            then_branch = t () => (float[4] u) { u = Neg(p) }, else_branch = e () => (float[4] v) { v = Exp(x) }> }"""
    ))  # fmt: skip
    (branching,) = [node for node in model.graph if node.op_type == "If"]
    (inside,) = branching.attributes["then_branch"].as_graph()
    with pytest.raises(Miss, match="Abs 'p' belongs to an outer graph"):
        match(op("Neg", op("Abs", var("v"), shared=True)), inside, Facts(model), explain=True)
    assert match(op("Neg", var("v")), inside, Facts(model)).values["v"].name == "p"


def test_an_attribute_that_a_caller_gives_is_not_known() -> None:
    model = ir.from_proto(support.onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "mine" : 1]>
        g (float[4] x) => (float[4] y) { y = mine.half <a = 0.5> (x) }
        <domain: "mine", opset_import: ["" : 17]> half <a> (x) => (y) {
            p = LeakyRelu <alpha: float = @a> (x) y = Neg(p)
        }
        """
    ))  # fmt: skip
    (function,) = model.functions.values()
    facts = Facts(model)
    with pytest.raises(Miss, match="an attribute of LeakyRelu 'p' is given by the function's caller"):
        match(op("Neg", op("LeakyRelu", var("v"))), list(function)[-1], facts, explain=True)
    assert match(op("Neg", var("v")), list(function)[-1], facts).values["v"].name == "p"


def test_an_operator_of_another_domain_is_another_operator() -> None:
    node, facts = place("p = Abs(x) y = Neg(p)")
    producer = node.inputs[0]
    assert producer is not None and producer.producer() is not None
    pattern = op("Neg", op("Abs", var("v")))
    assert match(pattern, node, facts).values["v"].name == "x"
    abs_node = producer.producer()
    assert abs_node is not None
    abs_node.domain = "mine"
    with pytest.raises(Miss, match="Abs 'p' stands where Abs is wanted"):
        match(pattern, node, facts, explain=True)


# -- all ways to fit, by brute force ----------------------------------------------------------------------------------

KINDS = {"Add": 2, "Sub": 2, "Neg": 1}
NAMES = ("a", "b")


def patterns(depth: int) -> st.SearchStrategy[Pattern]:
    leaves: st.SearchStrategy[Pattern] = st.sampled_from(
        [*(Var(name) for name in NAMES), *(Const(name) for name in NAMES)]
    )
    if depth == 0:
        return leaves
    inner = st.one_of(leaves, patterns(depth - 1))
    return st.one_of(
        *(
            st.builds(lambda *parts, kind, shared: Op((kind,), parts, None, shared), *[inner] * count,
                      kind=st.just(kind), shared=st.booleans())
            for kind, count in KINDS.items()
        )
    )  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> str:
    """Three to six operators, each of what stands above; the last one is y."""
    names, lines = ["x", "z", "two", "three"], []
    count = draw(st.integers(3, 6))
    for number in range(count):
        kind = draw(st.sampled_from(sorted(KINDS)))
        read = [draw(st.sampled_from(names[-4:])) for _ in range(KINDS[kind])]
        name = "y" if number == count - 1 else f"v{number}"
        lines.append(f"{name} = {kind}({', '.join(read)})")
        names.append(name)
    return " ".join(lines)


def in_every_order(pattern: Pattern) -> Iterator[Pattern]:
    """The pattern with the operands of each Add this way round and that."""
    if not isinstance(pattern, Op):
        yield pattern
        return
    for parts in itertools.product(*(list(in_every_order(part)) for part in pattern.inputs)):
        yield replace(pattern, inputs=parts)
        if pattern.types == ("Add",):
            yield replace(pattern, inputs=parts[::-1])


def bound_as_drawn(pattern: Op, root: ir.Node) -> dict[str, str] | None:
    """What the pattern binds with the operands in the order in which it has them; None where it does not fit."""
    found: dict[str, str] = {}
    waiting: list[tuple[Pattern, ir.Value]] = [(pattern, root.outputs[0])]
    while waiting:
        part, value = waiting.pop()
        producer = value.producer()
        if isinstance(part, Op):
            readers = {id(node) for node, _ in value.uses()}
            alone = len(readers) == 1 and not value.is_graph_output()
            if producer is None or producer.op_type not in part.types or not (producer is root or part.shared or alone):
                return None
            waiting += [
                (each, read) for each, read in zip(part.inputs, producer.inputs, strict=True) if read is not None
            ]
        elif found.setdefault(part.name, str(value.name)) != value.name or (
            isinstance(part, Const) and value.name not in WEIGHTS
        ):
            return None
    return found


@settings(max_examples=400, deadline=None, derandomize=True)
@given(patterns(2).filter(lambda pattern: isinstance(pattern, Op)), bodies())
def test_a_pattern_fits_where_some_order_of_its_operands_does(pattern: Op, body: str) -> None:
    node, facts = place(body)
    ways = [bound for each in in_every_order(pattern) if (bound := bound_as_drawn(each, node)) is not None]
    try:
        binding = match(pattern, node, facts)
    except Miss:
        assert not ways
        return
    assert {name: value.name for name, value in binding.values.items()} in ways
    assert may_match(pattern, node), "the quick look never refuses what fits"


@pytest.mark.parametrize(
    ("pattern", "body"),
    [
        (op("Add", op("Abs", var("v")), const("c")), "y = Add(x, two)"),
        (op("Add", op("Abs", var("v")), const("c")), "p = Neg(x) y = Add(two, p)"),
        (op("Add", op("Abs", var("v")), const("c")), "p = Abs(x) y = Add(p, p)"),
        (op("Sub", op("Abs", var("v")), var("c")), "p = Abs(x) y = Sub(two, p)"),
        (op("Clip", var("x"), const("low"), const("high")), "y = Clip(x, two)"),
        (op("Clip", var("x"), const("low")), "y = Clip(x, , two)"),
    ],
)
def test_a_quick_look_saves_the_matching(pattern: Op, body: str) -> None:
    node, facts = place(body)
    assert not may_match(pattern, node)
    with pytest.raises(Miss):
        match(pattern, node, facts)


def test_a_node_that_makes_constants_may_be_one() -> None:
    pattern = op("Sub", var("v"), const("c"))
    assert may_match(pattern, place("p = ConstantOfShape(halves) y = Sub(x, p)")[0])
    assert may_match(pattern, place("p = Constant<value = float {1.0}>() y = Sub(x, p)")[0])
    assert may_match(pattern, place("y = Sub(x, z)")[0]), "an input of a function may be a constant"
