"""Bar 9 of the kernels: bfloat16 products beside our float32 ones, bytes beside ONNX Runtime's MatMulInteger."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, Ratio, model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from kernels.run import Calls, Executable, aligned
from kernels.target import Target, host
from kernels.templates.epilogue import ACCUMULATED_INTEGER, Epilogue
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.tile import supported

ISSUE = 4
SHAPES = ((512, 512, 512), (128, 768, 768), (128, 3072, 768), (128, 768, 3072), (384, 2304, 768))
ROUNDS, QUICK_ROUNDS = 15, 5
FASTER, NOT_SLOWER = 1.8, 0.95
COPIES = 4


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, one thread; what each side computes in is named by the column."""
    pin()
    target, rounds = host(), QUICK_ROUNDS if quick else ROUNDS
    text = f"bf16 / fp32 {FASTER}, int8 not slower than MatMulInteger"
    if not (supported("bf16", target) and supported("u8s8", target)):
        return [Bar(ISSUE, 9, "low precision", text, f"{target.cpu} has no such instructions", None)]
    rows, missed = [], []
    for shape in SHAPES:
        half, whole = _bfloat(shape, target, rounds), _bytes(shape, target, rounds)
        name = "x".join(map(str, shape))
        if half.high < FASTER:
            missed.append(f"bf16 {name}")
        if whole.high < NOT_SLOWER:
            missed.append(f"int8 {name}")
        rows.append((name, half.median, half.low, half.high, whole.median, whole.low, whole.high))
    columns = ("shape", "our fp32 / bf16", "from", "to", "MatMulInteger / u8s8", "from ", "to ")
    sheet.table("low precision, one thread", columns, rows)
    done = 2 * len(SHAPES) - len(missed)
    figure = f"{done} of {2 * len(SHAPES)}" + (f" (not: {', '.join(missed)})" if missed else "")
    return [Bar(ISSUE, 9, "low precision", text, figure, not missed)]


def _bfloat(shape: tuple[int, int, int], target: Target, rounds: int) -> Ratio:
    generator = np.random.default_rng(0)
    plain = Gemm(*shape)
    calls = {}
    for name, problem, kind in (("f32", plain, np.float32), ("bf16", replace(plain, arithmetic="bf16"), np.uint16)):
        drawn = generator.standard_normal(shape[0] * shape[2]).astype(np.float32)
        given = drawn if kind is np.float32 else (drawn.view(np.uint32) >> 16).astype(np.uint16)
        calls[name] = _calls(problem, target, given, np.zeros((shape[2], shape[1]), kind), np.float32)
    taken = readings(calls, rounds)
    return ratio(taken["f32"], taken["bf16"])


def _bytes(shape: tuple[int, int, int], target: Target, rounds: int) -> Ratio:
    rows, columns, depth = shape
    generator = np.random.default_rng(0)
    a = generator.integers(0, 256, (rows, depth), np.uint8)
    weights = [generator.integers(-128, 128, (depth, columns), np.int8) for _ in range(COPIES)]
    nodes = [helper.make_node("MatMulInteger", ["a", f"w{n}"], [f"y{n}"]) for n in range(COPIES)]
    constants = {f"w{n}": weight for n, weight in enumerate(weights)}
    outputs = [f"y{n}" for n in range(COPIES)]
    peer = Peer(model(nodes, {"a": a}, outputs, constants, dtype=TensorProto.INT32), {"a": a})
    problem = Gemm(*shape, arithmetic="u8s8", epilogue=Epilogue(ACCUMULATED_INTEGER[()]))
    ours = _calls(problem, target, a.reshape(-1), weights[0], np.int32)
    taken = readings({"peer": peer, "ours": ours}, rounds)
    return ratio(taken["peer"], taken["ours"])


def _calls(problem: Gemm, target: Target, a: np.ndarray, b: np.ndarray, output: type) -> Calls:
    """Several products with weights of their own."""
    kernel = GEMM.kernel(problem, target)
    packing = kernel.operand("b").packing
    assert packing is not None, "the weights are constants"
    held = aligned(a.size, a.dtype)
    held[:] = a
    runs = []
    for _ in range(COPIES):
        packed, c = aligned(packing.elements, b.dtype), aligned(problem.rows * problem.columns, output)
        packed[:] = packing.pack(b)
        runs.append((kernel, {"a": held, "b": packed, "c": c}))
    return Executable([kernel]).calls(runs)


if __name__ == "__main__":
    main(measure)
