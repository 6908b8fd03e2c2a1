"""The search: measure each node in each form, choose, write the model, and hold it to the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal, get_args

import onnx

from graphopt.check.feeds import Feed
from graphopt.errors import OptionError
from graphopt.model.text import Progress
from graphopt.quantization.apply import Ranges, quantized
from graphopt.quantization.calibration import ranges_of
from graphopt.quantization.choice import choice_of, furthest, steps_of
from graphopt.quantization.errors import Array, Error, error_of
from graphopt.quantization.formats import BITS, RANGES, Candidate, Choice, Form, FormatName, Measured, Options
from graphopt.quantization.graph import BLOCK, Graph
from graphopt.quantization.latency import Alone, Latency, Timed, alone
from graphopt.quantization.simulation import Simulation, session_of

Aim = Literal["latency", "size"]
AIMS: tuple[Aim, ...] = get_args(Aim)
RUNS = 256  # of the simulation, in which nodes are measured alone; each has one at least
# Whole models count what nodes alone do not: choices without a format are measured beside the one of all.
LEFT_OUT: tuple[FormatName | None, ...] = (None, "static", "dynamic")
SHARES = (1.0, 0.9, 0.75, 0.5)  # of the budget that simulated errors may take, one after the other


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked of the search. `calibrated` is empty without data."""

    proto: onnx.ModelProto  # named nodes, known types
    calibrated: Sequence[Feed]
    held_out: Sequence[Feed]  # on which errors are measured
    formats: Sequence[FormatName]
    aim: Aim
    budget: float
    latency: Latency
    progress: Progress


@dataclass(frozen=True, slots=True)
class Found:
    """A quantized model that keeps the budget."""

    proto: onnx.ModelProto
    options: tuple[Options, ...]  # of every candidate
    choice: Choice
    carriers: frozenset[str]
    error: Error
    before: tuple[float, ...]  # seconds of a run, readings by turns with `after`
    after: tuple[float, ...]

    @property
    def relative(self) -> float:
        """The time of a run in shares of that in float32."""
        return median(self.after) / median(self.before)


def search(task: Task) -> Found:
    """The model of least latency, or of fewest bytes, whose error keeps the budget.

    Raises OptionError where there is nothing to quantize, nothing keeps the budget, or nothing is gained.
    """
    graph = Graph(task.proto)
    formats = [one for one in task.formats if one != "static" or task.calibrated]
    candidates = graph.candidates(formats)
    if not candidates:
        raise OptionError(_nothing(graph, task))
    ranges: Ranges = {}
    if any("static" in one.formats for one in candidates):
        task.progress("calibrating")
        ranges = {one: ranges_of(task.proto, task.calibrated, one) for one in RANGES}
    costs = _sizes(graph, candidates) if task.aim == "size" else _latencies(graph, candidates, ranges, task)
    worthwhile = {one.name: _cheaper(one, costs[one.name]) for one in candidates}
    forms = sum(map(len, worthwhile.values()))
    feeds = task.held_out[: max(RUNS // max(forms, 1), 1)]
    simulation = Simulation(task.proto, candidates, ranges, feeds)
    options = []
    for number, one in enumerate(candidates):
        task.progress(f"measuring errors of nodes, {number + 1} of {len(candidates)}")
        errors = {form: simulation.error({one.name: form}).rms for form in worthwhile[one.name]}
        measured = (
            Measured(form, errors.get(form), costs[one.name][form.format])
            for form in forms_of(one)
            if form.format in costs[one.name]
        )
        options.append(Options(one, costs[one.name][None], tuple(measured)))
    if not steps_of(options):
        raise OptionError(
            f"no product or convolution is {'smaller' if task.aim == 'size' else 'faster'} in "
            f"{', '.join(formats)} than in float32 here; nothing was quantized."
        )
    whole = Whole(task, tuple(options), ranges)
    ways = [_within(task, whole, simulation, _without(options, left_out)) for left_out in LEFT_OUT]
    kept = [found for found in ways if found is not None]
    if not kept:
        least = min(each.error for one in options for each in one.measured if each.error is not None)
        raise OptionError(
            f"no choice keeps the error within {task.budget:g}: the node that is least off alone is off by "
            f"{least:.1e}; give a larger budget_error."
        )
    found = min(kept, key=lambda one: one.relative)
    if task.aim == "latency" and found.relative >= 1:
        raise OptionError(
            f"the quantized model is not faster here: {1e3 * median(found.after):.2f} ms for "
            f"{1e3 * median(found.before):.2f} ms; nothing was quantized. Where size is the aim, give --minimize size."
        )
    return found


def _without(options: Sequence[Options], left_out: FormatName | None) -> list[Options]:
    """The options but for those of one format."""
    return [
        replace(one, measured=tuple(each for each in one.measured if each.form.format != left_out)) for one in options
    ]


def _within(task: Task, whole: Whole, simulation: Simulation, options: Sequence[Options]) -> Found | None:
    """The best of these options within the budget, made again for less of it where it is further off than simulated."""
    steps = steps_of(options)
    known = {0: 0.0}

    def simulated(count: int) -> float:
        task.progress("measuring errors of choices")
        if count not in known:
            known[count] = simulation.error(choice_of(steps[:count])).rms
        return known[count]

    tried = {0}
    for share in SHARES:
        count = furthest(steps, simulated, share * task.budget)
        if count not in tried:
            tried.add(count)
            found = whole.best(choice_of(steps[:count]))
            if found is not None:
                return found
    return None


class Whole:
    """Whole models, measured beside the one in float32."""

    def __init__(self, task: Task, options: tuple[Options, ...], ranges: Ranges) -> None:
        self._task, self._options, self._ranges = task, options, ranges
        self._graph = Graph(task.proto)
        self._wanted = outputs_of(task.proto, task.held_out)
        self._known: dict[frozenset[tuple[str, Form]], Found | None] = {}

    def best(self, choice: Choice) -> Found | None:
        """The faster one of operators between in bytes or in floats; None where both are too far off."""
        key = frozenset(choice.items())
        if key not in self._known:
            self._known[key] = self._measured(choice)
        return self._known[key]

    def _measured(self, choice: Choice) -> Found | None:
        task, candidates = self._task, [one.candidate for one in self._options]
        carriers = self._graph.carriers([one for one in candidates if _is_static(choice, one)])
        task.progress("writing the model")
        models = {
            way: quantized(task.proto, candidates, choice, self._ranges, way)
            for way in dict.fromkeys((carriers, frozenset[str]()))
        }
        errors = {way: self.error(proto) for way, proto in models.items()}
        kept = {way: proto for way, proto in models.items() if errors[way].rms <= task.budget}
        if not kept:
            return None
        task.progress("measuring the model")
        feed = task.held_out[0]
        before, *after = task.latency([Timed(one, feed) for one in (task.proto, *kept.values())])
        taken = dict(zip(kept, after, strict=True))
        fastest = min(kept, key=lambda way: median(taken[way]))
        return Found(
            kept[fastest], self._options, choice, fastest, errors[fastest], tuple(before), tuple(taken[fastest])
        )  # fmt: skip

    def error(self, proto: onnx.ModelProto) -> Error:
        """The larger one of ONNX Runtime with its optimizations and without them."""
        found = [error_of(self._wanted, outputs_of(proto, self._task.held_out, optimized=way)) for way in (True, False)]
        return Error(max(one.rms for one in found), max(one.largest for one in found))


def outputs_of(proto: onnx.ModelProto, feeds: Sequence[Feed], *, optimized: bool = True) -> list[list[Array]]:
    """What ONNX Runtime gives on each feed."""
    session = session_of(proto, optimized=optimized)
    return [list(session.run(None, dict(feed))) for feed in feeds]


def forms_of(one: Candidate) -> tuple[Form, ...]:
    """The forms that a candidate may take: a static one by each calibration."""
    static = [Form("static", ranges) for ranges in RANGES] if "static" in one.formats else []
    return (*static, *(Form(format) for format in one.formats if format != "static"))


def _is_static(choice: Choice, one: Candidate) -> bool:
    return one.name in choice and choice[one.name].format == "static"


Costs = Mapping[FormatName | None, float]  # None: as it is


def _cheaper(one: Candidate, costs: Costs) -> tuple[Form, ...]:
    """The forms in which a candidate costs less than in float32."""
    return tuple(form for form in forms_of(one) if costs.get(form.format, costs[None]) < costs[None])


def _sizes(graph: Graph, candidates: Sequence[Candidate]) -> dict[str, Costs]:
    """Bytes of weights in each format, their scales and zero points among them."""
    found: dict[str, Costs] = {}
    for one in candidates:
        elements = 1
        for dim in graph.weights[one.weights].dims:
            elements *= dim
        costs: dict[FormatName | None, float] = {None: 4.0 * elements}
        for name in one.formats:
            bits = BITS.get(name)
            costs[name] = elements if bits is None else elements * (bits + (32 + bits) / BLOCK) / 8
        found[one.name] = costs
    return found


def _latencies(graph: Graph, candidates: Sequence[Candidate], ranges: Ranges, task: Task) -> dict[str, Costs]:
    """Seconds in each format; nodes of equal work are measured once. Those of unknown dims have no other format."""
    dims = dims_of(task.proto, task.held_out[0])
    known: dict[tuple[object, ...], Costs] = {}
    found: dict[str, Costs] = {}
    for number, one in enumerate(candidates):
        task.progress(f"measuring latencies of nodes, {number + 1} of {len(candidates)}")
        single = alone(graph, one, candidates, dims)
        if single is None:
            found[one.name] = {None: 0.0}
            continue
        if single.key not in known:
            known[single.key] = _latency(single, ranges, task.latency)
        found[one.name] = known[single.key]
    return found


def _latency(single: Alone, ranges: Ranges, latency: Latency) -> Costs:
    forms = {form.format: form for form in reversed(forms_of(single.candidate))}
    taken = latency([single.in_float(), *(single.in_form(form, ranges) for form in forms.values())])
    return dict(zip((None, *forms), map(median, taken), strict=True))


def dims_of(proto: onnx.ModelProto, feed: Feed) -> dict[str, tuple[int, ...]]:
    """The dims of all values of which they are known once the inputs have those of a feed."""
    sized = onnx.ModelProto()
    sized.CopyFrom(proto)
    del sized.graph.value_info[:]
    for value in sized.graph.input:
        if value.name in feed:
            value.type.tensor_type.ClearField("shape")
            for size in getattr(feed[value.name], "shape", ()):
                value.type.tensor_type.shape.dim.add().dim_value = size
    for value in sized.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(sized, data_prop=True).graph
    found = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = tuple(dim.dim_value for dim in dims)
    return found


def _nothing(graph: Graph, task: Task) -> str:
    """Why there is no candidate."""
    convolutions = len(graph.candidates(["static"]))
    if convolutions and not task.calibrated and "static" in task.formats:
        return (
            "without calibration data only products can be quantized, and no MatMul or Gemm has constant weights of "
            "two dims in float32; its convolutions need ranges of activations: give samples with --data."
        )
    return f"no product or convolution in float32 with constant weights can be {' or '.join(task.formats)}."
