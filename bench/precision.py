"""Bars of low precision: programs in bf16 beside OpenVINO's default, which computes in bf16 where it can, and float32.

Models are the float ones of the zoo that compile whole, batch 1, one thread, pinned, all sides by turns; kernels are
chosen by estimates. Errors are the largest differences from ONNX Runtime in float32, in shares of an output's largest
element, over the same feeds; ours may be as large as OpenVINO's is on that model, and models on which that is above
`APART` are listed apart. Products are those of layers, with weights of their own in turn. Without matrix units these
run on dot products of pairs, and programs have to be as fast as in float32; a machine whose dot products are no faster
measures nothing.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import Call, Ratio, pin, ratio, readings, unpin
from bench.native import FAMILIES, QUICK, SHORT, Array, feed_of
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.check.runner import Workplace
from graphopt.errors import GraphoptError
from graphopt.flows.comparing import reference_of
from graphopt.flows.rounded import measured
from graphopt.flows.source import resize
from graphopt.machine.record import MachineRecord
from graphopt.program.core import with_core
from graphopt.program.deploy.benchmark import openvino_module
from kernels.run import Calls, Executable, aligned
from kernels.target import Target, host
from kernels.templates.dots.product import DOT_PRODUCT
from kernels.templates.dots.product_choice import are_faster
from kernels.templates.gemm import GEMM
from kernels.templates.gemm_problem import Gemm
from kernels.templates.template import Template
from kernels.templates.units.product import UNIT_PRODUCT
from kernels.units.state import permitted
from kernels.units.write import has_unit

ISSUE = 25
ROUNDS, QUICK_ROUNDS = 11, 5
BESIDE, FASTER = 0.8, 3.0  # what programs must give beside OpenVINO, and products beside float32
APART = 0.1  # an error of OpenVINO's above it is no tolerance
SHAPES = ((128, 768, 3072), (512, 512, 512), (128, 768, 768), (128, 3072, 768), (384, 2304, 768))
MUST = SHAPES[:2]
NONE = "none"  # of a program in which nothing is rounded
COPIES = 4  # of weights, which take turns


@dataclass(frozen=True, slots=True)
class Line:
    """One model: milliseconds of ours in float32 and in bf16, the peer's time by ours, errors, what was rounded."""

    model: str
    wide_ms: float
    ours_ms: float
    faster: Ratio  # float32 by bf16
    beside: Ratio | None  # OpenVINO's default by bf16
    error: float
    peer_error: float
    regions: str

    @property
    def is_apart(self) -> bool:
        """Whether the peer is too far off for its error to be a tolerance."""
        return self.peer_error > APART


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and each product."""
    texts = ("bf16 beside OpenVINO's default", f"bf16 products beside float32 ({_shape(MUST[0])}, {_shape(MUST[1])})")
    targets = (f"{BESIDE} on the geometric mean", f"{FASTER:g} at both")
    rounds, machine = QUICK_ROUNDS if quick else ROUNDS, graphopt.machine()
    units, here = has_unit("bf16", host()) and permitted() is None, with_core(host(), machine)
    if not units and not are_faster(here):
        why = "not measured: this process has no matrix units, and no faster dot products"
        return [Bar(ISSUE, n, text, target, why, None) for n, text, target in zip((1, 2), texts, targets, strict=True)]
    template = UNIT_PRODUCT if units else DOT_PRODUCT
    products = {shape: _product(template, shape, here, rounds) for shape in SHAPES}
    columns = ("rows x columns x depth", "float32 / bf16", "from", "to")
    rows = [(_shape(shape), one.median, one.low, one.high) for shape, one in products.items()]
    sheet.table("products in bf16, one thread", columns, rows)
    names = [name for members in FAMILIES.values() for name in members if not quick or name in QUICK]
    found = [line for name in names if (line := model_line(sheet, name, rounds, machine)) is not None]
    sheet.table(
        "programs in bf16, one thread; OpenVINO by turns",
        (
            "model",
            "float32 ms",
            "bf16 ms",
            "float32 / bf16",
            "OpenVINO default / bf16",
            "error",
            "OpenVINO's",
            "rounded",
        ),
        [_cells(line) for line in found],
    )
    if not units:
        return [_not_slower(found), Bar(ISSUE, 2, texts[1], targets[1], "not measured: no matrix units", None)]
    mean = beside(found)
    slow = min((products[shape].median for shape in MUST), default=0.0)
    figure = "not measured: openvino is not installed" if mean is None else f"{mean:.2f}"
    return [
        Bar(ISSUE, 1, texts[0], targets[0], figure, None if mean is None else mean >= BESIDE),
        Bar(ISSUE, 2, texts[1], targets[1], f"{slow:.1f}", slow >= FASTER),
    ]


def _not_slower(lines: Sequence[Line]) -> Bar:
    """On dot products: float32 by bf16 over models above a millisecond; where nothing is rounded they are the same."""
    text = "bf16 on dot products beside float32, without matrix units"
    ratios = [line.faster for line in lines if line.wide_ms >= SHORT and line.regions != NONE]
    if not ratios:
        return Bar(ISSUE, 1, text, "not slower", "not measured: nothing is rounded", None)
    mean = math.exp(sum(math.log(one.median) for one in ratios) / len(ratios))
    figure = f"{mean:.2f} x on the geometric mean, {min(one.median for one in ratios):.2f} at least"
    met = all(one.high >= 1 for one in ratios)
    return Bar(ISSUE, 1, text, "not slower", f"{figure}, of {len(ratios)} models", met)


def beside(lines: Sequence[Line]) -> float | None:
    """The geometric mean beside OpenVINO over models above a millisecond, but for those apart."""
    counted = [line for line in lines if line.wide_ms >= SHORT and not line.is_apart and line.beside is not None]
    logs = [math.log(line.beside.median) for line in counted if line.beside is not None]
    return math.exp(sum(logs) / len(logs)) if logs else None


def model_line(sheet: Sheet, name: str, rounds: int, machine: MachineRecord) -> Line | None:
    """One model; None where it does not compile whole."""
    unpin()
    source, feed = model_file(name), feed_of(name)
    original = graphopt.load(source)
    if models.sizes(name):
        resize(original, {}, models.sizes(name))
    peer = _OpenVino(source.read_bytes()) if find_spec("openvino") is not None else None
    try:
        peer_error = 0.0 if peer is None else _error(original, peer)
        given: dict[str, Any] = {"dims": models.sizes(name), "machine": machine, "threads": 1}
        wide = graphopt.compile(source, **given)
        tolerance = peer_error if 0 < peer_error <= APART else None
        ours = graphopt.compile(source, precision="bf16", tolerance=tolerance, **given)
        sides: dict[str, Call] = {"wide": wide.program.bind(feed), "ours": ours.program.bind(feed)}
    except GraphoptError as error:
        sheet.console.print(f"{name}: {error}")
        return None
    if peer is not None:
        sides["peer"] = peer.bind(feed)
    pin()
    taken = readings(sides, rounds)
    rounding = ours.rounding
    wide_ms, ours_ms = (1e3 * float(np.median(taken[side])) for side in ("wide", "ours"))
    line = Line(
        name, wide_ms, ours_ms, ratio(taken["wide"], taken["ours"]),
        ratio(taken["peer"], taken["ours"]) if peer is not None else None,
        0.0 if rounding is None else max(rounding.errors.values(), default=0.0), peer_error,
        NONE if rounding is None else f"{rounding.rounded} of {rounding.rounded + rounding.wide}",
    )  # fmt: skip
    gc.collect()
    return line


def _error(original: ir.Model, peer: _OpenVino) -> float:
    """How far the peer is off on the feeds that programs are compared on."""
    with Workplace() as workplace:
        reference = reference_of(workplace, original, (), None)
        return max(measured(reference, original, peer, 1.0)[1].values(), default=0.0)  # type: ignore[arg-type]


class _OpenVino:
    """A model in OpenVINO on one thread, as it chooses its precision itself."""

    def __init__(self, source: bytes) -> None:
        core = openvino_module().Core()
        settings = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1}
        self._compiled = core.compile_model(core.read_model(source), "CPU", settings)
        self._request = self._compiled.create_infer_request()

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Array]) -> list[Array]:
        """The outputs, in order."""
        found = self._request.infer(dict(feed), share_inputs=True)
        return [np.array(found[output]) for output in self._compiled.outputs]

    def bind(self, feed: Mapping[str, Array]) -> Call:
        """A call with these inputs."""
        given = dict(feed)

        def call() -> None:
            self._request.infer(given, share_inputs=True)

        return call


def _product(template: Template[Gemm, Any], shape: tuple[int, int, int], target: Target, rounds: int) -> Ratio:
    plain = Gemm(*shape)
    calls = {
        "wide": _calls(GEMM, plain, target), "ours": _calls(template, replace(plain, arithmetic="rounded"), target)
    }  # fmt: skip
    taken = readings(calls, rounds)
    return ratio(taken["wide"], taken["ours"])


def _calls(template: Template[Gemm, Any], problem: Gemm, target: Target) -> Calls:
    """Several products with weights of their own."""
    kernel, generator = template.kernel(problem, target), np.random.default_rng(0)
    a, c = aligned(problem.rows * problem.depth), aligned(problem.rows * problem.columns)
    a[:] = generator.standard_normal(a.size)
    weights = generator.standard_normal((problem.depth, problem.columns)).astype(np.float32)
    packing = kernel.operand("b").packing
    assert packing is not None, "constant weights are packed"
    packed = packing.pack(weights)
    runs = []
    for _ in range(COPIES):
        own = aligned(packed.size, packed.dtype)
        own[:] = packed
        runs.append((kernel, {"a": a, "b": own, "c": c}))
    return Executable([kernel]).calls(runs)


def _cells(line: Line) -> tuple[str | float, ...]:
    apart = " (apart)" if line.is_apart else " (short)" if line.wide_ms < SHORT else ""
    peer = "-" if line.beside is None else _interval(line.beside)
    errors = f"{line.error:.1e}", f"{line.peer_error:.1e}"
    return (line.model + apart, line.wide_ms, line.ours_ms, _interval(line.faster), peer, *errors, line.regions)


def _interval(one: Ratio) -> str:
    return f"{one.median:.2f} ({one.low:.2f} to {one.high:.2f})"


def _shape(shape: tuple[int, int, int]) -> str:
    return "x".join(map(str, shape))


if __name__ == "__main__":
    main(measure)
