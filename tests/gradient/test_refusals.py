"""Forms without a rule of operators that have one: refused by a sentence with the operator and the cause."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import ModelError, OptionError
from graphopt.gradient.maker import GradientMaker
from graphopt.model.operators.gradients.terms import NoGradient

REGIONS = """
<ir_version: 8, opset_import: ["": 16]>
net (float[1, 2, H, 6] x, float[3, 4] rois, int64[3] images) => (float loss)
{
    y = RoiAlign <ATTRIBUTES> (x, rois, images)
    loss = ReduceSum <keepdims = 0> (y)
}
"""

# Of the result only the file says that it has two dims: one branch gives a vector.
BRANCHES = """
<ir_version: 8, opset_import: ["": 17]>
net (bool which, float[2, 3] x) => (float[A, B] y)
<float[2, 3] w = {1, 2, 3, 4, 5, 6}>
{
    scaled = Mul(x, w)
    y = If (which) <
        then_branch = straight () => (float[2, 3] a) { a = Identity(scaled) },
        else_branch = flat () => (float[6] b) {
            sizes = Constant <value_ints = [6]> ()
            b = Reshape(scaled, sizes)
        }
    >
}
"""


@pytest.mark.parametrize(
    ("attributes", "side", "wanted", "said"),
    [
        ('mode = "max"', "5", "x", "RoiAlign 'y' has no gradient: there is no rule for its mode max"),
        ("output_height = 2", "5", "x", "its sampling_ratio is 0, so that how many samples a region has depends on"),
        ("sampling_ratio = 2", "5", "rois", "there is no rule for its operand 1"),
        ("sampling_ratio = 2", "H", "x", "the sides of 'x' are not known; fix them with --dim or --shape"),
    ],
)  # fmt: skip
def test_regions_that_have_no_rule(attributes: str, side: str, wanted: str, said: str) -> None:
    text = REGIONS.replace("ATTRIBUTES", attributes).replace("H,", f"{side},")
    with pytest.raises(ModelError, match=said):
        graphopt.gradient(onnx.parser.parse_model(text), loss="loss", with_respect_to=[wanted])


def test_a_deformed_convolution_over_a_line_has_no_rule() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 19]>
    net (float[1, 2, 9] x, float[3, 2, 3] w, float[1, 3, 7] moved) => (float[1, 3, 7] y, float loss)
    {
        y = DeformConv(x, w, moved)
        loss = ReduceSum <keepdims = 0> (y)
    }
    """)
    with pytest.raises(ModelError, match="there is a rule for images of two sides and known channels alone"):
        graphopt.gradient(model, loss="loss", with_respect_to=["x"])


def test_states_that_are_no_tensors_have_no_rule() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 17]>
    net (float[3] x) => (float loss)
    <int64 trips = {2}>
    {
        none = SequenceEmpty()
        all, last = Loop (trips, , none, x) <body = step (int64 i, bool going, seq(float[3]) held, float[3] state)
            => (bool go, seq(float[3]) more, float[3] next) {
            go = Identity(going)
            next = Sin(state)
            more = SequenceInsert(held, state)
        }>
        loss = ReduceSum <keepdims = 0> (last)
    }
    """)
    with pytest.raises(ModelError, match="Loop 'all' has no gradient: its state 'none' is no tensor"):
        graphopt.gradient(model, loss="loss", with_respect_to=["x"])


@pytest.mark.parametrize(
    ("attributes", "length", "said"),
    [
        ("axis = 1", "L", "DFT 'y' has no gradient: its length is not known; fix it with --dim"),
        ("inverse = 1, onesided = 1", "4", "it is an inverse transform of one-sided frequencies"),
    ],
)
def test_fourier_transforms_that_have_no_rule(attributes: str, length: str, said: str) -> None:
    model = onnx.parser.parse_model(f"""
    <ir_version: 8, opset_import: ["": 17]>
    net (float[2, {length}, 2] x) => (float loss)
    {{
        y = DFT <{attributes}> (x)
        loss = ReduceSum <keepdims = 0> (y)
    }}
    """)
    with pytest.raises(ModelError, match=said):
        graphopt.gradient(model, loss="loss", with_respect_to=["x"])


def test_an_operator_that_the_opset_lacks_is_named_with_the_opset_that_has_it() -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 8, opset_import: ["": 9]>
    net (float[2, 3] x, int64[2] order) => (float loss)
    <float[2, 3] w = {1, 2, 3, 4, 5, 6}>
    {
        y = Mul(x, w)
        loss = ReduceSum <keepdims = 0> (y)
    }
    """)
    maker = GradientMaker(ir.from_proto(model))
    maker.serve(next(iter(maker.graph)))
    with pytest.raises(NoGradient, match="its rule takes GatherND, which is there from opset 11 on; lift the model"):
        maker.op("GatherND", maker.term(maker.graph.inputs[0]), maker.ints(0))


def test_an_output_of_no_known_rank_has_no_loss() -> None:
    model = onnx.parser.parse_model(BRANCHES)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="no loss can be made of output 'y': the rank of 'y' is not known"):
        graphopt.gradient(model, loss="mse")


def test_weights_in_branches_are_said_to_need_the_branch() -> None:
    text = """
    <ir_version: 8, opset_import: ["": 17]>
    net (bool which, float[2] x) => (float[2] y)
    {
        y = If (which) <
            then_branch = plain () => (float[2] a) <float[2] w = {1, 2}> { a = Mul(x, w) },
            else_branch = other () => (float[2] b) <float[2] v = {3, 4}> { b = Mul(x, v) }
        >
    }
    """
    model = onnx.parser.parse_model(text)
    said = "depends on; weights in the branches of If 'y' do not train: where an input decides, fix it with 'graphopt"
    with pytest.raises(OptionError, match=said):
        graphopt.gradient(model, loss="mse")
    chosen = graphopt.optimize(model, values={"which": True}, level=0)
    assert len(graphopt.gradient(chosen.to_proto(), loss="mse").gradients) == 1
