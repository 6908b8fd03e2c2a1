"""Kernels and listings as WebAssembly, in node: what they compute, what they import, and what cannot be one."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from kernels.dtype import DType
from kernels.emit.standalone import NotStandalone
from kernels.emit.webassembly import WebAssembly, webassembly
from kernels.kernel import Kernel, Operand, write_kernel
from kernels.listing import Argument, Listing, Place, Run
from kernels.llvm.function import Function, Value
from kernels.llvm.link import LinkError, link_webassembly
from kernels.llvm.module import Module
from kernels.math.erf import erf
from kernels.math.exponential import exp, sigmoid
from kernels.math.hyperbolic import acosh, asinh, atanh, cosh, sinh
from kernels.math.inverse import acos, asin, atan
from kernels.math.logarithm import log
from kernels.math.tanh import tanh
from kernels.math.trigonometric import sin
from kernels.run import Array
from kernels.target import wasm32, x86_64_v3
from kernels.templates import pooling
from kernels.templates.attention.build import build as build_attention
from kernels.templates.attention.problem import Attention
from kernels.templates.attention.problem import candidates as attention_candidates
from kernels.templates.convolution import choose, depthwise, winograd
from kernels.templates.convolution.problem import convolution
from kernels.templates.convolution.ways import build as build_convolution
from kernels.templates.gemm import Gemm, build, candidates
from kernels.templates.pooling_problem import Pooling
from kernels.templates.quantized.product import QuantizedProduct
from kernels.templates.quantized.product import build as build_quantized
from kernels.templates.quantized.product import candidates as quantized_candidates
from kernels.tensor.expression import relu
from tests.kernels.listings import difference, perceptron
from tests.kernels.templates.convolution.oracle import sample

NODE = shutil.which("node")
MISSING = NODE is None or importlib.util.find_spec("ziglang") is None
assert not (MISSING and os.environ.get("GRAPHOPT_ALL_CHECKS")), "node and ziglang must be installed here"
pytestmark = pytest.mark.skipif(MISSING, reason="node or ziglang is not installed")
TARGET = wasm32()
_SCRIPT = """
const { readFileSync, writeFileSync } = require("fs");
const [, , folder, given, from, to] = process.argv;
const env = { fmod: (a, b) => a % b, exp: Math.exp };
WebAssembly.instantiate(readFileSync(folder + "/code.wasm"), { env }).then(({ instance }) => {
  const { memory, place, run } = instance.exports, bytes = new Uint8Array(memory.buffer);
  for (const [at, size, file] of JSON.parse(given)) bytes.set(readFileSync(`${folder}/${file}`), place() + at);
  run();
  writeFileSync(folder + "/found", bytes.subarray(place() + Number(from), place() + Number(to)));
});
"""


def in_node(made: WebAssembly, pieces: Mapping[int, bytes], start: int, size: int, folder: Path) -> bytes:
    """What lies in so many bytes of the memory after a run; `pieces` are put there before."""
    (folder / "code.wasm").write_bytes(made.linked())
    (folder / "run.cjs").write_text(_SCRIPT)
    given = []
    for number, (place, data) in enumerate(pieces.items()):
        (folder / f"given{number}").write_bytes(data)
        given.append([place, len(data), f"given{number}"])
    words = [str(NODE), str(folder / "run.cjs"), str(folder), json.dumps(given), str(start), str(start + size)]
    subprocess.run(words, check=True, capture_output=True)
    return (folder / "found").read_bytes()


def run_in_node(kernel: Kernel, arrays: Mapping[str, Array], folder: Path) -> Array:
    """The one output of a kernel."""
    inputs = [one for one in kernel.operands if one.role != "output"]
    (output,) = (one for one in kernel.operands if one.role == "output")
    places = {one.name: Place("input", argument=number) for number, one in enumerate(inputs)} | {
        output.name: Place("output")
    }
    arguments = [Argument(one.name, one.dtype, (one.bytes // one.dtype.bytes,)) for one in (*inputs, output)]
    run = Run(kernel.name, tuple(places[one.name] for one in kernel.operands))
    listing = Listing("one", tuple(arguments[:-1]), (arguments[-1],), (kernel,), (run,), 0, 0)
    made = webassembly(listing, TARGET)
    pieces = {place: arrays[one.name].tobytes() for place, one in zip(made.laid.inputs, inputs, strict=True)}
    return np.frombuffer(in_node(made, pieces, made.laid.outputs[0], output.bytes, folder), output.dtype.numpy)


def test_layers_through_an_arena_and_several_inputs(tmp_path: Path) -> None:
    written = perceptron(TARGET, (16, 300, 10), rows=7)
    x = np.random.default_rng(1).standard_normal((7, 16)).astype(np.float32)
    made = webassembly(written.listing, TARGET)
    pieces = {0: written.weights, made.laid.inputs[0]: x.tobytes()}
    y = np.frombuffer(in_node(made, pieces, made.laid.outputs[0], 280, tmp_path), np.float32).reshape(7, 10)
    # Products and sums round apart, so that there are twice as many steps.
    assert (np.abs(y - written.answer(x)) <= 2 * written.bound(x)).all()


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (7, 13, 9), (33, 50, 21)])
@pytest.mark.parametrize("constant", [True, False])
def test_products_of_small_integers_are_exact(
    rows: int, columns: int, depth: int, constant: bool, tmp_path: Path
) -> None:
    generator = np.random.default_rng(0)
    a = generator.integers(-4, 5, (rows, depth)).astype(np.float32)
    b = generator.integers(-4, 5, (depth, columns)).astype(np.float32)
    gemm = Gemm(rows, columns, depth, constant_b=constant)
    kernel = build(gemm, candidates(gemm, TARGET)[0], TARGET)
    packing = kernel.operand("b").packing
    got = run_in_node(kernel, {"a": a, "b": b if packing is None else packing.pack(b)}, tmp_path)
    assert (got.reshape(rows, columns) == a @ b).all()


def test_products_of_bytes_are_exact(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    a = generator.integers(0, 256, (5, 130)).astype(np.uint8)
    b = generator.integers(0, 256, (130, 21)).astype(np.uint8)
    product = QuantizedProduct(5, 21, 130, b_dtype=DType.U8, a_zero=11, b_zero=(140,))
    kernel = build_quantized(product, quantized_candidates(product, TARGET)[0], TARGET)
    packing = kernel.operand("b").packing
    assert packing is not None
    got = run_in_node(kernel, {"a": a, "b": packing.pack(b)}, tmp_path).reshape(5, 21)
    np.testing.assert_array_equal(got, (a.astype(np.int64) - 11) @ (b.astype(np.int64) - 140))


def test_attention(tmp_path: Path) -> None:
    one = Attention(1, 2, 9, 21, 12, causal=True, past=12)
    generator = np.random.default_rng(0)
    q, k, v = (generator.standard_normal((2, rows, 12)).astype(np.float32) for rows in (9, 21, 21))
    kernel = build_attention(one, attention_candidates(one, TARGET)[0], TARGET)
    got = run_in_node(kernel, {"q": q, "k": k, "v": v}, tmp_path).reshape(2, 9, 12)
    scores = q.astype(np.float64) @ k.transpose(0, 2, 1) / np.sqrt(12)
    weights = np.exp(np.where(np.arange(21) <= np.arange(9)[:, None] + 12, scores, -np.inf))
    exact = weights / weights.sum(axis=-1, keepdims=True) @ v
    np.testing.assert_allclose(got, exact, rtol=4e-6, atol=4e-6)  # as on other targets: see test_attention


PLAIN = convolution(1, 20, 24, (7, 9), (3, 3), pads=(1, 1, 1, 1), order="NCHWc")
ALONE = convolution(1, 20, 20, (9, 9), (3, 3), pads=(1, 1, 1, 1), groups=20, order="NHWC")


@pytest.mark.parametrize(
    ("problem", "way"),
    [(PLAIN, choose), (PLAIN, winograd), (ALONE, depthwise)],
    ids=("direct", "winograd", "depthwise"),
)
def test_ways_to_convolve(problem, way, tmp_path):
    problem = problem.with_epilogue(relu)
    taken = sample(problem)
    kernel = build_convolution(problem, way.candidates(problem, TARGET)[0], TARGET)
    packing = kernel.operand("weights").packing
    arrays = {"x": problem.input.store(taken.x), "weights": packing.pack(taken.weights)}
    y = run_in_node(kernel, arrays, tmp_path)
    # Winograd's transforms round most: see its own test.
    np.testing.assert_allclose(problem.output.read(y), np.maximum(taken.expected, 0), atol=6e-5)


def test_pooling(tmp_path):
    windows = convolution(1, 20, 20, (7, 7), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), groups=20, order="NCHWc")
    problem = Pooling(windows, "max")
    x = np.random.default_rng(0).standard_normal((1, 20, 1, 7, 7)).astype(np.float32)
    kernel = pooling.build(problem, pooling.candidates(problem, TARGET)[0], TARGET)
    found = windows.output.read(run_in_node(kernel, {"x": windows.input.store(x)}, tmp_path))
    padded = np.pad(x[0, :, 0], ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    for row in range(4):
        for column in range(4):
            seen = padded[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
            np.testing.assert_array_equal(found[0, :, 0, row, column], seen.max((1, 2)))


FUNCTIONS: tuple[tuple[Callable[[Function, Value], Value], Callable[[float], float], float, float], ...] = (
    (exp, math.exp, -80, 80), (log, math.log, 1e-30, 1e30), (erf, math.erf, -5, 5),
    (tanh, math.tanh, -12, 12), (sin, math.sin, -60000, 60000),
    (sigmoid, lambda x: 1 / (1 + math.exp(-x)), -40, 40),
    (asin, math.asin, -1, 1), (acos, math.acos, -0.999, 0.999), (atan, math.atan, -9, 9), (sinh, math.sinh, -9, 9),
    (cosh, math.cosh, -88, 88), (asinh, math.asinh, -9, 9), (acosh, math.acosh, 1.001, 9),
    (atanh, math.atanh, -0.999, 0.999),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(FUNCTIONS)))
def test_functions_without_a_fused_multiply_add(number: int, tmp_path: Path) -> None:
    """Each is off by a few units in the last place at most, where its bound with one rounding is two."""
    function, exact, low, high = FUNCTIONS[number]
    x = np.linspace(low, high, 4096).astype(np.float32)

    def body(f: Function, pointers: dict[str, Value], block: Value, scratch: Value) -> None:
        del block, scratch

        def one(place: Value, _: tuple[Value, ...]) -> None:
            given = f.load("<4 x float>", f.at(pointers["x"], place))
            f.store(function(f, given), f.at(pointers["y"], place))

        f.loop(f.integer(0), f.integer(4096), 4, one)

    operands = (Operand("x", "input", DType.F32, 4096), Operand("y", "output", DType.F32, 4096))
    found = run_in_node(write_kernel(Module(TARGET), "function", operands, 1, body), {"x": x}, tmp_path)
    wanted = np.array([exact(one) for one in x.tolist()])
    np.testing.assert_allclose(found, wanted, rtol=4 * 2.0**-23, atol=2.0**-126)


def test_what_is_exported_and_imported() -> None:
    code = webassembly(difference(TARGET), TARGET).linked()
    assert code[:4] == b"\0asm" and b"place" in code and b"run" in code and b"env" not in code
    with pytest.raises(LinkError, match="does not link for wasm32"):
        link_webassembly([b"no object"], TARGET, ("run",))
    with pytest.raises(NotStandalone, match="'x86_64-unknown-linux-gnu' is no WebAssembly"):
        webassembly(difference(x86_64_v3()), x86_64_v3())
