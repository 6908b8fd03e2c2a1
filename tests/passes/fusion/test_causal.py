"""Masks drawn at random: what is said of one holds for each of its elements, and something is said of many."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from graphopt.model.facts import Facts
from graphopt.passes.fusion.causal import levels
from tests import support

SIZE = 5
CONSTANTS = {
    "zero": np.array(0), "one": np.array(1), "two": np.array(2), "first": np.array([0]), "second": np.array([1]),
    "origin": np.array([0, 0]), "beside": np.array([0, 1]), "ones": np.array([1, 1]), "twos": np.array([2, 2]),
    "corner": np.array([3, 3]), "wide": np.array([3, 4]), "square": np.array([SIZE, SIZE]),
    "above": np.array([1, 1, SIZE, SIZE]), "nothing": np.float32(0), "yes": np.float32(1), "some": np.float32(-3),
    "tri": np.tri(SIZE, dtype=np.float32), "later": np.triu(np.full((SIZE, SIZE), 7, np.float32), 1),
    "shifted": np.tri(SIZE, k=-1, dtype=np.float32), "noise": np.eye(SIZE, dtype=np.float32),
}  # fmt: skip
PLACES = """l = Shape(x) ll = Concat<axis = 0>(l, l) n = Squeeze(l) more = Add(n, one) i = Range(zero, n, one)
    j = Range(zero, n, one) from_one = Range(one, more, one)"""
# How a mask is computed. %f: one of floats; %b: of bools; %n: a number; %s: what repeats one, or nearly; %r: a range
# that lies along rows or columns.
FLOATS = (
    "Trilu<upper = 0>(%s)", "Trilu<upper = 0>(%s, zero)", "Trilu<upper = 1>(%s, one)", "Trilu<upper = 1>(%s)",
    "Trilu<upper = 0>(%s, two)", "Where(%b, %n, %n)", "Where(%b, %n, %n)", "Where(%b, %n, %f)", "Cast<to = 1>(%b)",
    "Identity(%f)", "Reshape(%f, above)", "Expand(%f, ll)",
)  # fmt: skip
BOOLS = (
    "LessOrEqual(%r, %r)", "GreaterOrEqual(%r, %r)", "Less(%r, %r)", "Greater(%r, %r)", "Not(%b)", "Cast<to = 9>(%f)",
    "Equal(%f, %n)", "Equal(%n, %f)", "Equal(%f, %f)",
)  # fmt: skip
CORNERS = (
    "Slice(%f, origin, corner, beside, ones)", "Slice(%f, origin, corner, beside)", "Slice(%f, ones, square, beside)",
    "Slice(%f, origin, wide, beside)", "Slice(%f, origin, square, beside, twos)",
)  # fmt: skip
PARTS = {
    "n": ("nothing", "yes", "some"),
    "s": ("Expand(yes, ll)", "Expand(some, ll)", "ConstantOfShape(ll)", "Identity(noise)"),
    "r": ("Unsqueeze(i, first)", "Unsqueeze(i, second)", "Unsqueeze(i, first)", "Unsqueeze(i, second)",
          "Unsqueeze(j, second)", "Unsqueeze(from_one, first)"),
}  # fmt: skip


def drawn(seed: int) -> onnx.ModelProto:
    """A graph whose outputs are masks, each computed from those before it; with every second seed dims are open."""
    random = np.random.default_rng(seed)
    known = {"f": ["tri", "later", "shifted", "noise"], "b": ["given"]}
    lines = [PLACES]

    def part(found: re.Match[str]) -> str:
        kind = found[1]
        if kind in known:
            return str(random.choice(known[kind]))
        text = str(random.choice(PARTS[kind]))
        if kind == "n":
            return text
        lines.append(f"p{len(lines)} = {text}")
        return f"p{len(lines) - 1}"

    def add(kind: str, forms: Sequence[str]) -> None:
        operator = re.sub("%(.)", part, str(random.choice(forms)))
        known[kind].append(f"m{len(lines)}")
        lines.append(f"m{len(lines)} = {operator}")

    add("b", BOOLS[:4])
    for _ in range(random.integers(1, 6)):
        add(*(("f", FLOATS) if random.integers(2) else ("b", BOOLS)))
    add("f", CORNERS)
    size = "n" if seed % 2 else SIZE
    proto = support.model(
        f"g (float[{size}] x, bool[{SIZE},{SIZE}] given) => (float[{size}] y) {{ {' '.join(lines)} y = Neg(x) }}",
        17, **CONSTANTS,
    )  # fmt: skip
    for kind, number in (("f", TensorProto.FLOAT), ("b", TensorProto.BOOL)):
        for name in known[kind]:
            if name.startswith("m"):
                proto.graph.output.append(helper.make_tensor_value_info(name, number, None))
    return proto


def test_what_is_said_of_a_mask_holds_for_each_of_its_elements() -> None:
    given = np.array(np.random.default_rng(0).integers(0, 2, (SIZE, SIZE)), bool)
    feed = {"x": np.zeros(SIZE, np.float32), "given": given}
    below = np.tri(SIZE, dtype=bool)
    said: Counter[str] = Counter()
    for seed in range(200):
        proto = drawn(seed)
        model = ir.from_proto(proto)
        facts = Facts(model)
        found = {output.name: levels(facts, output) for output in model.graph.outputs[1:]}
        if not any(found.values()):
            continue
        names = [name for name, told in found.items() if told is not None]
        for name, array in zip(names, support.session(proto).run(names, feed), strict=True):
            inside, above = found[name]
            size = array.shape[-1]
            expected = np.where(below[:size, :size], inside, above).astype(array.dtype)
            np.testing.assert_array_equal(array.reshape(size, size), expected, err_msg=onnx.printer.to_text(proto))
            said[str(next(node.op_type for node in proto.graph.node if name in node.output))] += 1
    kinds = {"Trilu", "Where", "Cast", "Not", "Equal", "Slice", "Reshape", "Expand", "LessOrEqual", "Greater"}
    assert kinds <= set(said) and min(said.values()) > 1, said
