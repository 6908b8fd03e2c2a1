"""`quantize`: a model whose products and convolutions compute in bytes, each by its measured error and latency."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from graphopt.check.feeds import Feed
from graphopt.check.given import Feeds
from graphopt.check.inputs import inputs_of
from graphopt.check.search import TRIES
from graphopt.check.sizes import first_sizes
from graphopt.check.verification import Verification
from graphopt.errors import OptionError, VerificationError
from graphopt.flows.calibrating import drawn, parted, samples_of
from graphopt.flows.optimize import optimize
from graphopt.flows.records.quantization import FormLine, NodeLine, QuantizationRecord
from graphopt.flows.shown import Shown
from graphopt.flows.source import read, resize
from graphopt.flows.written import Written
from graphopt.lazy import Lazy
from graphopt.model.load import Source, load
from graphopt.model.save import SINGLE_FILE_LIMIT, save, weight_bytes
from graphopt.model.text import Progress, binary_size, silent
from graphopt.quantization.formats import FORMATS, FormatName, Options
from graphopt.quantization.graph import named
from graphopt.quantization.latency import ENGINES, Call, Engine, InOnnxRuntime, Latency, Timed, readings
from graphopt.quantization.search import AIMS, Aim, Found, Task, search
from graphopt.quantization.simulation import session_of

if TYPE_CHECKING:
    from graphopt.flows import compile as compiling
else:
    compiling = Lazy("graphopt.flows.compile")  # its planners are an extra, and few ask for this engine

BUDGET = 0.05  # of the root mean square of an output
OPSET = 13  # the first in which a scale may belong to a channel
FLOAT = "float32"


@dataclass(frozen=True, repr=False)
class QuantizeResult(Shown, Written):
    """A model that computes in bytes where that was measured to pay, within the budget for its error."""

    model: ir.Model
    error: float  # root mean square at the outputs, in shares of theirs, on the data held out of calibration
    found: Found
    engine: Engine
    minimized: Aim
    threads: int
    budget_error: float
    feeds: tuple[int, int]  # to calibrate with, and to measure errors on
    bytes_before: int
    optimized: Verification  # of the model that was quantized, against the source
    source: Path | None

    def __repr__(self) -> str:
        return f"<QuantizeResult {len(self.found.choice)} of {len(self.found.options)} nodes, error {self.error:.1e}>"

    def _record(self) -> QuantizationRecord:
        return self.record()

    def record(self, output: str = "") -> QuantizationRecord:
        """What was chosen, as `--json` prints it."""
        return QuantizationRecord(
            input="" if self.source is None else str(self.source), output=output, engine=self.engine,
            minimized=self.minimized, threads=self.threads, budget_error=self.budget_error, error=self.error,
            largest_error=self.found.error.largest, calibration_feeds=self.feeds[0], error_feeds=self.feeds[1],
            milliseconds_before=1e3 * median(self.found.before), milliseconds=1e3 * median(self.found.after),
            bytes_before=self.bytes_before, bytes=weight_bytes(self.model),
            nodes=tuple(self._line(one) for one in self.found.options), in_bytes=len(self.found.carriers),
            optimized=self.optimized,
        )  # fmt: skip

    def _line(self, one: Options) -> NodeLine:
        unit = 1e3 if self.minimized == "latency" else 1.0
        form = self.found.choice.get(one.candidate.name)
        chosen = next((each for each in one.measured if each.form == form), None)
        return NodeLine(
            name=one.candidate.name, op_type=one.candidate.op_type,
            chosen=FLOAT if chosen is None else str(chosen.form),
            error=0.0 if chosen is None or chosen.error is None else chosen.error,
            cost=unit * (one.cost if chosen is None else chosen.cost), cost_before=unit * one.cost,
            forms=tuple(
                FormLine(form=str(each.form), error=each.error, cost=unit * each.cost) for each in one.measured
            ),
        )  # fmt: skip

    def _figures(self) -> list[tuple[str, ...]]:
        record = self.record()
        return [
            ("nodes", f"{len(self.found.choice):,} of {len(self.found.options):,}"),
            ("error", f"{record.error:.1e}"),
            ("latency", f"{record.milliseconds_before:.2f} ms -> {record.milliseconds:.2f} ms"),
            ("weights", f"{binary_size(record.bytes_before)} -> {binary_size(record.bytes)}"),
        ]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model. Raises SaveError where nothing can be written."""
        save(self.model, path, source=self.source)


def quantize(
    source: Source,
    data: Feeds | None = None,
    *,
    budget_error: float = BUDGET,
    formats: Sequence[FormatName] = FORMATS,
    minimize: Aim = "latency",
    engine: Engine = "onnxruntime",
    threads: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> QuantizeResult:
    """A model whose products and convolutions compute in bytes, each in the form that was measured to pay.

    `data` is what `feeds` are elsewhere, and may hold many samples: arrays with an axis in front of an input's dims, or
    a multiple of its first one. A quarter of the samples is kept out of calibration, and errors are measured on it: the
    root mean square of the difference from the model in float32, in shares of that of the output. The choice is the
    one of least latency in `engine` ("onnxruntime", or "program", our own) on so many `threads`, or with `minimize`
    "size" of fewest bytes, whose error is at most `budget_error`. `formats`: "static" (QuantizeLinear around products
    and convolutions, by ranges of the data), "dynamic" (DynamicQuantizeLinear and MatMulInteger), "int8-weights" and
    "int4-weights" (MatMulNBits). Without data there is no "static", and errors are measured on seeded feeds. The model
    is optimized first; the result runs in ONNX Runtime. `shapes`, `dims` and `values` as in `optimize`.

    Raises OptionError where nothing can be quantized, nothing keeps the budget, or nothing is gained, and
    VerificationError for a model that cannot be run.
    """
    latency = InOnnxRuntime(threads) if engine == "onnxruntime" else _InProgram(threads)
    return quantized_by(
        latency, source, data, budget_error=budget_error, formats=formats, minimize=minimize, engine=engine,
        threads=threads, shapes=shapes, dims=dims, values=values, progress=progress,
    )  # fmt: skip


def quantized_by(
    latency: Latency, source: Source, data: Feeds | None, *, budget_error: float, formats: Sequence[FormatName],
    minimize: Aim, engine: Engine = "onnxruntime", threads: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None, dims: Mapping[str, int] | None = None,
    values: Mapping[str, object] | None = None, progress: Progress | None = None,
) -> QuantizeResult:  # fmt: skip
    """The same by latencies that somebody else measures."""
    _check(budget_error, formats, minimize, engine, threads)
    say = progress or silent
    original, _ = read(source, values)
    if shapes or dims:
        resize(original, shapes or {}, dims or {})
    held = weight_bytes(original)
    if held > SINGLE_FILE_LIMIT:
        raise OptionError("the weights take more than 1.9 GB, which ONNX Runtime's quantizers do not read.")
    feeds = None if data is None else samples_of(original, data)
    say("optimizing")
    opset = original.graph.opset_imports.get("", 1)
    better = optimize(original, opset=OPSET if opset < OPSET else None)
    if better.verification.status == "different":
        raise VerificationError(f"no verified model could be made to begin with: {better.verification.reason}")
    proto = _prepared(better.to_proto())
    calibrated, measured = ([], []) if feeds is None else parted(feeds)
    measured = _running(proto, _drawn(original) if feeds is None else [measured])
    feeds_of = [[{name: np.asarray(value) for name, value in one.items()} for one in group]
                for group in (calibrated, measured)]  # fmt: skip
    found = search(
        Task(proto, feeds_of[0], feeds_of[1], tuple(formats), minimize, budget_error, latency, say)  # type: ignore[arg-type]
    )
    return QuantizeResult(
        model=load(found.proto), error=found.error.rms, found=found, engine=engine, minimized=minimize,
        threads=threads, budget_error=budget_error, feeds=(len(calibrated), len(measured)), bytes_before=held,
        optimized=better.verification, source=Path(source) if isinstance(source, (str, os.PathLike)) else None,
    )  # fmt: skip


class _InProgram:
    """Latency of our own programs; what has no kernel runs in ONNX Runtime, and counts with it."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def __call__(self, models: Sequence[Timed]) -> list[list[float]]:
        """Readings of each, round by round."""
        return readings([self._bound(one) for one in models], self._threads)

    def _bound(self, one: Timed) -> Call:
        feed = {name: np.asarray(value) for name, value in one.feed.items()}
        shapes = {name: value.shape for name, value in feed.items()}
        made = compiling.compile(one.proto, shapes=shapes, threads=self._threads)
        if made.fallback:
            return lambda: made.run(None, feed)
        return made.program.bind(feed)


def _drawn(model: ir.Model) -> Iterator[list[Feed]]:
    """Seeded feeds with sizes for dynamic dims, the likeliest first; raises OptionError where none can be drawn."""
    made, refused = False, None
    for sizes in itertools.islice(first_sizes(inputs_of(model)), TRIES):
        try:
            feeds = drawn(model, sizes)
        except OptionError as error:
            refused = refused or error
            continue
        made = True
        yield feeds
    if refused is not None and not made:
        raise refused


def _running(proto: onnx.ModelProto, groups: Iterable[list[Feed]]) -> list[Feed]:
    """The first of some feeds that ONNX Runtime runs the model on; raises VerificationError where there are none."""
    session: ort.InferenceSession | None = None
    failure: Exception | None = None
    for feeds in groups:
        try:
            session = session or session_of(proto)
            session.run(None, dict(feeds[0]))
        except Exception as error:  # those of ONNX Runtime share no base class
            failure = failure or error
            if session is None:
                break
        else:
            return feeds
    raise VerificationError(f"ONNX Runtime does not run the model, which is to be quantized: {failure}") from failure


def _prepared(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The model as quantizers want it: every node with a name, every value with a type."""
    named(proto)
    typed: onnx.ModelProto = onnx.shape_inference.infer_shapes(proto)
    return typed


def _check(budget: float, formats: Sequence[str], aim: str, engine: str, threads: int) -> None:
    if not (math.isfinite(budget) and budget > 0):
        raise OptionError(f"an error cannot stay within {budget:g}; a budget_error of 0.05 allows 5 % of the output.")
    if isinstance(formats, str) or not formats or not set(formats) <= set(FORMATS):
        raise OptionError(f"formats are several of {', '.join(FORMATS)}, not {formats!r}.")
    if aim not in AIMS:
        raise OptionError(f"'{aim}' cannot be minimized; {' or '.join(AIMS)} can.")
    if engine not in ENGINES:
        raise OptionError(f"there is no engine '{engine}'; engines are {' and '.join(ENGINES)}.")
    if threads < 1:
        raise OptionError(f"latency cannot be measured on {threads} threads; 1 is the least.")
