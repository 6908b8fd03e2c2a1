"""What an operator answers where it cannot work in another form: each refusal by a question that gets it alone."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.model.facts import Facts
from graphopt.passes.layout.channels import Turner
from graphopt.passes.layout.flip import Flat, Label, Question
from graphopt.passes.layout.table import standard
from graphopt.rewrite.editor import Editor
from graphopt.rewrite.rule import Refused
from tests import support

LAST, THREE, TWO = (0, 2, 3, 1), (0, 2, 1), (1, 0)
COLUMNS = Flat((2, 3), (1, 0))
CONSTANTS = {"one": np.array([1]), "w": np.ones((6, 2), np.float32), "m": np.ones((3, 4), np.float32)}


def question(text: str, label: Label, opset: int, *, back: bool) -> tuple[Question, ir.Model]:
    """About the node that gives y, of which x (or y itself) has another form."""
    model = ir.from_proto(support.model(f"g (float[2,3,4] x, float[6,6] f, int64[r] to) => (float[2] y) {{ {text} }}",
                                        opset, **CONSTANTS))  # fmt: skip
    node = next(node for node in model.graph if any(output.name == "y" for output in node.outputs))
    return Question(Facts(model), node, label, back), model


REFUSED: list[tuple[str, str, Label, int, bool]] = [
    ("the rank of its operand is another one", "y = ReduceMax<axes = [1], keepdims = 0>(x)", LAST, 17, False),
    ("its operands are of different rank", "y = Softmax(x)", LAST, 17, False),
    ("its operands are of different rank", "y = Relu(x)", LAST, 17, False),
    ("the rank of its result is another one", "y = ReduceMax<axes = [1], keepdims = 0>(x)", LAST, 17, True),
    ("the rank of its result is another one", "y = Unsqueeze(x, one)", TWO, 17, True),
    ("the ranks differ", "y = Concat<axis = 1>(x, m)", THREE, 17, False),
    ("it tiles one axis", "y = Tile(x, one, one)", THREE, 5, False),
    ("its permutation is not known", "u = Reshape(x, to) y = Transpose(u)", THREE, 17, False),
    ("an operand is absent", "y = Max(x, , m)", THREE, 17, False),
    ("an operand is absent", "y = Relu()", THREE, 17, False),
    ("its target is an attribute", "y = Reshape<shape = [6, 4]>(x)", THREE, 4, False),
    ("the ranks differ", "y = Reshape(x, one)", LAST, 17, False),
    ("it joins the first axes", "y = Flatten<axis = 2>(x)", THREE, 17, False),
    ("it cuts its operand anew", "y = Flatten(x)", THREE, 17, True),
    ("it cuts its operand anew", "y = Flatten(x)", LAST, 17, False),
    ("it multiplies a tensor with itself", "y = Gemm(f, f)", COLUMNS, 17, False),
    ("its first operand is transposed", "y = Gemm<transA = 1>(f, w)", COLUMNS, 17, False),
    ("it pairs rows with columns", "y = Gemm(f, w)", TWO, 17, False),
    ("it reads the columns of a flattened tensor in their order", "y = Softmax(f)", COLUMNS, 17, False),
    ("it lacks its scales", "y = Upsample<height_scale = 2.0, width_scale = 2.0>(x)", THREE, 7, False),
]


@pytest.mark.parametrize(("reason", "text", "label", "opset", "back"), REFUSED)
def test_each_operator_says_why_not(reason: str, text: str, label: Label, opset: int, back: bool) -> None:
    asked, _ = question(text, label, opset, back=back)
    with pytest.raises(Refused) as refused:
        standard(asked)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("its images differ in rank", "y = GlobalMaxPool(f)"),
        ("its images differ in rank", "y = DeformConv(x, m, f)"),
        ("it has several results", "y, i = MaxPool<kernel_shape = [2]>(x) z = Neg(i)"),
        ("it is not a function of its operands",
         "y, a, b = BatchNormalization<training_mode = 1>(x, one, one, one, one)"),
    ],
)  # fmt: skip
def test_an_operator_that_is_no_function_of_images_says_why_not(reason: str, text: str) -> None:
    asked, model = question(text, THREE, 19, back=False)
    with pytest.raises(Refused) as refused:
        Turner(Editor(model)).answer(asked)
    assert str(refused.value) == reason
