"""Constants of 16-bit floats stay short from the file to the kernels, and values that are read wide lie wide."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from graphopt.model.facts import Facts
from graphopt.model.short import WidenedTensor, stored_bytes
from graphopt.program.deploy.folding import fold_constants
from graphopt.program.regions.lower import lower
from graphopt.program.regions.region import Lowered
from graphopt.program.regions.wide import kept_wide
from graphopt.program.widening import widened
from kernels.dtype import DType
from kernels.target import host
from tests.program.regions.running import run_lowered

GENERATOR = np.random.default_rng(16)


def parsed(text: str, **weights: np.ndarray) -> ir.Model:
    """A model by its text, with weights as initializers."""
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    return ir.from_proto(proto)


def lowered(model: ir.Model) -> Lowered:
    """Its regions, widened and folded as a program is made."""
    work = widened(model)
    while (folded := fold_constants(work, whole=True)) is not work:
        work = folded
    return lower(work, host())


def stored(found: Lowered) -> list[tuple[str, DType]]:
    """The constants that kernels pack, with their types."""
    return [
        (operand.name, operand.dtype)
        for region in found.regions
        for operand in region.kernel.operands
        if operand.packing is not None
    ]


def drawn(*shape: int) -> np.ndarray:
    return (GENERATOR.standard_normal(shape) / np.sqrt(max(shape[-1], 1))).astype(np.float16)


def test_weights_of_products_convolutions_and_layers_stay_short() -> None:
    model = parsed(
        """g (float16[1,16,8,8] x) => (float16[64,1,24] y) {
            a = Conv<pads = [1, 1, 1, 1]>(x, w)
            b = Relu(a)
            c = Reshape(b, s)
            d = MatMul(c, m)
            y, h = GRU<hidden_size = 24>(d, g, r)
        }""",
        w=drawn(32, 16, 3, 3), s=np.array([64, 1, 32]), m=drawn(32, 40), g=drawn(1, 72, 40), r=drawn(1, 72, 24),
    )  # fmt: skip
    found = lowered(model)
    assert stored(found) == [("weights", DType.F16), ("b", DType.F16), ("b", DType.F16), ("r", DType.F16)]
    assert found.target.constants == sum(map(stored_bytes, model_tensors(model))), "short constants count as they lie"
    (got,) = run_lowered(found, {"x": np.ones((1, 16, 8, 8), np.float16)})
    assert got.dtype == np.float16 and np.isfinite(got).all() and got.any()


def model_tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    return [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]


def test_the_numbers_are_those_of_the_file() -> None:
    weights = drawn(300, 20)
    found = lowered(parsed("g (float16[3,300] x) => (float16[3,20] y) { y = MatMul(x, w) }", w=weights))
    x = GENERATOR.standard_normal((3, 300)).astype(np.float16)
    exact = x.astype(np.float64) @ weights.astype(np.float64)
    (got,) = run_lowered(found, {"x": x})
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2.0**-10, atol=1e-4)
    assert stored(found) == [("b", DType.F16)]


def test_depthwise_weights_are_few_and_wide() -> None:
    text = "g (float16[1,32,8,8] x) => (float16[1,32,6,6] y) { y = Conv<group = 32>(x, w) }"
    assert stored(lowered(parsed(text, w=drawn(32, 1, 3, 3)))) == [("weights", DType.F32)]


def test_a_folded_cast_remembers_what_it_widens() -> None:
    text = "g (float[2,300] x) => (float[2,9] y) { v = Cast<to = 1>(w)  y = MatMul(x, v) }"
    model = parsed(text, w=drawn(300, 9))
    folded = fold_constants(model, whole=True)
    (value,) = [one for name, one in folded.graph.initializers.items() if name == "v"]
    assert isinstance(value.const_value, WidenedTensor)
    np.testing.assert_array_equal(Facts(folded).array(value), model.graph.initializers["w"].const_value.numpy())
    assert stored_bytes(value.const_value) == 2 * 300 * 9
    assert ir.to_proto(folded).graph.initializer[-1].data_type == onnx.TensorProto.FLOAT, "files hold it wide"


def casts(model: ir.Model) -> list[str]:
    return [f"{node.inputs[0].name} -> {node.outputs[0].name}" for node in model.graph if node.op_type == "Cast"]


def test_a_value_that_is_read_both_ways_lies_wide() -> None:
    model = parsed("""g (float16[4] x, float16[4] b) => (float[4] y, float16[4] z) {
        a = Mul(x, x)  w = Cast<to = 1>(a)  y = Exp(w)  v = Cast<to = 1>(a)  u = Exp(v)  z0 = Add(a, b)
        z1 = Cast<to = 10>(u)  z = Add(z0, z1)
    }""")
    made = kept_wide(model)
    assert casts(made) == ["a -> w", "w -> a:short", "u -> z1"]
    assert next(node for node in made.graph if node.outputs[0].name == "z0").inputs[0].name == "a:short"


@pytest.mark.parametrize(
    "text",
    [
        "g (float16[4] x) => (float[4] y) { a = Mul(x, x)  w = Cast<to = 1>(a)  y = Exp(w) }",  # read wide alone
        "g (float16[4] x) => (float16[4] y) { a = Mul(x, x)  y = Add(a, x) }",  # read short alone
        "g (float16[4] x) => (float[4] y, float16[4] a) { a = Mul(x, x)  y = Cast<to = 1>(a) }",  # the caller's
        "g (float16[4] x) => (float[4] y, float16[4] z) { y = Cast<to = 1>(x)  z = Add(x, x) }",  # an input
        "g (double[4] x) => (float[4] y, double[4] z) { a = Mul(x, x)  y = Cast<to = 1>(a)  z = Add(a, x) }",  # long
    ],
)
def test_other_values_are_left_alone(text: str) -> None:
    model = parsed(text)
    before = casts(model)
    assert casts(kept_wide(model)) == before
