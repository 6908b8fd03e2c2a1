"""Programs in bf16: what is rounded, how the tolerance decides, what is refused, and what a system may deny."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import graphopt
from graphopt.cli import app
from graphopt.errors import OptionError
from graphopt.flows.rounded import _chosen
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle
from graphopt.program.make import Form
from graphopt.program.regions import rounding
from graphopt.program.regions.region import Lowered
from graphopt.program.regions.rounding import RoundedRegion, rounded_regions
from kernels.dtype import DType
from kernels.emit.processor import UNITS
from kernels.target import host
from kernels.templates.dots.image import DOT_CONVOLUTION
from kernels.templates.dots.product import DOT_PRODUCT
from kernels.templates.dots.product_choice import are_faster
from kernels.templates.recurrent.problem import Recurrent
from kernels.units.write import has_unit
from tests import support
from tests.kernels.units.test_units import has_units

DENIED = """
import ctypes, sys
from graphopt.program.deploy.runtime import load
libc = ctypes.CDLL(None, use_errno=True)
room = ctypes.create_string_buffer(8192)  # too small for a signal's frame with tiles in it
class Stack(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
assert libc.sigaltstack(ctypes.byref(Stack(ctypes.addressof(room), 0, 8192)), None) == 0
try:
    load(sys.argv[1])
except Exception as error:
    print(error)
"""


has_pairs = pytest.mark.skipif(
    has_unit("bf16", host()) or not are_faster(host()), reason="the processor has no faster dot products, or has units"
)


def layers() -> onnx.ModelProto:
    """Two products and two convolutions that are worth a matrix unit, the first after a copy in blocks of channels."""
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((256, 512)).astype(np.float32) / 16,
        "v": generator.standard_normal((512, 64)).astype(np.float32) / 16,
        "k": generator.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24,
        "d": generator.standard_normal((64, 64, 1, 1)).astype(np.float32) / 8,
        "c": np.array([1, 64, 8, 8], np.int64),
    }  # fmt: skip
    return support.model(
        """g (float[64,256] x) => (float[64,64] y, float[1,64,8,8] z) {
            p = MatMul(x, w) q = Relu(p) y = MatMul(q, v) r = Reshape(y, c)
            s = Conv<pads = [1, 1, 1, 1]>(r, k) z = Conv(s, d)
        }""",
        **weights,
    )


def any_rows() -> onnx.ModelProto:
    """Two products of any number of rows, and two convolutions of as many images."""
    generator = np.random.default_rng(0)
    return support.model(
        """g (float[rows,256] x, float[rows,64,9,8] i) => (float[rows,64] y, float[rows,48,9,8] z) {
            p = MatMul(x, w) q = Relu(p) y = MatMul(q, v) s = Conv<pads = [1, 1, 1, 1]>(i, e) z = Conv(s, k)
        }""",
        e=generator.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24,
        w=generator.standard_normal((256, 512)).astype(np.float32) / 16,
        v=generator.standard_normal((512, 64)).astype(np.float32) / 16,
        k=generator.standard_normal((48, 64, 1, 1)).astype(np.float32) / 8,
    )


@has_units
def test_products_and_convolutions_are_rounded_within_the_tolerance() -> None:
    proto = layers()
    program = graphopt.compile(proto, precision="bf16")
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    for expected, found in zip(support.session(proto).run(None, {"x": x}), program.run(None, {"x": x}), strict=True):
        distance = np.abs(found - expected).max() / np.abs(expected).max()
        assert 1e-4 < distance < 1e-2  # numbers of eight bits
    assert program.rounding is not None and program.rounding.rounded == 4 and program.rounding.wide == 0
    assert set(program.rounding.errors) == {"y", "z"} and max(program.rounding.errors.values()) < 1e-2
    assert program.max_abs > 0 and program.verification.tolerance["float32"] == 1e-2


@has_units
def test_a_tolerance_that_only_float32_keeps_gives_float32() -> None:
    program = graphopt.compile(layers(), precision="bf16", tolerance=1e-6)
    assert program.rounding is None and program.max_rel < 1e-5
    assert not rounded_regions(program.lowered)


@has_units
def test_regions_stay_in_float32_as_the_tolerance_wants_it() -> None:
    whole = graphopt.compile(layers(), precision="bf16")
    assert whole.rounding is not None
    least = max(whole.rounding.errors.values())
    program = graphopt.compile(layers(), precision="bf16", tolerance=0.9 * least)
    assert program.rounding is not None and program.rounding.wide > 0 < program.rounding.rounded
    assert max(program.rounding.errors.values()) <= 0.9 * least


@has_pairs
def test_products_and_convolutions_are_rounded_where_there_are_dot_products_alone() -> None:
    proto = layers()
    program = graphopt.compile(proto, precision="bf16")
    assert program.rounding is not None and program.rounding.rounded >= 3 and program.rounding.wide == 0
    kinds = [template for template, _ in program.lowered.problems.values()]
    assert kinds.count(DOT_PRODUCT) == 2 and DOT_CONVOLUTION in kinds
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    found = program.run(None, {"x": x})
    for wanted, one in zip(support.session(proto).run(None, {"x": x}), found, strict=True):
        assert 1e-4 < np.abs(one - wanted).max() / np.abs(wanted).max() < 1e-2  # numbers of eight bits
    for threads in (1, 2):
        again = graphopt.compile(proto, precision="bf16", threads=threads).run(None, {"x": x})
        assert all(np.array_equal(one, other) for one, other in zip(again, found, strict=True))


def _any_feed(rows: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(rows)
    shapes = {"x": (rows, 256), "i": (rows, 64, 9, 8)}
    return {name: generator.standard_normal(dims).astype(np.float32) for name, dims in shapes.items()}


@has_pairs
@pytest.mark.parametrize("form", ["bundle", "onnxruntime"])
def test_what_is_rounded_is_rounded_at_all_sizes(form: Form) -> None:
    proto = any_rows()
    program = graphopt.compile(proto, precision="bf16", dims={"rows": (1, 12)}, form=form)
    assert program.rounding is not None and program.rounding.rounded >= 3 and program.rounding.wide == 0
    assert set(program.rounding.errors) == {"y", "z"} and max(program.rounding.errors.values()) < 1e-2
    assert {"rows": 1} in program.verification.sizes and {"rows": 12} in program.verification.sizes
    for rows in (1, 2, 7, 12):
        feed = _any_feed(rows)
        for wanted, found in zip(support.session(proto).run(None, feed), program.run(None, feed), strict=True):
            assert 1e-4 < np.abs(found - wanted).max() / np.abs(wanted).max() < 1e-2  # numbers of eight bits


@has_pairs
def test_the_command_says_what_is_rounded_and_what_is_allowed(tmp_path: Path) -> None:
    model, bundle = tmp_path / "rows.onnx", tmp_path / "rows"
    onnx.save(any_rows(), model)
    words = ["compile", str(model), str(bundle), "--precision", "bf16", "--dim", "rows=1..6", "--tune", "0"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "products and convolutions; off, in shares of the largest element: 'y' by" in result.stdout
    assert "allowed: 1e-02 of an output's largest element" in result.stdout
    strict = CliRunner().invoke(app, [*words, "--tolerance", "1e-7"])
    assert strict.exit_code == 0, strict.output
    said = "float32: whatever is rounded, an output is off by more than 1e-07 of its largest element"
    assert said in " ".join(strict.stdout.split())
    made = Bundle(bundle, threads=1)
    assert all(one.shape[0] == 5 for one in made.run(None, _any_feed(5)))


@has_pairs
def test_regions_of_a_range_stay_in_float32_as_the_tolerance_wants_it() -> None:
    """Each product alone makes the error of its output."""
    generator = np.random.default_rng(0)
    proto = support.model(
        """g (float[rows,256] x) => (float[rows,64] y, float[rows,64] z) { y = MatMul(x, v) n = MatMul(x, w)
            z = Mul(n, hundred) }""",
        v=generator.standard_normal((256, 64)).astype(np.float32) / 16,
        w=generator.integers(-8, 9, (256, 64)).astype(np.float32),
        hundred=np.float32(100),
    )
    whole = graphopt.compile(proto, precision="bf16", dims={"rows": (1, 9)})
    assert whole.rounding is not None and whole.rounding.rounded == 2
    tolerance = sum(whole.rounding.errors.values()) / 2
    assert min(whole.rounding.errors.values()) < tolerance < max(whole.rounding.errors.values())
    program = graphopt.compile(proto, precision="bf16", dims={"rows": (1, 9)}, tolerance=tolerance)
    assert program.rounding is not None and (program.rounding.rounded, program.rounding.wide) == (1, 1)
    assert max(program.rounding.errors.values()) <= tolerance
    none = graphopt.compile(proto, precision="bf16", dims={"rows": (1, 9)}, tolerance=1e-6)
    assert none.rounding is None and none.max_rel < 1e-5 and not rounded_regions(none.lowered)
    assert none.not_rounded is not None and "more than 1e-06" in none.not_rounded


@has_pairs
@pytest.mark.parametrize("dims", [{}, {"rows": (1, 8)}])
def test_what_is_not_rounded_says_why(dims: dict[str, tuple[int, int]]) -> None:
    text = f"g (float[{'rows' if dims else 8},16] x) => (float[n,16] y) {{ y = Tanh(x) }}"
    program = graphopt.compile(support.model(text), precision="bf16", dims=dims)  # type: ignore[arg-type]
    assert program.rounding is None
    assert program.not_rounded == "no product or convolution of it would be faster rounded"


@has_pairs
def test_custom_operators_are_rounded() -> None:
    proto = layers()
    operators = graphopt.compile(proto, precision="bf16", form="onnxruntime", threads=1)
    program = graphopt.compile(proto, precision="bf16", threads=1)
    assert operators.rounding == program.rounding and program.rounding is not None
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    pairs = zip(operators.run(None, {"x": x}), program.run(None, {"x": x}), strict=True)
    assert all(np.array_equal(one, other) for one, other in pairs)


@has_pairs
def test_inputs_of_recurrent_layers_are_rounded() -> None:
    """The product of all steps' inputs; what a step adds is of float32."""
    generator = np.random.default_rng(0)
    proto = support.model(
        "g (float[32,1,256] x) => (float[32,1,1,128] y) { t = Tanh(x) y = LSTM<hidden_size = 128>(t, w, r) }",
        w=generator.standard_normal((1, 512, 256)).astype(np.float32) / 16,
        r=generator.standard_normal((1, 512, 128)).astype(np.float32) / 12,
    )
    program = graphopt.compile(proto, precision="bf16", tolerance=2e-2)
    assert program.rounding is not None and (program.rounding.rounded, program.rounding.wide) == (1, 0)
    x = generator.standard_normal((32, 1, 256)).astype(np.float32)
    wanted, found = support.session(proto).run(None, {"x": x})[0], program.run(None, {"x": x})[0]
    assert 1e-4 < np.abs(found - wanted).max() < 2e-2


@has_pairs
@pytest.mark.parametrize("threads", [1, 2])
def test_the_matrix_that_each_step_reads_is_rounded_where_it_is_large(threads: int) -> None:
    generator = np.random.default_rng(0)
    proto = support.model(
        "g (float[9,1,16] x) => (float[9,1,1,512] y) { t = Tanh(x) y = GRU<hidden_size = 512>(t, w, r) }",
        w=generator.standard_normal((1, 1536, 16)).astype(np.float32) / 8,
        r=generator.standard_normal((1, 1536, 512)).astype(np.float32) / 32,
    )
    program = graphopt.compile(proto, precision="bf16", tolerance=2e-2, threads=threads)
    layers = [getattr(problem, "layer", problem) for _, problem in program.lowered.problems.values()]
    assert [one.r_dtype for one in layers if isinstance(one, Recurrent)][:1] == [DType.BF16]
    assert program.rounding is not None and (program.rounding.rounded, program.rounding.wide) == (1, 0)
    x = generator.standard_normal((9, 1, 16)).astype(np.float32)
    wanted, found = support.session(proto).run(None, {"x": x})[0], program.run(None, {"x": x})[0]
    assert 1e-4 < np.abs(found - wanted).max() < 2e-2
    exact = graphopt.compile(proto, precision="bf16", tolerance=1e-7, threads=threads)
    assert exact.rounding is None and not rounded_regions(exact.lowered)


@has_pairs
def test_a_core_whose_dot_products_are_no_faster_is_refused() -> None:
    with pytest.raises(OptionError, match="no dot products of bf16 that are faster than float32"):
        graphopt.compile(layers(), precision="bf16", machine="sapphirerapids")


def test_groups_of_regions_are_chosen_by_what_their_errors_cost() -> None:
    """Errors of regions add up as noise does; one of eight makes nearly all of it."""
    regions = [RoundedRegion(f"r{number}", 100) for number in range(8)]
    errors = {one.name: 1e-3 for one in regions} | {"r5": 1e-1}

    def error_of(wide: frozenset[str]) -> float:
        return math.sqrt(sum(error**2 for name, error in errors.items() if name not in wide))

    assert _chosen(regions, error_of, 1.0) == frozenset()
    assert _chosen(regions, error_of, 1e-2) == frozenset(["r5"])
    assert _chosen(regions, error_of, 1e-4) == frozenset(errors)


def test_of_a_range_the_size_decides_that_loses_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def faster(sample: Lowered) -> list[RoundedRegion]:
        return [RoundedRegion(name, 1) for name, ratio in sample.rounding.items() if ratio < 1]

    monkeypatch.setattr(rounding, "rounded_regions", faster)
    ratios = {"both": 0.5, "little lost": 0.9, "more lost": 0.9, "none": 1.2}, {
        "both": 0.8, "little lost": 1.05, "more lost": 1.2, "none": 1.1
    }  # fmt: skip
    samples = [Lowered((), (), (), {}, {}, host(), rounding=one) for one in ratios]
    assert rounding.rounded_at_all(samples) == {"both", "little lost"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"target": "x86-64-v4"}, "x86-64-v4: the processor has no matrix units"),
        ({"target": "aarch64"}, "compile for x86-64-amx"),
        ({"target": "x86-64-amx", "exact": True}, "exact kernels are those of float32"),
        ({"target": "x86-64-amx", "form": "onnxruntime"}, "custom operators are compiled in float32 where there are"),
        (
            {"target": "x86-64-amx", "dims": {"rows": (1, 64)}, "machine": "sapphirerapids"},
            "matrix units work on one size of every dim",
        ),
    ],
)
def test_what_would_not_be_rounded_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        graphopt.compile(any_rows(), precision="bf16", **given)  # type: ignore[arg-type]


@has_units
def test_a_bundle_says_what_it_needs_and_runs(tmp_path: Path) -> None:
    model, bundle = tmp_path / "layers.onnx", tmp_path / "layers"
    onnx.save(layers(), model)
    result = CliRunner().invoke(app, ["compile", str(model), str(bundle), "--precision", "bf16", "--tune", "0"])
    assert result.exit_code == 0, result.output
    assert "matrix units (AMX)" in result.stdout
    assert "bf16 in 4 of 4 products and convolutions" in result.stdout and "'y' by" in result.stdout
    program = read_manifest(bundle).program
    assert program is not None and set(program.features) >= UNITS
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    expected = graphopt.compile(layers(), precision="bf16").run(None, {"x": x})
    for threads in (1, 2):
        found = Bundle(bundle, threads=threads).run(None, {"x": x})
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@has_units
def test_levels_with_and_without_units_share_a_bundle(tmp_path: Path) -> None:
    program = graphopt.compile(layers(), precision="bf16", target=["x86-64-amx", "x86-64-v3"])
    program.save(tmp_path / "both")
    x = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    found = Bundle(tmp_path / "both").run(None, {"x": x})
    assert all(np.array_equal(one, other) for one, other in zip(found, program.run(None, {"x": x}), strict=True))


@has_units
def test_a_system_that_denies_the_units_is_refused_with_its_reason(tmp_path: Path) -> None:
    graphopt.compile(layers(), precision="bf16").save(tmp_path / "layers")
    done = subprocess.run(
        [sys.executable, "-c", DENIED, str(tmp_path / "layers")], capture_output=True, text=True, check=True
    )
    said = "the system does not let this process use the matrix units, which the code was compiled for: "
    assert said + "No space left on device; compile it in float32." in done.stdout


@has_pairs
@pytest.mark.parametrize("dims", [{"rows": 1}, {"rows": (1, 4)}])
def test_nan_that_a_program_in_float32_need_not_have_does_not_decide(dims: dict[str, int | tuple[int, int]]) -> None:
    """A mask of numbers that are no truth makes a row of infinities; ONNX Runtime says NaN."""
    generator = np.random.default_rng(0)
    proto = support.model(
        """g (int64[1,rows] mask, float[1,rows,128] x) => (float[1,rows,64] y) {
            f = Cast<to = 1>(mask) u = Unsqueeze(f, heads) s = Sub(one, u) t = Mul(s, least)
            h = Reshape(x, split) q = Transpose<perm = [0, 2, 1, 3]>(h) k = Transpose<perm = [0, 2, 3, 1]>(h)
            m = MatMul(q, k) n = Add(m, t) p = Softmax<axis = -1>(n) r = MatMul(p, q)
            o = Transpose<perm = [0, 2, 1, 3]>(r) c = Reshape(o, together) y = MatMul(c, w)
        }""",
        w=generator.standard_normal((128, 64)).astype(np.float32) / 11, heads=np.array([1, 2]),
        split=np.array([0, 0, 2, 64]), together=np.array([0, 0, 128]),
        one=np.float32(1), least=np.float32(np.finfo(np.float32).min),
    )  # fmt: skip
    program = graphopt.compile(proto, precision="bf16", dims=dims)
    assert program.rounding is not None and program.rounding.rounded == 1
    assert max(program.rounding.errors.values()) < 1e-2
