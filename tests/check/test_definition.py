"""What settles a comparison of a program where ONNX Runtime cannot run its model, or gives something else."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import graphopt
from graphopt.check.engine import Engine
from graphopt.check.tolerance import without_subnormals
from graphopt.errors import VerificationError
from tests import support


def engine(text: str, tmp_path: object, opset: int = 21) -> Engine:
    path = tmp_path / "model.onnx"  # type: ignore[operator]
    path.write_bytes(support.model(text, opset, ir_version=11).SerializeToString())
    return Engine(path, {})


def test_onnx_runtime_takes_and_gives_bfloat16_and_float8(tmp_path: object) -> None:
    text = "g (bfloat16[3] x) => (float8e5m2[3] y, float[3] z) { y = Cast<to = 19>(x) z = Cast<to = 1>(x) }"
    loaded = engine(text, tmp_path)
    assert loaded.name == "ONNX Runtime, optimizations off"
    x = np.array([1.5, -2, 1e6], ml_dtypes.bfloat16)
    y, z = loaded.run({"x": x})
    assert y.dtype == ml_dtypes.float8_e5m2 and y.astype("f4").tolist() == [1.5, -2, 57344]
    assert np.array_equal(z, x.astype(np.float32))


def test_elements_of_four_bits_are_for_the_reference_evaluator(tmp_path: object) -> None:
    loaded = engine("g (int4[3] x) => (float[3] y) { y = Cast<to = 1>(x) }", tmp_path)
    assert loaded.name == "the ONNX reference evaluator"
    (y,) = loaded.run({"x": np.array([-8, 0, 7], ml_dtypes.int4)})
    assert y.tolist() == [-8, 0, 7]


def test_where_onnx_runtime_differs_from_the_definition_the_definition_holds() -> None:
    """MeanVarianceNormalization of zeros is NaN in ONNX Runtime, and 0 by its body."""
    text = "g (float[1,2,2,2] x) => (float[1,2,2,2] y) { y = MeanVarianceNormalization(x) }"
    program = graphopt.compile(support.model(text, 13), feeds=[{"x": np.zeros((1, 2, 2, 2), np.float32)}])
    assert program.verification.passed
    assert program.verification.limited == (
        "ONNX Runtime, optimizations off gives 'y' otherwise than ONNX's own evaluator, whose results hold"
    )


def test_a_program_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from graphopt.program.deploy import runtime

    plain = runtime.Program.run
    monkeypatch.setattr(runtime.Program, "run", lambda *given: [one + 1 for one in plain(*given)])
    with pytest.raises(VerificationError, match="does not give what ONNX Runtime gives: output 'y'"):
        graphopt.compile(support.model("g (float[4] x) => (float[4] y) { y = Neg(x) }"), threads=1)


def test_subnormal_numbers_count_as_zeros() -> None:
    x = np.array([1e-40, -1e-40, 1.0, np.nan], np.float32)
    found = without_subnormals(x)
    assert np.array_equal(found, [0, -0.0, 1, np.nan], equal_nan=True) and np.signbit(found)[1]
    assert without_subnormals(np.arange(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("rows", "status"), [(8, "verified"), (20_000, "not run")])
def test_a_small_model_with_weights_is_held_to_the_definition(rows: int, status: str) -> None:
    """ONNX Runtime multiplies no bfloat16: the reference, which is slow, stands in where a run is short."""
    text = f"""g (float[{rows},64] x) => (float[{rows},64] y) {{
        h = MatMul(x, w) b = Cast<to = 16>(h) c = Mul(b, b) d = Mul(c, b) e = Identity(d) y = Cast<to = 1>(e) }}"""
    model = support.model(text, 18, w=np.linspace(-1, 1, 4096, dtype=np.float32).reshape(64, 64))
    assert graphopt.optimize(model).verification.status == status
