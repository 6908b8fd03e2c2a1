"""From a model to a program in one call: right, refused with a reason, and written as a bundle."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import graphopt
from graphopt.cli import app, run_line
from graphopt.errors import BundleError, OptionError
from graphopt.flows import compile as compile_flow
from graphopt.flows.compile import named_by
from graphopt.model.load import load
from graphopt.passes import pipeline
from graphopt.program.deploy import emulation
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle, Program
from graphopt.rewrite.driver import Pass
from graphopt.rewrite.pattern import op, var
from graphopt.rewrite.rule import Match, Replacement, rule
from kernels import target
from kernels.llvm import load as objects
from kernels.llvm.compile import compile_object
from kernels.target import Target, host, x86_64_v4
from tests import support
from tests.kernels.arm import emulator, needs_arm


def _layers() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    weights = {
        "w": generator.standard_normal((16, 32)).astype(np.float32),
        "v": generator.standard_normal((32, 4)).astype(np.float32), "b": np.ones(32, np.float32),
    }  # fmt: skip
    return support.model(
        """g (float[n,16] x) => (float[n,4] y) {
            p = MatMul(x, w) q = Add(p, b) r = Gelu(q) s = MatMul(r, v) y = Softmax(s)
        }""",
        20, **weights,
    )  # fmt: skip


def test_a_program_is_like_a_session_and_like_a_function() -> None:
    proto = _layers()
    program = graphopt.compile(proto, dims={"n": 3})
    x = np.random.default_rng(1).standard_normal((3, 16)).astype(np.float32)
    (expected,) = support.session(proto).run(None, {"x": x})
    np.testing.assert_allclose(program.run(None, {"x": x})[0], expected, atol=1e-6)  # probabilities
    np.testing.assert_array_equal(program(x=x)["y"], program.run(["y"], {"x": x})[0])
    assert len(program.lowered.regions) == 3 and program.max_abs < 1e-6


def test_nothing_is_compiled_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle has other texts than the program in this process, and the same kernels, each in an object of its own."""
    texts: list[str] = []

    def noting(text: str, processor: Target) -> bytes:
        texts.append(text)
        return compile_object(text, processor)

    monkeypatch.setattr(objects, "compile_object", noting)
    program = graphopt.compile(_layers(), dims={"n": 4})
    kernels = program.linked.listing.kernels
    made = len(texts)
    assert all(sum(f"@model.{one.name}(" in text and "define" in text for text in texts) >= 1 for one in kernels)
    program.save(tmp_path / "bundle")
    assert len(texts) == len(set(texts)) == made + 1 and "@model_version()" in texts[-1]


def test_a_bundle_gives_what_the_program_gave(tmp_path: Path) -> None:
    program = graphopt.compile(_layers(), dims={"n": 2})
    program.save(tmp_path / "bundle")
    x = np.random.default_rng(1).standard_normal((2, 16)).astype(np.float32)
    np.testing.assert_array_equal(Bundle(tmp_path / "bundle")(x=x)["y"], program(x=x)["y"])


def test_open_dims_and_missing_kernels_are_refused() -> None:
    with pytest.raises(
        graphopt.GraphoptError, match=r"the dims of 'x' are not all numbers: give 'n' a value, dims=\{'n': 1\}"
    ):
        graphopt.compile(_layers()).save("nowhere")
    proto = support.model("g (float[5] x, int64[2] e) => (float[m,n] y) { y = Expand(x, e) }", 18)
    with pytest.raises(graphopt.GraphoptError, match="Expand 'y' has no kernel yet"):
        graphopt.compile(proto)


def test_the_commands(tmp_path: Path) -> None:
    onnx.save(_layers(), tmp_path / "model.onnx")
    np.save(tmp_path / "x.npy", np.ones((1, 16), np.float32))
    runner = CliRunner()
    made = runner.invoke(app, ["compile", str(tmp_path / "model.onnx"), str(tmp_path / "bundle"), "--dim", "n=1"])
    assert made.exit_code == 0 and "of ONNX Runtime on" in made.output
    ran = runner.invoke(
        app, ["run", str(tmp_path / "bundle"), "--input", str(tmp_path / "x.npy"), "--output", str(tmp_path)]
    )
    assert ran.exit_code == 0 and "y  float32 [1, 4]" in ran.output
    np.testing.assert_allclose(np.load(tmp_path / "y.npy").sum(), 1, rtol=1e-6)


def test_a_folder_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("...")
    with pytest.raises(BundleError, match="holds other files and no bundle; choose an empty folder or a new one"):
        CliRunner().invoke(
            app, ["compile", str(tmp_path / "absent.onnx"), str(tmp_path / "letters")], catch_exceptions=False
        )


def test_exact_leaves_out_transformed_convolutions_and_the_bytes_are_the_same_each_time(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
    proto = support.model(
        """g (float[1,64,56,56] x) => (float[1,64,56,56] y) {
            a = Conv<pads = [1,1,1,1]>(x, w) b = Conv<pads = [1,1,1,1]>(a, w) y = Conv<pads = [1,1,1,1]>(b, w)
        }""",
        w=weight,
    )
    texts = {}
    for exact in (False, True):
        program = graphopt.compile(proto, exact=exact)
        texts[exact] = " ".join(region.kernel.candidate for region in program.lowered.regions)
    assert "winograd" in texts[False] and "winograd" not in texts[True]
    for folder in ("one", "two"):
        graphopt.compile(proto).save(tmp_path / folder)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert [(tmp_path / "one" / n).read_bytes() for n in names] == [(tmp_path / "two" / n).read_bytes() for n in names]


# -- other machines ----

needs_linker = pytest.mark.skipif(find_spec("ziglang") is None, reason="ziglang is not installed")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(_layers(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


NOT_HERE = "this machine cannot run aarch64: it is x86_64"
elsewhere = pytest.mark.skipif(host().architecture.name != "x86_64", reason="ARM64 is no other machine here")


@pytest.fixture
def no_emulator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulation, "EMULATED", {})


@elsewhere
@pytest.mark.usefixtures("no_emulator")
def test_a_program_for_another_architecture_is_made_and_never_run(model: Path, tmp_path: Path) -> None:
    program = graphopt.compile(model, dims={"n": 3}, target="aarch64")
    assert program.not_here == NOT_HERE
    assert program.not_compared == f"{NOT_HERE}; no emulator of it is installed"
    x = np.zeros((3, 16), np.float32)
    for call in (lambda: program.run(None, {"x": x}), lambda: program(x=x), lambda: program.program):
        with pytest.raises(BundleError, match=f"{NOT_HERE}; save the program, and run it where it is meant to run"):
            call()
    with pytest.raises(
        graphopt.VerificationError, match=f"not compared with its model, so it is not saved: {NOT_HERE};"
    ):
        program.save(tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    with pytest.raises(BundleError, match=f"{NOT_HERE}; write the program as a bundle, and run it where"):
        Program(program.linked.listing, program.linked.weights, program.target)


@elsewhere
@needs_linker
@pytest.mark.usefixtures("no_emulator")
def test_a_bundle_for_another_architecture_is_written_on_demand_and_not_loaded(model: Path, tmp_path: Path) -> None:
    program = graphopt.compile(model, dims={"n": 3}, target="aarch64")
    program.save(tmp_path / "bundle", unchecked=True)
    assert (tmp_path / "bundle" / "libmodel.so").read_bytes()[18] == 183  # EM_AARCH64
    with pytest.raises(BundleError, match=r"libmodel\.so' is compiled for aarch64; this machine is x86_64"):
        Bundle(tmp_path / "bundle")


@elsewhere
@needs_arm
def test_a_program_for_another_architecture_is_compared_in_an_emulator(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(emulator() or "").parent), prepend=":")
    program = graphopt.compile(model, dims={"n": 3}, target="aarch64")
    assert program.not_compared is None and program.not_here == NOT_HERE
    assert 0 < program.max_abs < 1e-6  # it has run, and rounds otherwise
    program.save(tmp_path / "bundle")
    wrong = replace(program.linked, weights=bytes(len(program.linked.weights)))
    found = emulation.Emulated(wrong.listing, wrong.weights, program.target).run(
        None, {"x": np.ones((3, 16), np.float32)}
    )
    np.testing.assert_allclose(found[0], 0.25)  # without weights all classes are alike


@elsewhere
@needs_arm
def test_what_an_emulator_is_not_asked_for(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setenv("PATH", str(Path(emulator() or "").parent), prepend=":")
    monkeypatch.setattr(emulation, "MOST_FLOPS", 1000)
    program = graphopt.compile(model, dims={"n": 3}, target="aarch64")
    assert program.not_compared is not None
    assert "operations, more than an emulator is asked for" in program.not_compared


def test_a_processor_that_lacks_instructions_is_never_tried(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = replace(host(), features=tuple(one.replace("+avx512f", "-avx512f") for one in host().features))
    monkeypatch.setattr(target, "host", lambda: older)
    if host().architecture.name == "x86_64":
        reason = "this machine cannot run x86-64-v4: it lacks avx512f"
        assert target.why_not_here(x86_64_v4()) == reason
        program = graphopt.compile(model, dims={"n": 3}, target="x86-64-v4")
        assert program.not_compared == f"{reason}; no emulator of it is installed"
    assert target.why_not_here(older) is None


def test_a_program_that_was_compared_is_saved_without_a_word(model: Path, tmp_path: Path) -> None:
    program = graphopt.compile(model, dims={"n": 3})
    assert program.not_compared is None
    program.save(tmp_path / "bundle")


def test_unknown_targets_are_refused_by_name(model: Path) -> None:
    known = "known are host, x86-64-v3, x86-64-v4, x86-64-v4-256, x86-64-amx, aarch64"
    for call in (
        lambda: graphopt.compile(model, dims={"n": 3}, target="arm"),  # type: ignore[arg-type]
        lambda: graphopt.schedule(model, device="cpu:1", dims={"n": 3}, target="arm"),  # type: ignore[arg-type]
    ):
        with pytest.raises(graphopt.GraphoptError, match=f"there is no target 'arm'; {known}") as refusal:
            call()
        assert isinstance(refusal.value, OptionError)


@pytest.mark.usefixtures("some_lack_kernels")
@elsewhere
def test_what_has_no_kernel_cannot_run_elsewhere_in_onnxruntime() -> None:
    proto = support.model("g (float[3,8] x) => (float[3,8] y) { s = Softmax(x) e = Exp(s) y = Hardmax(e) }", 20)
    with pytest.raises(
        OptionError, match=r"ONNX Runtime cannot run parts of the program, as this machine cannot run aarch"
    ):
        graphopt.compile(proto, target="aarch64")


@elsewhere
@needs_linker
@pytest.mark.usefixtures("no_emulator")
def test_the_command_asks_before_it_writes_what_was_not_compared(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compile", str(model), str(tmp_path / "bundle"), "--dim", "n=1", "--target", "aarch64"]
    assert run_line(words) == 2 and not (tmp_path / "bundle").exists()
    refusal = capsys.readouterr().err
    assert f"the program was not compared: {NOT_HERE}" in refusal and "add --unchecked" in refusal
    assert run_line([*words, "--unchecked"]) == 0
    assert f"not: {NOT_HERE}" in capsys.readouterr().out
    assert (tmp_path / "bundle" / "libmodel.so").read_bytes()[18] == 183


def test_a_model_that_does_not_run_is_refused_in_a_sentence() -> None:
    """Its indices lie outside the table."""
    proto = support.model(
        "g (float[3] x) => (float[3] y) { t = Gather(table, far) y = Add(x, t) }",
        20, table=np.ones(5, np.float32), far=np.array([9, 9, 9]),
    )  # fmt: skip
    with pytest.raises(
        graphopt.VerificationError, match=r"cannot be compared, as its model does not run as it should: .*indices"
    ):
        graphopt.compile(proto)


def test_a_program_that_differs_is_made_again_with_exact_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transform of the first program is spoiled: one weight of a convolution is another."""
    weight = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32) / 24
    text = "g (float[1,64,56,56] x) => (float[1,64,56,56] y) { y = Conv<pads = [1,1,1,1]>(x, w) }"
    proto = support.model(text, w=weight)
    spoiled = weight.copy()
    spoiled[3, 5, 1, 1] += 0.5
    made = compile_flow.make

    def spoiling(model: ir.Model, target: Target, name: str, exact: bool, *rest: object, **named: object) -> object:
        given = model if exact else load(support.model(text, w=spoiled))
        return made(given, target, name, exact, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(compile_flow, "make", spoiling)
    program = graphopt.compile(proto)
    assert program.remade is not None and program.remade.startswith("output 'y': off by ")
    assert program.verification.passed
    assert "winograd" not in " ".join(region.kernel.candidate for region in program.lowered.regions)


def test_a_program_that_stays_wrong_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = load(support.model("g (float[4] x) => (float[4] y) { y = Exp(x) }"))
    monkeypatch.setattr(compile_flow, "optimized", lambda original, checked: wrong)
    with pytest.raises(graphopt.VerificationError) as caught:
        graphopt.compile(support.model("g (float[4] x) => (float[4] y) { y = Sin(x) }"))
    assert str(caught.value).startswith("the program does not give what ONNX Runtime gives: output 'y': off by ")
    assert str(caught.value).endswith("; nothing was written."), "no tolerance is advised for what is wrong"


def test_a_tolerance_replaces_what_programs_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last digits of Exp and of Exp plus 1e-5 differ by less than programs may, and by more than 1e-7."""
    text = "g (float[4] x) => (float[4] y) { e = Exp(x) y = Add(e, k) }"
    off = load(support.model(text, k=np.array([1e-5], np.float32)))
    given = support.model(text, k=np.zeros(1, np.float32))
    monkeypatch.setattr(compile_flow, "optimized", lambda original, checked: off)
    program = graphopt.compile(given)
    assert program.verification.tolerance == {"float32": 3e-5}
    with pytest.raises(graphopt.VerificationError) as caught:
        graphopt.compile(given, tolerance=1e-7)
    (advised,) = re.findall(r"; tolerance=(\S+) accepts a difference of this size\.$", str(caught.value))
    assert 1e-7 < float(advised) < 1e-4
    assert graphopt.compile(given, tolerance=1e-4).verification.tolerance["float32"] == 1e-4


@rule(op("Neg", var("x")), level=1)
def neg_is_abs(match: Match) -> Replacement:
    """Neg(x)  -->  Abs(x), which is wrong"""
    return match.op("Abs", match["x"])


def test_a_wrong_rewrite_is_taken_back_for_a_program_too(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (Pass("wrong", 1, (neg_is_abs,)),)
    monkeypatch.setattr(pipeline, "stages", lambda request: (wrong,))
    program = graphopt.compile(support.model("g (float[4] x) => (float[4] y) { y = Neg(x) }", 23))
    assert program.verification.passed
    assert program.remade is not None and program.remade.startswith("output 'y': off by ")
    assert program(x=np.ones(4, np.float32))["y"].tolist() == [-1.0] * 4


def test_a_program_has_the_files_name_and_its_digest(tmp_path: Path) -> None:
    """With the data files of the model, as `cat` and `sha256sum` see them."""
    model = support.model("g (float[2,3] x) => (float[2,3] y) { y = Add(x, c) }", c=np.ones(3, np.float32))
    path = tmp_path / "7 layers-b.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="a.data", size_threshold=0)
    program = graphopt.compile(path)
    assert program.linked.listing.name == "model_7_layers_b"
    content = path.read_bytes() + (tmp_path / "a.data").read_bytes()
    assert program.digest == hashlib.sha256(content).hexdigest()
    program.save(tmp_path / "b")
    assert read_manifest(tmp_path / "b").model == program.digest
    assert program.digest.encode() in (tmp_path / "b" / "libmodel_7_layers_b.so").read_bytes()
    unnamed = graphopt.compile(support.model("g (float[4] x) => (float[4] y) { y = Neg(x) }"))
    assert unnamed.linked.listing.name == "model" and len(unnamed.digest) == 64
    assert named_by("pthread.onnx") == "model_pthread" and named_by("größe.onnx") == "gr__e"
    with pytest.raises(OptionError, match="functions of 'pthread' would stand in for the C library's"):
        graphopt.compile(path, name="pthread")
