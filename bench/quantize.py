"""Bars of `quantize`: error and latency beside what onnxruntime.quantization's defaults give, on generated data.

Each default is a peer: `quantize_static` on the calibration data, and for a model of products `quantize_dynamic` too.
Ours has the least of the peers' errors for a budget, measured on the samples that it holds out of calibration, and
chooses by latency in ONNX Runtime. All models then run on fresh samples, in ONNX Runtime and as programs, one thread,
by turns: ours has to be less off and not slower, or faster and not further off, in ONNX Runtime. Errors are root mean
squares of the difference from the model in float32, in shares of the output's.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import quantize_dynamic, quantize_static

import graphopt
import models
from bench.bar import Bar, Sheet
from bench.kernels.timing import Array, Peer, Ratio, pin, ratio, readings, unpin
from bench.peers import OURS
from bench.script import main
from bench.zoo import model_file
from graphopt.check.feeds import make_feed
from graphopt.check.inputs import inputs_of
from graphopt.flows.calibrating import parted
from graphopt.flows.source import resize
from graphopt.quantization.calibration import Reader, quiet
from graphopt.quantization.errors import Error, error_of
from graphopt.quantization.search import outputs_of

ISSUE = 25
NAMES = ("resnet18", "mobilenet_v2", "bert_base")
ROUNDS, QUICK_ROUNDS = 15, 5
SAMPLES, FRESH = 16, 8
WORDS = 1000  # of a vocabulary, of which ids are drawn
NEAR = 0.97  # of the peer's time: as fast, but for the noise of a reading

Feed = dict[str, object]
Make = Callable[[Path, Path, Sequence[Feed]], None]


@dataclass(frozen=True, slots=True)
class Line:
    """Ours beside one default of the peer's, on one model."""

    model: str
    peer: str
    ours: Error
    theirs: Error
    faster: Ratio  # the peer's time by ours in ONNX Runtime
    milliseconds: tuple[float, float]  # ours, the peer's
    programs: tuple[float, float]  # of programs, in milliseconds: ours, the peer's
    whole: bool  # whether the program of ours has no other part
    quantized: str  # nodes of all

    @property
    def is_met(self) -> bool:
        """Less off and as fast, or faster and not further off."""
        less_off = self.ours.rms < self.theirs.rms and self.faster.high >= 1 and self.faster.median >= NEAR
        return less_off or (self.ours.rms <= self.theirs.rms and self.faster.low > 1)


def measure(sheet: Sheet, *, data: Path | None = None, quick: bool = False, optimizer: str = OURS) -> list[Bar]:
    """One row for each model and each default."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    lines = [line for name in NAMES[: 2 if quick else None] for line in model_lines(name, rounds)]
    columns = ("model", "peer", "nodes", "our error", "its error", "our ms", "its ms", "its / our time", "program ms",
               "of its model", "whole")  # fmt: skip
    sheet.table("quantized models, one thread; errors on fresh samples", columns, [_cells(line) for line in lines])
    met = sum(line.is_met for line in lines)
    least = min(line.theirs.rms / line.ours.rms for line in lines)
    fastest = min(line.faster.median for line in lines)
    figure = f"{met} of {len(lines)}; the least: {least:.2f} x less error, {fastest:.2f} x faster"
    text = f"quantize beside onnxruntime.quantization's defaults ({', '.join(dict.fromkeys(x.model for x in lines))})"
    return [Bar(ISSUE, 5, text, "less error or less latency, on each", figure, met == len(lines))]


def model_lines(name: str, rounds: int) -> list[Line]:
    """One model beside each default."""
    source = model_file(name)
    samples = samples_of(name, SAMPLES + FRESH)
    calibration, fresh = samples[:SAMPLES], samples[SAMPLES:]
    model = graphopt.load(source)
    if models.sizes(name):
        resize(model, {}, models.sizes(name))
    original = graphopt.optimize(model).to_proto()
    held_out = parted(calibration)[1]
    wanted = {key: outputs_of(original, feeds) for key, feeds in (("held out", held_out), ("fresh", fresh))}
    peers: dict[str, Make] = {"quantize_static": _static}
    if not any(node.op_type == "Conv" for node in original.graph.node):
        peers["quantize_dynamic"] = _dynamic
    unpin()
    written = {peer: _written(make, source, calibration) for peer, make in peers.items()}
    budget = min(error_of(wanted["held out"], outputs_of(one, held_out)).rms for one in written.values())
    result = graphopt.quantize(source, list(calibration), budget_error=budget, dims=models.sizes(name))
    written[OURS] = result.to_proto()
    errors = {side: error_of(wanted["fresh"], outputs_of(one, fresh)) for side, one in written.items()}
    sizes = models.sizes(name)
    programs = {side: graphopt.compile(one, dims=sizes, threads=1, tune=0) for side, one in written.items()}
    pin()
    feed = {key: np.asarray(value) for key, value in fresh[0].items()}
    taken = readings({side: Peer(one.SerializeToString(), feed) for side, one in written.items()}, rounds)
    own = readings({side: one.program.bind(feed) for side, one in programs.items() if not one.fallback}, rounds)
    ms, program_ms = ({side: 1e3 * float(np.median(one)) for side, one in group.items()} for group in (taken, own))
    lines = [
        Line(
            name, peer, errors[OURS], errors[peer], ratio(taken[peer], taken[OURS]), (ms[OURS], ms[peer]),
            (program_ms.get(OURS, math.nan), program_ms.get(peer, math.nan)), not programs[OURS].fallback,
            f"{len(result.found.choice)} of {len(result.found.options)}",
        )
        for peer in peers
    ]  # fmt: skip
    del programs, written, result
    gc.collect()
    return lines


def _written(make: Make, source: Path, feeds: Sequence[Feed]) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder, quiet():
        make(source, Path(folder) / "model.onnx", feeds)
        return onnx.load(Path(folder) / "model.onnx")


def samples_of(name: str, count: int) -> list[Feed]:
    """So many feeds: images and features are normal, ids of tokens drawn, masks open."""
    model = graphopt.load(model_file(name))
    if models.sizes(name):
        resize(model, {}, models.sizes(name))
    generator, first = np.random.default_rng(20), make_feed(inputs_of(model), {}, "normal")
    return [{key: _drawn(key, np.asarray(value), generator) for key, value in first.items()} for _ in range(count)]


def _drawn(name: str, like: Array, generator: np.random.Generator) -> Array:
    if like.dtype.kind == "f":
        return generator.standard_normal(like.shape).astype(like.dtype)
    if name.endswith("ids") and "type" not in name:
        return generator.integers(0, WORDS, like.shape).astype(like.dtype)
    return np.ones_like(like)


def _static(source: Path, written: Path, feeds: Sequence[Feed]) -> None:
    quantize_static(source, written, Reader(feeds))


def _dynamic(source: Path, written: Path, feeds: Sequence[Feed]) -> None:
    quantize_dynamic(source, written)


def _cells(line: Line) -> tuple[str | float | bool, ...]:
    faster = f"{line.faster.median:.2f} ({line.faster.low:.2f} to {line.faster.high:.2f})"
    errors = tuple(f"{one.rms:.4f} (largest {one.largest:.4f})" for one in (line.ours, line.theirs))
    return (line.model, line.peer, line.quantized, *errors, *line.milliseconds, faster, *line.programs, line.whole)


if __name__ == "__main__":
    main(measure)
