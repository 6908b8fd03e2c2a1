"""Sums drawn at random, of products with constants and of parts of them: what is read of one computes the same."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from graphopt.model.facts import Facts
from graphopt.passes.recurrent.affine import Affine, read
from tests import support

DRAW = np.random.default_rng(0)
# By their dims; small whole numbers, so that sums are exact in any order.
CONSTANTS = {
    name: DRAW.integers(-4, 5, shape).astype(np.float32)
    for name, shape in {
        "w3": (3, 6), "v3": (3, 6), "w4": (4, 6), "w7": (7, 6), "t3": (6, 3), "t4": (6, 4), "u3": (3, 3),
        "b": (6,), "row": (1, 6), "rows": (2, 6), "number": (), "one": (1,), "column": (2, 1), "c": (3,),
    }.items()
} | {"equal": np.full((2, 6), 3, np.float32), "split": np.array([2, 4]), "from1": np.array([1]), "to4": np.array([4]),
     "end": np.array([9]), "minus3": np.array([-3]), "axis1": np.array([1]), "axis0": np.array([0]),
     "step2": np.array([2])}  # fmt: skip
# What gives six columns: %x is one of three columns, %h of four, %w of six.
WIDE = (
    "MatMul(%x, w3)", "MatMul(%x, v3)", "MatMul(%h, w4)", "Gemm(%x, w3, b)", "Gemm<transB = 1>(%x, t3)",
    "Gemm<transB = 1>(%h, t4, row)", "Gemm<alpha = 2.0>(%x, w3)", "Gemm<beta = 2.0>(%h, w4, b)", "Gemm(%h, w4, %w)",
    "Gemm<transA = 1>(turned, w3)", "Add(%w, %w)", "Add(%w, %w)", "Add(%w, b)", "Add(row, %w)", "Add(%w, rows)",
    "Add(%w, number)", "Add(%w, one)", "Add(%w, equal)", "Add(%w, column)", "Identity(%w)", "MatMul(joined, w7)",
    "MatMul(piled, w3)", "Tanh(%w)", "Slice(%w, axis0, end, axis0)",
)  # fmt: skip
NARROW = (
    "Slice(%w, from1, to4, axis1)", "Slice(%w, minus3, end, axis1)", "Slice(%w, from1, end, axis1, step2)",
    "MatMul(%x, u3)", "Add(%x, %x)", "Add(%x, c)",
)  # fmt: skip


def drawn(seed: int) -> onnx.ModelProto:
    """A graph whose outputs are sums, each computed from those before it."""
    random = np.random.default_rng(seed)
    known = {"x": ["x"], "h": ["h"], "w": ["z"]}
    lines = ["joined = Concat<axis = 1>(x, h) piled = Concat<axis = 0>(top, low) turned = Transpose(x)"]
    for number in range(random.integers(3, 10)):
        kind = str(random.choice(["w", "w", "x", "parts"]))
        if kind == "parts":
            source = str(random.choice(known["w"]))
            axis = random.choice(["axis = 1", "axis = 1", "axis = -1"])
            if random.integers(2):
                lines.append(f"p{number}, q{number} = Split<{axis}>({source})")
                known["x"] += [f"p{number}", f"q{number}"]
            else:
                lines.append(f"p{number}, q{number} = Split<{axis}>({source}, split)")
                known["h"].append(f"q{number}")
            continue
        text = str(random.choice(WIDE if kind == "w" else NARROW))
        while "%" in text:
            place = text.index("%")
            text = text[:place] + str(random.choice(known[text[place + 1]])) + text[place + 2 :]
        known[kind].append(f"m{number}")
        lines.append(f"m{number} = {text}")
    proto = support.model(
        f"""g (float[2,3] x, float[2,4] h, float[2,6] z, float[1,3] top, float[1,3] low) => (float[2,3] y)
        {{ {' '.join(lines)} y = Neg(x) }}""",
        17, **CONSTANTS,
    )  # fmt: skip
    names = [name for names in known.values() for name in names if name not in "xhz"]
    proto.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return proto


def test_what_is_read_of_a_sum_computes_the_same() -> None:
    seen: Counter[str] = Counter()
    for seed in range(150):
        proto = drawn(seed)
        feed = {value.name: DRAW.integers(-4, 5, [dim.dim_value for dim in value.type.tensor_type.shape.dim])
                .astype(np.float32) for value in proto.graph.input}  # fmt: skip
        model = ir.from_proto(proto)
        facts = Facts(model)
        found = {value: read(facts, value) for value in model.graph.outputs[1:]}
        asked = {value for each in found.values() if each is not None for value in sources(each)} | found.keys()
        names = sorted(str(value.name) for value in asked)
        inner = onnx.ModelProto.FromString(proto.SerializeToString())
        del inner.graph.output[:]
        given = {name for name in names if name in feed}
        inner.graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in given
        )
        wanted = [name for name in names if name not in given]
        arrays = feed | dict(zip(wanted, support.session(inner).run(wanted, feed), strict=True))
        for value, each in found.items():
            if each is None or len(set(each.rest)) < len(each.rest):  # a part of what is none
                continue
            total = np.zeros_like(arrays[str(value.name)])
            for term in each.terms:
                total = total + arrays[str(term.source.name)] @ term.matrix.read(facts)
            for offset in each.offsets:
                total = total + offset.read(facts, total.shape[1])
            for one in each.rest:
                total = total + arrays[str(one.name)]
            text = f"{value.name} of {onnx.printer.to_text(proto)}"
            np.testing.assert_array_equal(total, arrays[str(value.name)], err_msg=text)
            seen.update({"terms": len(each.terms), "offsets": len(each.offsets), "rest": len(each.rest)})
            seen.update(node.op_type for node in each.nodes)
    assert {"MatMul", "Gemm", "Add", "Identity", "Split", "Slice", "Concat"} <= set(seen), seen
    assert min(seen.values()) > 5 and seen["terms"] > seen["rest"] / 3, seen


def sources(found: Affine) -> set[ir.Value]:
    """The values of a sum that are no constants."""
    return {term.source for term in found.terms} | set(found.rest)
