"""Bar 3 of the kernels: normalisation, softmax, GELU and elementwise chains beside ONNX Runtime.

One call runs one kernel on both sides; the smallest shapes therefore also measure what a call costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from bench.bar import Bar, Sheet
from bench.kernels.timing import Peer, Ratio, model, pin, ratio, readings
from bench.peers import OURS
from bench.script import main
from kernels.dtype import DType
from kernels.kernel import Kernel
from kernels.run import Executable, aligned
from kernels.target import Target, host
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.normalization import NORMALIZATION, NORMALIZED, Normalization
from kernels.templates.softmax import SOFTMAX, SOFTMAX_ROWS, Softmax
from kernels.tensor.expression import Buffer, Expression, Unary, Variable, gelu, relu

ISSUE = 4
ROUNDS, QUICK_ROUNDS = 15, 5
CHAIN_SIZES = (256, 4_096, 98_304, 802_816, 4_194_304)

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Case:
    """One comparison: our kernel, the nodes of the peer's model, and the least ratio that is promised."""

    text: str
    family: str
    least: float
    shape: tuple[int, ...]
    make: Callable[[Target], Kernel]
    nodes: tuple[onnx.NodeProto, ...]
    inputs: tuple[str, ...] = ("x",)
    constants: tuple[str, ...] = ()  # vectors as long as the last dim


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """Ratios of CPU time, ONNX Runtime over ours, one thread, float32 on both sides."""
    pin()
    target, rows = host(), []
    found: dict[str, list[tuple[Case, Ratio]]] = {}
    for case in CASES:
        one, microseconds, error = compare(case, target, QUICK_ROUNDS if quick else ROUNDS)
        found.setdefault(case.family, []).append((case, one))
        rows.append((case.text, one.median, one.low, one.high, case.least, microseconds, f"{error:.1e}"))
    columns = ("kernel", "ratio", "from", "to", "least", "ours µs", "max error")
    sheet.table("row-wise and elementwise kernels, one thread, ONNX Runtime / ours", columns, rows)
    missed = [case.text for cases in found.values() for case, one in cases if one.high < case.least]
    worst = ", ".join(f"{name} {min(one.median for _, one in cases):.2f}" for name, cases in found.items())
    figure = f"worst: {worst}" + (f" (not: {', '.join(missed)})" if missed else "")
    promised = ", ".join(f"{name} {cases[0][0].least}" for name, cases in found.items())
    return [Bar(ISSUE, 3, "row-wise kernels against ONNX Runtime", promised, figure, not missed)]


def compare(case: Case, target: Target, rounds: int) -> tuple[Ratio, float, float]:
    """The ratio, our microseconds, and the largest difference from the peer."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Array] = {}
    for name in case.inputs:
        arrays[name] = generator.standard_normal(case.shape).astype(np.float32)
    constants = {name: generator.standard_normal(case.shape[-1]).astype(np.float32) for name in case.constants}
    scalars = {"half": np.array(0.5, np.float32)} if any("half" in node.input for node in case.nodes) else {}
    peer = Peer(model(case.nodes, arrays, ["y"], {**constants, **scalars}), arrays)
    kernel = case.make(target)
    ours, y = prepare(kernel, {**arrays, **constants})
    ours()
    error = float(np.abs(y.reshape(case.shape) - peer.outputs[0]).max())
    taken = readings({"peer": peer, "ours": ours}, rounds)
    return ratio(taken["peer"], taken["ours"]), min(taken["ours"]) * 1e6, error


def prepare(kernel: Kernel, arrays: Mapping[str, Array]) -> tuple[Callable[[], None], npt.NDArray[Any]]:
    """A prepared run and the array that it writes."""
    held = {name: aligned(array.size) for name, array in arrays.items()}
    for name, array in arrays.items():
        held[name][:] = array.reshape(-1)
    y = aligned(kernel.operand("y").elements)
    calls = Executable([kernel]).calls([(kernel, {**held, "y": y})])
    return calls, y


def _axes(*sizes: int) -> tuple[Variable, ...]:
    return tuple(Variable(name, size) for name, size in zip("ij", sizes, strict=False))


def layer_normalization(rows: int, columns: int) -> Case:
    """LayerNormalization with scale and bias."""
    i, j = _axes(rows, columns)
    x, y = (Buffer(name, DType.F32, (rows, columns)) for name in "xy")
    scale, bias = (Buffer(name, DType.F32, (columns,)) for name in ("scale", "bias"))
    problem = Normalization((i,), (j,), x[i, j], (Output(y, NORMALIZED[()] * scale[j] + bias[j]),))
    node = helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=-1, epsilon=1e-5)
    return Case(
        f"LayerNormalization {rows}x{columns}", "LayerNormalization", 4.0, (rows, columns),
        lambda target: NORMALIZATION.kernel(problem, target),
        (node,), constants=("scale", "bias"),
    )  # fmt: skip


def softmax_rows(rows: int, columns: int) -> Case:
    """Softmax over the last axis."""
    i, j = _axes(rows, columns)
    x, y = (Buffer(name, DType.F32, (rows, columns)) for name in "xy")
    problem = Softmax((i,), (j,), x[i, j], (Output(y, SOFTMAX[()]),))
    return Case(
        f"Softmax {rows}x{columns}", "Softmax", 1.1, (rows, columns),
        lambda target: SOFTMAX_ROWS.kernel(problem, target),
        (helper.make_node("Softmax", ["x"], ["y"], axis=-1),),
    )  # fmt: skip


def chain(
    text: str, family: str, least: float, size: int, value: Callable[..., Expression], nodes: Sequence[onnx.NodeProto]
) -> Case:
    """An elementwise chain of inputs x, y, z (as many as `value` takes) over `size` elements."""
    (i,) = _axes(size)
    names = value.__code__.co_varnames[: value.__code__.co_argcount]
    inputs = [Buffer(name, DType.F32, (size,)) for name in names]
    made = Output(Buffer("y", DType.F32, (size,)), value(*(one[i] for one in inputs)))
    problem = Elementwise((i,), (made,))
    return Case(
        text, family, least, (size,),
        lambda target: ELEMENTWISE.kernel(problem, target),
        tuple(nodes), inputs=names,
    )  # fmt: skip


def gelu_case(size: int) -> Case:
    """Gelu by erf."""
    return chain(f"Gelu {size:,}", "Gelu", 2.3, size, lambda x: gelu(x), [helper.make_node("Gelu", ["x"], ["y"])])


def chain_of_five(size: int) -> Case:
    """Mul, Add, Relu, Sub, Mul."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "z"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Sub", ["c", "w"], ["d"]),
        helper.make_node("Mul", ["d", "x"], ["y"]),
    ]  # fmt: skip
    return chain(f"5 operations {size:,}", "chain", 2.5, size, lambda x, w, z: (relu(x * w + z) - w) * x, nodes)


def chain_of_nine(size: int) -> Case:
    """Mul, Add, Relu, Sigmoid, Mul, Sub, Tanh, Mul, Add."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "z"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]), helper.make_node("Sigmoid", ["x"], ["d"]),
        helper.make_node("Mul", ["c", "d"], ["e"]), helper.make_node("Sub", ["e", "w"], ["f"]),
        helper.make_node("Tanh", ["f"], ["g"]), helper.make_node("Mul", ["g", "half"], ["h"]),
        helper.make_node("Add", ["h", "x"], ["y"]),
    ]  # fmt: skip

    def value(x: Expression, w: Expression, z: Expression) -> Expression:
        return Unary("tanh", relu(x * w + z) * Unary("sigmoid", x) - w) * 0.5 + x

    return chain(f"9 operations {size:,}", "chain", 2.5, size, value, nodes)


CASES = (
    *(layer_normalization(*shape) for shape in ((1, 768), (128, 768), (512, 1024))),
    *(softmax_rows(*shape) for shape in ((1536, 128), (6144, 512))),
    *(gelu_case(size) for size in (3_072, 128 * 3_072)),
    *(chain_of_five(size) for size in CHAIN_SIZES),
    *(chain_of_nine(size) for size in CHAIN_SIZES),
)


if __name__ == "__main__":
    main(measure)
