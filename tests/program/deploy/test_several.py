"""One bundle for several levels of processors and for listed sizes: from Python, from C, and on an older processor."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.cli import run_line
from graphopt.errors import BundleError, NotLowered, OptionError
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle
from kernels.target import host, why_not_here, x86_64_v3
from tests import support
from tests.kernels.arm import emulator

needs_x86 = pytest.mark.skipif(why_not_here(x86_64_v3()) is not None, reason="the processor is no x86 with AVX2")
SIDES = [24, 17]


def _convolutions() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    weights = {
        "w": 0.2 * generator.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "v": 0.1 * generator.standard_normal((20, 16, 3, 3)).astype(np.float32),
        "m": 0.1 * generator.standard_normal((20, 30)).astype(np.float32),
    }
    return support.model(
        """g (float[1,3,h,w_] x) => (float[1,30] y) {
            c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) d = Conv<pads=[1,1,1,1]>(r, v) s = GlobalAveragePool(d)
            f = Flatten(s) y = MatMul(f, m)
        }""",
        17, **weights,
    )  # fmt: skip


def _image(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(height).standard_normal((1, 3, height, width)).astype(np.float32)


def _expected(x: np.ndarray) -> np.ndarray:
    return np.asarray(support.session(_convolutions()).run(None, {"x": x})[0])


def test_listed_sizes_in_one_bundle(tmp_path: Path) -> None:
    """All combinations, with constants that lie in the file once."""
    program = graphopt.compile(_convolutions(), dims={"h": SIDES, "w_": [24, 40]}, name="net")
    alone = graphopt.compile(_convolutions(), dims={"h": 24, "w_": 24})
    program.save(tmp_path / "b")
    bundle = Bundle(tmp_path / "b")
    held = (tmp_path / "b" / "net.weights").stat().st_size
    assert held <= 1.1 * alone.linked.listing.weights_bytes + 64
    for height, width in ((24, 24), (17, 40), (17, 24), (24, 24)):
        x = _image(height, width)
        y = bundle(x=x)["y"]
        assert np.array_equal(y, program(x=x)["y"])
        assert np.abs(y - _expected(x)).max() < 1e-4
    call, other = bundle.bind({"x": _image(17, 24)}), bundle.bind({"x": _image(24, 40)})
    for one, size in ((call, (17, 24)), (other, (24, 40)), (call, (17, 24))):
        one()
        assert np.abs(one.outputs[0] - _expected(_image(*size))).max() < 1e-4
    with pytest.raises(BundleError, match=r"shapes 'x' \[1, 3, 17, 25\]; the program is made for h=24, w_=24; h=24, w"):
        bundle(x=_image(17, 25))
    with pytest.raises(OptionError, match=r"the inputs have the shapes 'x' \[1, 3, 17, 25\]; the program is made for"):
        program(x=_image(17, 25))
    with pytest.raises(BundleError, match="there is no input 'z'"):
        bundle(z=_image(17, 24))
    assert bundle.points[0].sizes == {"h": 24, "w_": 24}
    text = (tmp_path / "b" / "net.h").read_text()
    assert 'h=17, w_=40: "x" [1, 3, 17, 40], "y" [1, 30]' in text and "int net_set_dim(" in text


@needs_x86
def test_a_bundle_of_two_levels_on_an_older_processor(tmp_path: Path) -> None:
    """The same file of weights and the same library; the processor chooses the code."""
    path = tmp_path / "net.onnx"
    onnx.save(_convolutions(), path)
    words = ["compile", str(path), str(tmp_path / "b"), "--target", "x86-64-v3,x86-64-v4", "--dim", "h=24,32"]
    assert run_line([*words, "--dim", "w_=24", "--unchecked"]) == 0
    manifest = read_manifest(tmp_path / "b")
    assert [one.cpu for one in manifest.levels] == ["x86-64-v4", "x86-64-v3"]
    bundle, x = Bundle(tmp_path / "b"), _image(24, 24)
    assert bundle.description["cpu"] == ("x86-64-v4" if host().has("avx512f") else "x86-64-v3")
    assert np.abs(bundle(x=x)["y"] - _expected(x)).max() < 1e-4
    older = emulator("x86_64")
    if older is None or shutil.which("cc") is None:
        pytest.skip("no emulator of x86-64 is installed (make qemu), or no C compiler (cc)")
    folder = tmp_path / "b"
    subprocess.run(
        ["cc", "-O1", str(folder / "example.c"), "-o", str(tmp_path / "example"), f"-I{folder}",
         str(folder / "libnet.a"), "-lm"],
        check=True,
    )  # fmt: skip
    x.tofile(tmp_path / "x.raw")
    words = [str(tmp_path / "example"), str(folder / "net.weights"), str(tmp_path / "x.raw"), str(tmp_path / "y.raw")]
    for cpu, status in (("Haswell", 0), ("Nehalem", 1)):
        done = subprocess.run([older, "-cpu", cpu, *words], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        if status:
            assert "this processor lacks '" in done.stderr and "which all code here is compiled for" in done.stderr
        else:
            y = np.fromfile(tmp_path / "y.raw", np.float32).reshape(1, 30)
            assert np.abs(y - _expected(x)).max() < 1e-4


@needs_x86
def test_a_level_that_this_machine_lacks_is_not_compared() -> None:
    program = graphopt.compile(
        _convolutions(), dims={"h": 24, "w_": 24}, target=["x86-64-v3", "x86-64-v4"], threads=1, name="net"
    )
    if host().has("avx512f"):
        assert program.not_compared is None
    else:
        assert program.not_compared is not None and "AVX" in program.not_compared
    assert [one.target.cpu for one in program.sizes] == ["x86-64-v4", "x86-64-v3"]


def test_requests_that_make_no_library() -> None:
    for request, message in (
        ({"dims": {"h": [24, 24]}}, "the sizes of 'h' are not negative and each is given once, unlike"),
        ({"dims": {"h": []}}, "the sizes of 'h' are not negative"),
        ({"dims": {"h": list(range(1, 100)), "w_": 8}}, "99 combinations of sizes are asked for; at most 64"),
        ({"target": ["x86-64-v3", "aarch64"]}, "x86-64-v3, aarch64 are of several architectures"),
        ({"target": ["x86-64-v3", "x86-64-v3"]}, "a target is given twice"),
    ):
        with pytest.raises(OptionError, match=message):
            graphopt.compile(_convolutions(), **request)  # type: ignore[arg-type]
    model = support.model("g (float[n] x) => (string[n] y) { y = Cast<to=8>(x) }")
    with pytest.raises(NotLowered, match="Cast"):
        graphopt.compile(model, dims={"n": [3, 4]})


def test_a_bundle_of_several_programs_is_not_profiled_or_certified(tmp_path: Path) -> None:
    """Their rows are those of one program."""
    graphopt.compile(_convolutions(), dims={"h": [24, 32], "w_": 24}, name="net").save(tmp_path / "b")
    assert json.loads((tmp_path / "b" / "manifest.json").read_text())["runs"] == []
    with pytest.raises(BundleError, match="the bundle holds 2 programs; one of one level and one size is certified"):
        graphopt.certify(tmp_path / "b")
    with pytest.raises(BundleError, match="the bundle holds 2 programs; one of one level and one size is profiled"):
        graphopt.profile(tmp_path / "b")
