"""Inputs that become constants: values by type and dims, defaults, and what is refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.model.fixing import fix_inputs
from tests import support

RATES = """g (float[1,n] x, int64 sr) => (float[1,n] y) {
    wanted = Constant<value_int=16000>()
    fast = Equal(sr, wanted)
    y = If(fast) <
        then_branch = a () => (float[1,n] t) { t = Relu(x) },
        else_branch = b () => (float[1,n] e) { e = Neg(x) }>
}"""


def _fixed(proto: onnx.ModelProto, values: dict[str, object], *, defaults: bool = False) -> tuple[ir.Model, list[str]]:
    model = ir.from_proto(proto)
    return model, list(fix_inputs(model, values, defaults=defaults))


def _refusal(proto: onnx.ModelProto, values: dict[str, object]) -> str:
    with pytest.raises(OptionError) as caught:
        _fixed(proto, values)
    return str(caught.value)


def test_a_branch_that_an_input_selects_is_all_that_is_left() -> None:
    for rate, operator in ((16000, "Relu"), (8000, "Neg")):
        result = graphopt.optimize(support.model(RATES), values={"sr": rate})
        assert support.op_types(result.to_proto()) == [operator]
        assert [value.name for value in result.model.graph.inputs] == ["x"]
        assert result.signature_changes == (f"input 'sr' is fixed at {rate}",)
        assert result.verification.passed and result.verification.feeds > 0


def test_without_a_value_both_branches_stay() -> None:
    result = graphopt.optimize(support.model(RATES))
    assert "If" in support.op_types(result.to_proto())
    assert result.signature_changes == ()


def test_the_model_says_of_which_type_a_value_is() -> None:
    proto = support.model("g (float[3] x, int64[3] k, bool b) => (float[3] y) { c = Cast<to=1>(k) y = Where(b, x, c) }")
    model, said = _fixed(proto, {"x": ["1", "2.5", "3"], "k": [1, 2, 3], "b": "true"})
    held = {name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value}
    assert held["x"].dtype == np.float32 and held["x"].tolist() == [1.0, 2.5, 3.0]
    assert held["k"].dtype == np.int64 and held["k"].tolist() == [1, 2, 3]
    assert held["b"].shape == () and held["b"].item() is True
    assert said[1] == "input 'k' is fixed at [1, 2, 3]"
    assert not model.graph.inputs


def test_a_list_takes_the_dims_that_are_declared_and_gives_a_number_to_a_free_one() -> None:
    proto = support.model("g (float[2,n] x, float[n] z) => (float[2,n] y) { y = Add(x, z) }")
    model, _ = _fixed(proto, {"x": [1, 2, 3, 4, 5, 6]})
    assert model.graph.initializers["x"].const_value.shape == [2, 3]  # type: ignore[union-attr]
    assert model.graph.inputs[0].shape == [3]


def test_a_name_that_is_no_input_is_answered_with_the_nearest() -> None:
    assert _refusal(support.model(RATES), {"src": 1}) == "there is no input 'src' to fix; the nearest name is 'sr'."


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.5, "input 'sr' takes numbers of type INT64, and 1.5 is not such."),
        ("fast", "input 'sr' takes numbers of type INT64, and fast is not such."),
        (2**70, f"input 'sr' takes numbers of type INT64, and {2**70} is not such."),
        ([1, 2], "input 'sr' has the dims [], and a value of 2 elements was given for it."),
        ([[1], [2, 3]], "the lists given for input 'sr' are of different lengths."),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: object, words: str) -> None:
    assert _refusal(support.model(RATES), {"sr": value}) == words


def test_a_value_of_other_dims_than_declared_is_refused() -> None:
    proto = support.model("g (float[2,2] x) => (float[2,2] y) { y = Relu(x) }")
    assert "fixed at 2 in the model" in _refusal(proto, {"x": [[1.0, 2.0, 3.0]]})


def test_texts_belong_to_inputs_of_texts_and_no_others() -> None:
    proto = support.model("g (string[1] s) => (string[1] t) { t = Identity(s) }")
    model, _ = _fixed(proto, {"s": "16"})
    assert model.graph.initializers["s"].const_value.string_data() == [b"16"]  # type: ignore[union-attr]
    assert _refusal(proto, {"s": 16}) == "input 's' takes texts, and 16 was given."


def test_an_input_that_is_no_tensor_is_refused() -> None:
    proto = support.model("g (seq(float[2]) s) => (int64 n) { n = SequenceLength(s) }")
    assert "is not a tensor" in _refusal(proto, {"s": 1.0})


WITH_DEFAULT = "g (float[2] x, float[2] w) => (float[2] y) { a = Sqrt(w) y = Add(x, a) }"


def test_a_default_folds_when_it_is_fixed_and_only_then() -> None:
    proto = support.model(WITH_DEFAULT, w=np.array([4, 9], np.float32))
    open_ = graphopt.optimize(proto)
    assert support.op_types(open_.to_proto()) == ["Sqrt", "Add"]
    closed = graphopt.optimize(proto, fix_defaults=True)
    assert support.op_types(closed.to_proto()) == ["Add"]
    assert closed.signature_changes == ("input 'w' is fixed at its default",)
    assert closed.verification.passed


def test_a_value_stands_above_a_default() -> None:
    proto = support.model(WITH_DEFAULT, w=np.array([4, 9], np.float32))
    fixed = graphopt.optimize(proto, values={"w": [1, 16]}, fix_defaults=True).to_proto()
    (found,) = support.session(fixed).run(None, {"x": np.zeros(2, np.float32)})
    assert found.tolist() == [1.0, 4.0]


def test_constants_of_an_old_version_stay_constants_when_another_input_is_fixed() -> None:
    proto = support.model(
        "g (float[2] x, float[2] w, float[2] v) => (float[2] y) { a = Sqrt(w) b = Add(a, v) y = Add(x, b) }",
        ir_version=3, opset=8, w=np.array([4, 9], np.float32),
    )  # fmt: skip
    result = graphopt.optimize(proto, values={"v": [1, 1]})
    assert support.op_types(result.to_proto()) == ["Add"]
    assert [value.name for value in result.model.graph.inputs] == ["x", "w"]
    assert result.verification.passed


def test_a_program_takes_defaults_for_constants() -> None:
    proto = support.model(WITH_DEFAULT, w=np.array([4, 9], np.float32))
    program = graphopt.compile(proto)
    (found,) = program.run(None, {"x": np.array([1, 2], np.float32)})
    assert found.tolist() == [3.0, 5.0]


def test_a_program_of_a_fixed_rate_has_no_branches() -> None:
    program = graphopt.compile(support.model(RATES), values={"sr": 8000}, dims={"n": 3})
    assert program.fallback == ()
    (found,) = program.run(None, {"x": np.array([[1, -2, 3]], np.float32)})
    assert found.tolist() == [[-1.0, 2.0, -3.0]]


def test_memory_and_schedule_see_the_fixed_model() -> None:
    proto = support.model(RATES)
    planned = graphopt.memory(proto, values={"sr": 16000}, dims={"n": 8})
    assert [value.name for value in planned.model.graph.inputs] == ["x"]
    regions = graphopt.schedule(proto, device="cpu:2", values={"sr": 16000}, dims={"n": 8}).record.regions
    assert regions == 1
