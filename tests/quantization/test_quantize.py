"""`graphopt.quantize`: what is chosen, reported, written and refused; latencies are counted, not measured."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.check.verification import Verification
from graphopt.errors import OptionError, VerificationError
from graphopt.flows import calibrating
from graphopt.flows import quantize as flow
from graphopt.flows.quantize import QuantizeResult, quantized_by
from graphopt.quantization.formats import FORMATS
from graphopt.quantization.latency import Engine, Latency
from tests import support
from tests.quantization import networks


def _quantized(model: Any, data: Any = None, latency: Latency = networks.by_bytes, **asked: Any) -> QuantizeResult:
    given = {"budget_error": 0.05, "formats": FORMATS, "minimize": "latency"} | asked
    return quantized_by(latency, model, data, **given)


def _rms(model: onnx.ModelProto, other: onnx.ModelProto, samples: np.ndarray) -> float:
    wanted = [support.session(model).run(None, {"x": one})[0] for one in samples]
    found = [support.session(other).run(None, {"x": one})[0] for one in samples]
    difference = np.asarray(wanted) - np.asarray(found)
    return float(np.sqrt(np.square(difference).mean() / np.square(wanted).mean()))


def test_all_of_a_network_is_static_where_the_budget_allows_it() -> None:
    result = _quantized(networks.convolutions(), networks.images(16), formats=("static",))
    record = result.record()
    assert [line.chosen.partition(" ")[0] for line in record.nodes] == ["static"] * 3
    assert record.calibration_feeds == 12 and record.error_feeds == 4
    assert 0 < record.error <= 0.05 and record.bytes < record.bytes_before / 2
    written = result.to_proto()
    onnx.checker.check_model(written, full_check=True)
    assert "Relu" not in support.op_types(written) and "QuantizeLinear" in support.op_types(written)
    samples = networks.normal(8, 1, 3, 8, 8, seed=5)
    assert _rms(networks.convolutions(), written, samples) <= 0.06  # other samples than those of the budget


def test_without_data_errors_are_measured_at_sizes_at_which_the_model_runs() -> None:
    """An image of one pixel is smaller than the windows."""
    w, v = (networks.normal(*dims, seed=3) / 8 for dims in ((32, 3, 7, 7), (32, 32)))
    model = support.model(
        """g (float[n,3,h,v] x) => (float[n,32] y) {
            a = Conv(x, w) b = GlobalAveragePool(a) c = Flatten(b) y = MatMul(c, v)
        }""",
        18, w=w, v=v,
    )  # fmt: skip
    record = _quantized(model, minimize="size", budget_error=0.2).record()
    assert record.error_feeds == 3 and record.bytes < record.bytes_before


def test_other_operators_compute_in_bytes_where_that_is_faster() -> None:
    def favouring(more: int) -> Latency:
        def latency(models: Any) -> list[list[float]]:
            counts = [support.op_types(one.proto).count("QuantizeLinear") for one in models]
            return [[1.0 - 0.1 * more * count if count else 1.0] for count in counts]

        return latency

    alike = {"formats": ("static",), "budget_error": 0.1}
    few = _quantized(networks.convolutions(), networks.images(8), latency=favouring(1), **alike)
    assert few.record().in_bytes == 3
    none = _quantized(networks.convolutions(), networks.images(8), latency=_fewest_after_one, **alike)
    assert none.record().in_bytes == 0


def _fewest_after_one(models: Any) -> list[list[float]]:
    """Any quantized model is faster, and one of fewer QuantizeLinear more so."""
    counts = [support.op_types(one.proto).count("QuantizeLinear") for one in models]
    return [[0.5 + 0.01 * count if count else 1.0] for count in counts]


def test_the_result_compiles_whole() -> None:
    result = _quantized(networks.convolutions(), networks.images(8))
    program = graphopt.compile(result.model, tune=0)
    assert program.fallback == ()
    feed = networks.images(1)
    (wanted,), (found,) = result.session().run(None, feed), program.run(None, feed)
    step = np.abs(wanted).max() / 50
    np.testing.assert_allclose(found, wanted, atol=step)  # rounding may be a step of a byte apart


def test_a_smaller_budget_leaves_the_nodes_that_are_furthest_off() -> None:
    wide = _quantized(networks.convolutions(), networks.images(8)).record()
    narrow = _quantized(networks.convolutions(), networks.images(8), budget_error=0.7 * wide.error).record()
    assert narrow.error <= 0.7 * wide.error < wide.error
    left = [line for line in narrow.nodes if line.chosen == "float32"]
    assert left and all(line.error == 0 and line.cost == line.cost_before for line in left)


def test_without_data_products_take_the_other_formats() -> None:
    result = _quantized(networks.products(), formats=("dynamic",))
    assert [line.chosen for line in result.record().nodes] == ["dynamic", "dynamic"]
    assert support.op_types(result.to_proto()).count("MatMulInteger") == 2
    assert result.record().calibration_feeds == 0
    onnx.checker.check_model(result.to_proto(), full_check=True)
    assert graphopt.compile(result.model, tune=0).fallback == ()


def test_least_bytes_take_blocks_of_four_bits_where_the_budget_is_wide() -> None:
    wide = _quantized(networks.products(), budget_error=0.5, minimize="size")
    assert [line.chosen for line in wide.record().nodes] == ["int4-weights"] * 2
    assert wide.record().bytes < wide.record().bytes_before / 5
    narrow = _quantized(networks.products(), budget_error=0.01, minimize="size")
    assert {line.chosen for line in narrow.record().nodes} <= {"dynamic", "int8-weights"}
    assert graphopt.compile(wide.model, tune=0).fallback == ()


def test_size_is_minimized_where_nothing_is_faster() -> None:
    result = _quantized(networks.products(), minimize="size", latency=networks.by_nodes)
    assert result.record().milliseconds > result.record().milliseconds_before


def test_an_old_opset_is_lifted() -> None:
    proto = support.model("g (float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }", 11, w=networks.normal(64, 64))
    result = _quantized(proto, {"x": networks.normal(4, 2, 64)}, formats=("static",))
    assert result.to_proto().opset_import[0].version >= 13


def test_dims_are_fixed_as_asked() -> None:
    proto = support.model("g (float[n,64] x) => (float[n,64] y) { y = MatMul(x, w) }", w=networks.normal(64, 64))
    result = _quantized(proto, {"x": networks.normal(6, 3, 64)}, dims={"n": 3})
    assert result.to_proto().graph.input[0].type.tensor_type.shape.dim[0].dim_value == 3
    free = _quantized(proto, [{"x": networks.normal(3, 64)}, {"x": networks.normal(5, 64)}])
    assert free.to_proto().graph.input[0].type.tensor_type.shape.dim[0].dim_param == "n"


def test_a_result_shows_itself(tmp_path: Path) -> None:
    networks_file = tmp_path / "net.onnx"
    networks_file.write_bytes(networks.products().SerializeToString())
    result = _quantized(networks_file, networks.rows(4), formats=("dynamic",))
    assert repr(result).startswith("<QuantizeResult 2 of 2 nodes, error ")
    assert "<td>2 of 2</td>" in result._repr_html_()
    record = json.loads(result.json())
    assert record["schema"] == "graphopt.quantize/1" and record["input"] == str(networks_file)
    assert record["optimized"]["status"] == "verified"
    result.write(tmp_path / "record.json")
    result.save(tmp_path / "out.onnx")
    assert graphopt.verify(result.model, tmp_path / "out.onnx").passed


WIDE_PRODUCT = "g (float[4,64] x) => (float[4,64] y) { y = Relu(x) }"
REFUSED: list[tuple[Any, Any, dict[str, Any], str]] = [
    ("convolutions", None, {"formats": ("static",)}, "without calibration data only products can be quantized"),
    ("relu", None, {}, "no product or convolution in float32 with constant weights can be static or dynamic or"),
    ("products", None, {"budget_error": 0.0}, "an error cannot stay within 0; a budget_error of 0.05 allows"),
    ("products", None, {"budget_error": float("nan")}, "an error cannot stay within nan"),
    ("products", None, {"formats": ()}, "formats are several of static, dynamic, int8-weights, int4-weights, not"),
    ("products", None, {"formats": "static"}, "formats are several of"),
    ("products", None, {"formats": ("int2",)}, "formats are several of"),
    ("products", None, {"minimize": "watts"}, "'watts' cannot be minimized; latency or size can."),
    ("products", None, {"engine": "other"}, "there is no engine 'other'; engines are onnxruntime and program."),
    ("products", None, {"threads": 0}, "latency cannot be measured on 0 threads; 1 is the least."),
    ("products", None, {"budget_error": 1e-9}, "no choice keeps the error within 1e-09: the node that is least off"),
    ("products", None, {"latency": lambda models: [[1.0]] * len(models)}, "no product or convolution is faster in dyn"),
    ("products", {"z": np.zeros(3)}, {}, "feed 0 has 'z', which is neither an input nor an output"),
    ("products", {"x": np.zeros((4, 64))}, {}, "feed 0: input 'x' takes float32"),
    ("products", [Path("absent.npz")], {}, "'absent.npz' cannot be read: there is no such file or folder."),
]


@pytest.mark.parametrize(("model", "data", "asked", "sentence"), REFUSED, ids=lambda one: str(one)[:30])
def test_refusals(model: str, data: Any, asked: dict[str, Any], sentence: str) -> None:
    made = {"convolutions": networks.convolutions, "products": networks.products}
    proto = made[model]() if model in made else support.model(WIDE_PRODUCT)
    if model == "convolutions":
        del proto.graph.node[5:]  # the product
        proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("p", 1, [1, 8, 1, 1]))
    with pytest.raises(OptionError) as refused:
        _quantized(proto, data, **asked)
    assert str(refused.value).startswith(sentence), str(refused.value)


def test_a_model_that_is_not_faster_as_a_whole_is_refused() -> None:
    """Nodes alone are faster, their model is not: quantizing and dequantizing count then."""

    def misled(models: Any) -> list[list[float]]:
        is_whole = len(models[0].proto.graph.node) == 3
        return [[1.0], *([2.0 if is_whole else 0.5] for _ in models[1:])]

    with pytest.raises(OptionError, match=r"the quantized model is not faster here: .* nothing was quantized\."):
        _quantized(networks.products(), networks.rows(4), latency=misled, formats=("dynamic",))


def test_a_model_of_more_than_a_file_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "SINGLE_FILE_LIMIT", 1000)
    with pytest.raises(OptionError, match=r"the weights take more than 1\.9 GB, which ONNX Runtime's quantizers"):
        _quantized(networks.products())


def test_inputs_that_no_value_suits_are_refused_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise ValueError("its inputs have 10 elements, and 9 are the most that is tried")

    monkeypatch.setattr(calibrating, "make_feed", none)
    with pytest.raises(OptionError, match=r"no feed can be drawn for this model: its inputs have 10 .*; give"):
        _quantized(networks.products())


def test_a_model_that_cannot_be_optimized_rightly_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    done = graphopt.optimize(networks.products())
    wrong = dataclasses.replace(done, verification=Verification("different", reason="off by 1"))
    monkeypatch.setattr(flow, "optimize", lambda *_, **__: wrong)
    with pytest.raises(VerificationError, match="no verified model could be made to begin with: off by 1"):
        _quantized(networks.products())


@pytest.mark.parametrize("engine", ["onnxruntime", "program"])
def test_latencies_are_measured_in_either_engine(engine: Engine) -> None:
    """What is chosen is chosen by bytes here, so that no clock decides."""
    result = graphopt.quantize(networks.products(), networks.rows(4), minimize="size", engine=engine, threads=1)
    assert result.record().engine == engine and result.record().milliseconds > 0
    assert all(line.chosen != "float32" for line in result.record().nodes)


def test_samples_have_to_be_as_many_for_each_input() -> None:
    proto = support.model("g (float[2,64] x, float[2,64] z) => (float[2,64] y) { h = MatMul(x, w) y = Mul(h, z) }",
                          w=networks.normal(64, 64))  # fmt: skip
    with pytest.raises(OptionError, match="data has 3 samples of 'z' and 4 of 'x'; give as many of each"):
        _quantized(proto, {"x": networks.normal(4, 2, 64), "z": networks.normal(3, 2, 64)})
    shared = _quantized(proto, {"x": networks.normal(4, 2, 64), "z": networks.normal(2, 64)})
    assert shared.record().calibration_feeds == 3  # one array serves all samples


def test_a_model_that_cannot_run_is_refused() -> None:
    proto = support.model("g (float[4,64] x) => (float[4,64] y) { h = MatMul(x, w) y = other.Op(h) }",
                          w=networks.normal(64, 64))  # fmt: skip
    proto.opset_import.append(onnx.helper.make_opsetid("other", 1))
    with pytest.raises(VerificationError, match=r"ONNX Runtime does not run the model, which is to be quantized: "):
        _quantized(proto, networks.rows(4))
