"""What a bundle's file has of the weights, and what a library makes of it: moves and transformed taps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.program import storing
from graphopt.program.deploy.manifest import read_manifest
from graphopt.program.deploy.session import Bundle
from graphopt.program.moves import MOST_MOVES, moved, moves_between
from graphopt.program.storing import stored
from tests import support


def _image(side: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((1, 64, side, side)).astype(np.float32)


def _convolutions() -> onnx.ModelProto:
    generator = np.random.default_rng(0)
    weights = {f"w{n}": 0.1 * generator.standard_normal((64, 64, 3, 3)).astype(np.float32) for n in range(3)}
    return support.model(
        """g (float[1,64,56,56] x) => (float[1,64,56,56] y) {
            a = Conv<pads=[1,1,1,1]>(x, w0) b = Relu(a) c = Conv<pads=[1,1,1,1]>(b, w1) d = Relu(c)
            y = Conv<pads=[1,1,1,1]>(d, w2)
        }""",
        17, **weights,
    )  # fmt: skip


@pytest.mark.parametrize("free", [1 << 40, 0], ids=["room", "no room"])
def test_a_large_file_is_made_on_disk_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    program = graphopt.compile(_convolutions(), name="net")
    program.save(tmp_path / "small")
    made = []
    monkeypatch.setattr(storing, "LARGE", 0)
    monkeypatch.setattr(storing, "shutil", SimpleNamespace(disk_usage=lambda _: SimpleNamespace(free=free)))
    monkeypatch.setattr(storing, "_OnDisk", lambda one=storing._OnDisk: made.append(one()) or made[-1])
    program.save(tmp_path / "large")
    assert len(made) == (1 if free else 0)
    for one in (tmp_path / "small").iterdir():
        assert one.read_bytes() == (tmp_path / "large" / one.name).read_bytes()


def _of_other_kernels() -> onnx.ModelProto:
    """Convolutions that are filtered along one direction, and along both by other taps."""
    generator, shapes = np.random.default_rng(0), {"rows": (7, 1), "columns": (1, 11), "both": (2, 3), "five": (5, 5)}
    weights = {
        name: (0.1 * generator.standard_normal((64, 64, *shape))).astype(np.float32) for name, shape in shapes.items()
    }
    return support.model(
        """g (float[1,64,56,56] x) => (float[1,64,53,54] y) {
            a = Conv<pads=[3,0,3,0]>(x, rows) b = Relu(a) c = Conv<pads=[0,5,0,5]>(b, columns) d = Relu(c)
            e = Conv(d, both) f = Relu(e) h = Conv<pads=[2,2,2,2]>(f, five) y = MaxPool<kernel_shape=[3,1]>(h)
        }""",
        17, **weights,
    )  # fmt: skip


@pytest.mark.parametrize(("make", "filtered"), [(_convolutions, 3), (_of_other_kernels, 4)], ids=["3x3", "others"])
def test_transformed_weights_are_made_at_creation(
    make: Callable[[], onnx.ModelProto], filtered: int, tmp_path: Path
) -> None:
    """The file has taps, as nine where the program reads sixteen or thirty-six points, and the bits are the same."""
    model = make()
    program = graphopt.compile(model, name="net")
    found = sum("winograd" in step.kernel.candidate for step in program.lowered.regions)
    assert found >= filtered - 1, "what the test is about; the last of 3x3 gives rows of pixels"
    program.save(tmp_path / "b")
    manifest = read_manifest(tmp_path / "b")
    held = (tmp_path / "b" / "net.weights").stat().st_size
    assert held <= 1.06 * program.model_bytes and manifest.program.made_bytes > held
    x = _image(56)
    wanted = program(x=x)["y"]
    for read in (False, True):
        bundle = Bundle(tmp_path / "b", read=read)
        assert np.array_equal(bundle(x=x)["y"], wanted)
        bundle.check()
        bundle.close()
    graphopt.certify(tmp_path / "b", model=model, feeds=1)
    small = graphopt.compile(model, name="net", small=True)
    small.save(tmp_path / "s")
    assert read_manifest(tmp_path / "s").program.made_bytes == 0


def test_weights_of_images_of_any_sides_are_made_at_creation(tmp_path: Path) -> None:
    """The file has the taps, once for all kernels that they serve, and the library makes several points of each."""
    generator = np.random.default_rng(0)
    weights = {
        f"w{rows}": (generator.standard_normal((64, 64, rows, 3)) / 20).astype(np.float32) for rows in (3, 5)
    }  # fmt: skip
    model = support.model(
        """g (float[1,64,height,width] x) => (float[1,64,height,width] y) {
            a = Conv<pads=[1,1,1,1]>(x, w3) b = Relu(a) y = Conv<pads=[2,1,2,1]>(b, w5)
        }""",
        17, **weights,
    )  # fmt: skip
    ranges = {"height": (16, 64), "width": (16, 64)}
    program = graphopt.compile(model, dims=ranges, name="net")
    program.save(tmp_path / "b")
    manifest = read_manifest(tmp_path / "b")
    held = (tmp_path / "b" / "net.weights").stat().st_size
    assert held <= 1.05 * program.model_bytes and manifest.program.made_bytes >= 1.5 * held
    x = _image(56)
    for read in (False, True):
        bundle = Bundle(tmp_path / "b", read=read)
        assert np.array_equal(bundle(x=x)["y"], program(x=x)["y"])
        bundle.check()
        bundle.close()
    graphopt.certify(tmp_path / "b", model=model, feeds=1)
    small = graphopt.compile(model, dims=ranges, name="net", small=True)
    small.save(tmp_path / "s")
    assert read_manifest(tmp_path / "s").program.made_bytes == 0


def test_weights_that_are_stored_as_they_lie_are_not_copied() -> None:
    """Two products, one of whose weights are used twice; then a block with something else behind them."""
    generator = np.random.default_rng(0)
    weights = {f"w{n}": generator.standard_normal((64, 64)).astype(np.float32) for n in range(2)}
    model = support.model(
        """g (float[8,64] x) => (float[8,64] y) {
            a = MatMul(x, w0) b = Relu(a) c = MatMul(b, w1) d = Relu(c) y = MatMul(d, w0)
        }""",
        17, **weights,
    )  # fmt: skip
    program = graphopt.compile(model, name="net")
    linked = program.linked
    kept = stored(program.target, [[linked.listing]], linked.weights, linked.held)
    assert kept.weights is linked.weights
    assert kept.levels == ((linked.listing,),)
    longer = np.concatenate([linked.weights, np.ones(64, np.uint8)])
    others = stored(program.target, [[linked.listing]], longer, linked.held)
    assert np.array_equal(others.weights, linked.weights) and others.weights is not longer


def test_moves_give_one_packed_form_of_another() -> None:
    """Panels of other widths, whose last ones are filled up with zeros."""
    array = np.random.default_rng(0).standard_normal((37, 123)).astype(np.float32)
    forms = [lambda one: one.reshape(-1), lambda one: np.ascontiguousarray(one.T).reshape(-1)]
    for width in (48, 24, 20):
        forms.append(lambda one, width=width: _panels(one, width))
    for one in forms:
        for other in forms:
            moves = moves_between(array.shape, one, other, 4)
            assert moves is not None and len(moves) <= 40
            source, wanted = one(array).view(np.uint8), other(array).view(np.uint8)
            assert np.array_equal(moved(moves, source, wanted.size), wanted)


def _panels(array: np.ndarray, width: int) -> np.ndarray:
    rest = -array.shape[1] % width
    filled = np.pad(array, ((0, 0), (0, rest)))
    return np.ascontiguousarray(filled.reshape(len(array), -1, width).transpose(1, 0, 2)).reshape(-1)


def test_forms_that_no_few_moves_give() -> None:
    shuffled = np.random.default_rng(0).permutation(40 * 50)
    assert moves_between((40, 50), np.ravel, lambda one: one.reshape(-1)[shuffled], 4) is None
    assert moves_between((40, 50), np.ravel, lambda one: one.reshape(-1).astype(np.float32), 4) is None
    assert moves_between((0, 50), np.ravel, np.ravel, 4) is None
    lacking = moves_between((4, 5), lambda one: one.reshape(-1)[:7], np.ravel, 4)
    assert lacking is None and MOST_MOVES > 40


@pytest.mark.parametrize("targets", [["x86-64-v3", "x86-64-v4"]])
def test_two_levels_have_one_file(targets: list[str], tmp_path: Path) -> None:
    """Convolutions and products that both levels pack in their own ways take the bytes of the model once."""
    generator = np.random.default_rng(0)
    model = support.model(
        """g (float[1,32,20,20] x) => (float[1,100] y) {
            a = Conv<pads=[1,1,1,1]>(x, w) b = Relu(a) c = Conv<strides=[2,2]>(b, v) d = GlobalAveragePool(c)
            f = Flatten(d) y = MatMul(f, m)
        }""",
        17, w=0.1 * generator.standard_normal((48, 32, 3, 3)).astype(np.float32),
        v=0.1 * generator.standard_normal((72, 48, 3, 3)).astype(np.float32),
        m=0.1 * generator.standard_normal((72, 100)).astype(np.float32),
    )  # fmt: skip
    program = graphopt.compile(model, target=targets, name="net")  # type: ignore[arg-type]
    program.save(tmp_path / "b", unchecked=True)
    assert (tmp_path / "b" / "net.weights").stat().st_size <= 1.1 * program.model_bytes
    made = [one.made_bytes for one in read_manifest(tmp_path / "b").levels]
    assert len(made) == 2 and made[1] > 0
