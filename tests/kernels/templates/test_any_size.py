"""Kernels whose dims only the run knows: at every size of a range against NumPy, between guard pages.

Operands are as large as the run's size makes them, so that a kernel which reads for a greater size ends its process.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.size import Dim, at, free
from kernels.target import Target
from kernels.templates.attention.build import ATTENTION
from kernels.templates.attention.problem import Attention, Mask, Strides
from kernels.templates.convolution.layout import Layout
from kernels.templates.convolution.problem import Convolution
from kernels.templates.convolution.ways import CONVOLUTION
from kernels.templates.convolution.winograd_choice import Winograd
from kernels.templates.either import AGAIN, either, up_to
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm import GEMM, Gemm, GemmCandidate
from kernels.templates.indexed import INDEXED, gather
from kernels.templates.matrix import Matrix
from kernels.templates.normalization import NORMALIZATION, NORMALIZED, Normalization
from kernels.templates.recurrent.build import RECURRENT
from kernels.templates.recurrent.problem import Recurrent
from kernels.templates.reduction import REDUCTION, Reduction
from kernels.templates.softmax import SOFTMAX, SOFTMAX_ROWS, Softmax
from kernels.templates.template import Template
from kernels.tensor.expression import Buffer, Load, Unary, Variable, relu
from tests.kernels.any_size import Arrays, Make, Ranged
from tests.kernels.targets import HERE

BATCH, LENGTH = Dim("batch", 1, 3, 0), Dim("length", 1, 40, 1)
SIZES = [(1, 1), (1, 2), (3, 3), (1, 7), (2, 16), (1, 17), (3, 33), (1, 39), (2, 40), (3, 40)]


class AnySize(Ranged):
    """A kernel for all sizes of a batch and a length."""

    def __init__(self, template: Template[Any, Any], make: Make, target: Target, candidate: Any = None) -> None:
        super().__init__(template, make, (BATCH, LENGTH), target, candidate)

    def __call__(self, batch: int, length: int, arrays: Arrays) -> np.ndarray:
        """Its first output, at one size."""
        return self.at((batch, length), arrays)


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def _close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got.reshape(expected.shape), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("target", HERE, ids=str)
@pytest.mark.parametrize("tile", [(4, 2, None), (3, 1, 8), (8, 3, 16)])
def test_rows_of_a_product(tile: tuple[int, int, int | None], target: Target) -> None:
    """All counts of tiles: one, which passes the depth alone, and several, which take it in parts."""
    depth, columns = 37, 41

    def make(batch: Any, length: Any) -> Gemm:
        plain = Gemm(batch * length, columns, depth)
        bias = Buffer("bias", DType.F32, (columns,))
        return replace(plain, epilogue=Epilogue(relu(ACCUMULATED[()] + bias[plain.column])))

    rows, vectors, part = tile
    kernel = AnySize(GEMM, make, target, GemmCandidate(rows, vectors, 3, 1, "constant", part))
    b, bias = _random(depth, columns), _random(columns)
    for batch, length in SIZES:
        a = _random(batch * length, depth)
        _close(kernel(batch, length, {"a": a, "b": b, "bias": bias}), np.maximum(a @ b + bias, 0))


def test_rows_apart_by_a_size() -> None:
    """The first row of every sample: the stride follows from the length."""
    kernel = AnySize(GEMM, lambda b, s: Gemm(b, 20, 16, a=Matrix(s * 16)), HERE[0])
    weights = _random(16, 20)
    for batch, length in SIZES:
        a = _random(batch, length, 16)
        used = a.reshape(-1)[: (batch - 1) * length * 16 + 16]
        _close(kernel(batch, length, {"a": used, "b": weights}), a[:, 0] @ weights)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("target", HERE, ids=str)
def test_attention(target: Target, masked: bool, causal: bool) -> None:
    """Keys that fill no panel, one vector of it or several; one or two queries take dot products."""
    heads, size = 2, 20

    def make(batch: Any, length: Any) -> Attention:
        place = Strides(length * heads * size, size, heads * size)
        mask = Mask(length, 0, 0) if masked else None
        return Attention(
            batch, heads, length, length, size, causal=causal, mask=mask, q=place, k=place, v=place, output=place
        )

    kernel = AnySize(ATTENTION, make, target)
    for batch, length in SIZES:
        q, k, v = (_random(batch, length, heads, size) * scale for scale in (1, 2, 3))
        scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(np.float32(size))
        arrays = {"q": q, "k": k, "v": v}
        if masked:
            arrays["mask"] = _random(batch, length)
            scores = scores + arrays["mask"][:, None, None]
        if causal:
            scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        _close(kernel(batch, length, arrays), np.einsum("bhqk,bkhd->bqhd", shares, v))


def _axes(batch: Any, length: Any, width: int) -> tuple[Variable, ...]:
    return Variable("b", batch), Variable("s", length), Variable("w", width)


@pytest.mark.parametrize("target", HERE, ids=str)
def test_elementwise(target: Target) -> None:
    """Rows in any number, an axis of any length that vectors run along, and one that they do not."""

    def make(batch: Any, length: Any) -> Elementwise:
        b, s, w = _axes(batch, length, 5)
        x, places = Buffer("x", DType.F32, (batch, 5, length)), Buffer("places", DType.F32, (length,))
        y = Buffer("y", DType.F32, (batch, length, 5))
        return Elementwise((b, s, w), (Output(y, Unary("tanh", x[b, w, s]) + places[s]),))

    kernel = AnySize(ELEMENTWISE, make, target)
    for batch, length in SIZES:
        x, places = _random(batch, 5, length), _random(length)
        expected = (np.tanh(x) + places).transpose(0, 2, 1)
        _close(kernel(batch, length, {"x": x, "places": places}), expected)


def test_elementwise_along_a_size() -> None:
    def make(batch: Any, length: Any) -> Elementwise:
        b, s, w = _axes(batch, length, 3)
        x, y = Buffer("x", DType.F32, (batch, length)), Buffer("y", DType.F32, (batch, 3, length))
        return Elementwise((b, w, s), (Output(y, x[b, s] * 2.0),))

    kernel = AnySize(ELEMENTWISE, make, HERE[0])
    for batch, length in SIZES:
        x = _random(batch, length)
        _close(kernel(batch, length, {"x": x}), np.broadcast_to(2 * x[:, None], (batch, 3, length)))


def _rows(batch: Any, length: Any, across: bool) -> tuple[tuple[Variable, ...], tuple[Variable, ...], Buffer]:
    """Rows in any number, or of any length."""
    b, s, w = _axes(batch, length, 21)
    x = Buffer("x", DType.F32, (batch, length, 21))
    return ((b, w), (s,), x) if across else ((b, s), (w,), x)


def _element(x: Buffer, rows: tuple[Variable, ...], columns: tuple[Variable, ...]) -> Load:
    named = {one.name: one for one in (*rows, *columns)}
    return x[named["b"], named["s"], named["w"]]


def test_normalization() -> None:
    def make(batch: Any, length: Any) -> Normalization:
        rows, columns, x = _rows(batch, length, False)
        y = Buffer("y", DType.F32, (batch, length, 21))
        return Normalization(rows, columns, _element(x, rows, columns), (Output(y, NORMALIZED[()]),))

    kernel = AnySize(NORMALIZATION, make, HERE[0])
    for batch, length in SIZES:
        x = _random(batch, length, 21)
        moved = x - x.mean(-1, keepdims=True)
        _close(kernel(batch, length, {"x": x}), moved / np.sqrt((moved**2).mean(-1, keepdims=True) + 1e-5))


@pytest.mark.parametrize("kind", ["rows", "length", "across"])
def test_softmax(kind: str) -> None:
    """Of rows in any number, of rows of any length, and of columns, each of which has any length."""

    def make(batch: Any, length: Any) -> Softmax:
        if kind == "length":
            b, s, w = _axes(batch, length, 3)
            x, y = (Buffer(name, DType.F32, (batch, 3, length)) for name in "xy")
            return Softmax((b, w), (s,), x[b, w, s], (Output(y, SOFTMAX[()]),))
        rows, columns, x = _rows(batch, length, kind == "across")
        y = Buffer("y", DType.F32, (batch, length, 21))
        places = _element(y, rows, columns).indices
        return Softmax(rows, columns, _element(x, rows, columns), (Output(y, SOFTMAX[()], places),))

    kernel = AnySize(SOFTMAX_ROWS, make, HERE[0])
    for batch, length in SIZES:
        x = _random(batch, 3, length) if kind == "length" else _random(batch, length, 21)
        axis = 1 if kind == "across" else -1
        powers = np.exp(x - x.max(axis, keepdims=True))
        _close(kernel(batch, length, {"x": x}), powers / powers.sum(axis, keepdims=True))


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("across", [False, True])
def test_reduction(op: str, across: bool) -> None:
    def make(batch: Any, length: Any) -> Reduction:
        rows, columns, x = _rows(batch, length, across)
        y = Buffer("y", DType.F32, tuple(one.extent for one in rows))
        problem = Reduction(rows, columns, op, _element(x, rows, columns), ())  # type: ignore[arg-type]
        return replace(problem, outputs=(Output(y, problem.reduced[()]),))

    kernel = AnySize(REDUCTION, make, HERE[0])
    for batch, length in SIZES:
        x = _random(batch, length, 21)
        _close(kernel(batch, length, {"x": x}), getattr(np, op)(x, axis=1 if across else 2))


def test_gather() -> None:
    kernel = AnySize(INDEXED, lambda b, s: gather((9, 5), 0, (b * s,), DType.F32), HERE[0])
    table = _random(9, 5)
    for batch, length in SIZES:
        indices = np.random.default_rng(length).integers(-9, 9, batch * length)
        assert (kernel(batch, length, {"data": table, "indices": indices}).reshape(-1, 5) == table[indices]).all()


def test_recurrent() -> None:
    """An LSTM of any length and batch: even and odd lengths end in different places of scratch."""
    hidden = 10
    kernel = AnySize(RECURRENT, lambda b, s: Recurrent("rnn", s, b, hidden), HERE[0])
    r = _random(1, hidden, hidden) * 0.3
    for batch, length in SIZES:
        gates, state = _random(length, batch, hidden), _random(batch, hidden)
        arrays = {"gates": gates, "r": r, "initial_h": state}
        expected = []
        for step in gates:
            state = np.tanh(step + state @ r[0].T)
            expected.append(state)
        _close(kernel(batch, length, arrays), np.array(expected))


@pytest.mark.parametrize("joined", [1, 2, 3])
@pytest.mark.parametrize("outputs", [2, 4])
def test_images_of_a_winograd_convolution(outputs: int, joined: int) -> None:
    """Blocks of one image each, and of several that share weights, of which the last has fewer."""
    channels, size = 32, 7

    def make(batch: Any, _: Any) -> Convolution:
        layout = Layout(batch, channels, (1, size, size), "NHWC", 0)
        return Convolution(layout, layout, (1, 3, 3), pads=(0, 1, 1))

    tiles = -(-size // outputs)
    kernel = AnySize(
        CONVOLUTION, make, HERE[0], Winograd(((outputs, 3), (outputs, 3)), tiles, min(tiles, 3), 1, images=joined)
    )
    weights = _random(channels, channels, 1, 3, 3) * 0.1
    for batch in (1, 2, 3):
        x = _random(batch, size, size, channels)
        wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
        expected = np.einsum("bhwckl,ockl->bhwo", windows, weights[:, :, 0])
        _close(kernel(batch, 1, {"x": x, "weights": weights}), expected)


@pytest.mark.parametrize("target", HERE, ids=str)
def test_one_of_two_kernels_by_a_size(target: Target) -> None:
    """Short runs take one tile, long ones another, each with weights packed for it; both sides have a first size."""
    depth, columns, last = 21, 70, 16
    tiles = GemmCandidate(2, 1, 1, 1, "constant"), GemmCandidate(4, 2, 2, 2, "constant")

    def built(problem: Gemm, _: GemmCandidate, target: Target, name: str) -> Kernel:
        few, many = (GEMM.build(problem, tile, target, f"{name}_{tile.rows}") for tile in tiles)
        return either(few, many, up_to(free(LENGTH), last), name)

    kernel = AnySize(replace(GEMM, build=built), lambda b, s: Gemm(b * s, columns, depth), target, tiles[0])
    b = _random(depth, columns)
    for batch, length in (*SIZES, (1, last), (3, last), (1, last + 1)):
        a = _random(batch * length, depth)
        _close(kernel(batch, length, {"a": a, "b": b, "b" + AGAIN: b}), a @ b)


def test_blocks_that_a_run_has_not_do_nothing() -> None:
    candidate = GemmCandidate(4, 1, 1, 1, "constant")
    kernel = AnySize(GEMM, lambda b, s: Gemm(b * s, 8, 4), HERE[0], candidate).kernel
    assert kernel.blocks == 30
    assert kernel.run_blocks is not None and at(kernel.run_blocks, {"batch": 1, "length": 5}) == 2
