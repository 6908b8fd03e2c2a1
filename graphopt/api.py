"""The Python interface: optimize, compile, memory, schedule, verify, load, simplify."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from graphopt.check import divergence, reference
from graphopt.check.divergence import Divergence
from graphopt.check.given import Feeds, read_feeds
from graphopt.check.relaid import relaid_fault
from graphopt.check.runner import CannotRun
from graphopt.check.samples import freed_fault
from graphopt.check.verification import Verification
from graphopt.errors import GraphoptError, OptionError, VerificationError
from graphopt.memory.budget import keep_budget
from graphopt.model.census import Census, census, file_bytes
from graphopt.model.dimensions import DimValue, change_dims
from graphopt.model.fixing import fix_inputs
from graphopt.model.load import Source, load
from graphopt.model.relayout import relayout
from graphopt.model.save import data_files
from graphopt.model.signature import signature_of
from graphopt.model.tensors import tensors_of
from graphopt.passes import pipeline
from graphopt.passes.layout.images import images
from graphopt.passes.layout.kept import kept_transposes
from graphopt.program.deploy.compiled import Compiled, compile_model
from graphopt.refusals import with_our_errors
from graphopt.report.inspection import count_flops
from graphopt.report.memory.assemble import MemoryReport, Order, memory_report
from graphopt.report.memory.tiers import TierMode
from graphopt.report.schedule.assemble import ScheduleReport, schedule_report
from graphopt.result import OptimizeResult
from graphopt.rewrite.optimizer import optimize_verified
from kernels.target import TargetName, named
from memplan.tiers.machine import machine
from scheduler.device import device as find_device

DEFAULT_LEVEL = 2
DEFAULT_VERIFY_SECONDS = 300.0
DEFAULT_SCHEDULE_WORK = 7_500_000  # blocks placed: about five seconds of searching


@with_our_errors
def optimize(
    source: Source,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimValue] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    level: int = DEFAULT_LEVEL,
    target: pipeline.Target = "standard",
    opset: int | None = None,
    inline: bool = False,
    layout: pipeline.Layout | None = None,
    layout_functions: bool = True,
    skip: Sequence[str] = (),
    stop_after: int | None = None,
    verify: bool = True,
    verify_seconds: float = DEFAULT_VERIFY_SECONDS,
    details: bool = False,
    memory_budget: int | None = None,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> OptimizeResult:
    """A better model that was checked equal to `source`.

    `shapes` fixes inputs' shapes, `dims` fixes a symbolic dim (`{"batch": 1}`) or frees a fixed one (`{"batch": "N"}`).
    `values` fixes inputs at constants (`{"sr": 16000}`), `fix_defaults` those that have defaults.
    `level`: 0 clean-up, 1 folding and algebra, 2 weight folding and fusion, 3 what may change rounding. `target`:
    "standard" writes operators of the model's opset only, "ort" may use those of com.microsoft that the installed
    ONNX Runtime has. `opset` lifts the model to a newer opset first; without it the opset stays. `inline` inlines
    model-local functions. `layout` turns images at inputs and outputs, and everything between, to "nhwc" or "nchw";
    with `layout_functions` operators of that layout are model-local functions. `skip` names passes or rules.
    `details` adds what a report shows: sketches of the first rewrites of each rule, and flops.
    `memory_budget` in bytes: nodes are ordered, values computed again or in tiles, so that temporaries and outputs fit
    an arena of that size in file order; the outputs are the same bit for bit.
    `feeds` are compared besides the seeded ones: a mapping of arrays by input name, a .npz file, a folder of these or
    of ONNX test data sets, or several of them; arrays named as outputs are what the model is expected to give.
    `tolerance` is a relative difference that takes the place of the types' allowances and of the model's own rounding.
    `stop_after` cuts the run after that many rewrites. A rewrite that the check objects to is rolled back and listed;
    the result is correct all the same.

    Raises ModelError for a model that cannot be worked on, OptionError for a request that does not fit it.
    """
    _check_options(level, skip, target, layout)
    request = pipeline.Request(level, frozenset(skip), target, opset, inline, layout, layout_functions)
    original, fixed = _given(source, values, fix_defaults)
    loaded_signature = signature_of(original)
    if shapes or dims:
        freed = any(not isinstance(size, int) and not size.isdigit() for size in (dims or {}).values())
        before = original.clone() if freed else original
        change_dims(original, shapes or {}, dims or {})
        if freed and verify:
            fault = freed_fault(before, original)
            if fault is not None:
                raise OptionError(f"the dim cannot be freed: {fault}")
    turned = () if layout is None else _relay(original, layout, verify)
    started = time.perf_counter()
    outcome = optimize_verified(
        original,
        pipeline.stages(request),
        stop_after=stop_after,
        seconds=verify_seconds if verify else None,
        most_bytes=_most_bytes(source, original, request),
        progress=progress,
        sketches=details,
        given=read_feeds(original, feeds),
        tolerance=tolerance,
    )
    total = time.perf_counter() - started
    seconds = sum(record.seconds for record in outcome.passes)
    budgeted = None
    if memory_budget is not None:
        budgeted = keep_budget(
            outcome.model, memory_budget, verify_seconds=verify_seconds if verify else None,
            tell=progress or (lambda text: None),
        )  # fmt: skip
    model = outcome.model if budgeted is None else budgeted.model
    return OptimizeResult(
        model=model,
        original=original,
        original_bytes=_bytes_read(source, original),
        seconds=seconds,
        verify_seconds=max(total - seconds, 0.0) if verify else 0.0,
        passes=outcome.passes,
        rewrites=outcome.log,
        rolled_back=outcome.rolled_back,
        flops=(count_flops(original), count_flops(model)) if details else None,
        verification=outcome.verification,
        signature=signature_of(model),
        signature_changes=(*fixed, *loaded_signature.differences(signature_of(model)), *turned),
        kept_transposes=() if layout is None else kept_transposes(model),
        source=Path(source) if isinstance(source, (str, os.PathLike)) else None,
        source_data=data_files(original),
        budgeted=budgeted,
    )


def _given(source: Source, values: Mapping[str, object] | None, fix_defaults: bool) -> tuple[ir.Model, tuple[str, ...]]:
    """The model with the inputs that the caller fixes as constants, and a sentence for each of them."""
    model = load(source)
    return model, fix_inputs(model, values or {}, defaults=fix_defaults)


def _relay(model: ir.Model, layout: pipeline.Layout, verify: bool) -> tuple[str, ...]:
    """Give the images among inputs and outputs the layout; raises OptionError where the model then differs.

    Returns a sentence for each change that the declared dims do not show, because they are the same in either layout.
    """
    change = images(model, layout)
    if not change:
        return ()
    before = model.clone() if verify else model
    was = signature_of(model)
    relayout(model, change)
    now = signature_of(model)
    silent = [
        f"{kind} {new} is {layout} now"
        for kind, places, olds, news in (
            ("input", change.inputs, was.inputs, now.inputs),
            ("output", change.outputs, was.outputs, now.outputs),
        )
        for place, (old, new) in enumerate(zip(olds, news, strict=True))
        if place in places and old == new
    ]
    if verify:
        fault = relaid_fault(before, model, change)
        if fault is not None:
            raise OptionError(f"the layout cannot be changed to {layout}: {fault}")
    return tuple(silent)


def _bytes_read(source: Source, original: ir.Model) -> int | None:
    """The bytes of the input where it came as a file or bytes, external data included."""
    if isinstance(source, (ir.Model, onnx.ModelProto)):
        return None
    external = sum(tensor.nbytes for tensor in tensors_of(original) if isinstance(tensor, ir.ExternalTensor))
    own = len(source) if isinstance(source, (bytes, bytearray, memoryview)) else Path(source).stat().st_size
    return own + external


def _most_bytes(source: Source, original: ir.Model, request: pipeline.Request) -> int | None:
    """The bytes that the result may take: those of the input, unless the caller asks for what may take more."""
    if request.level > DEFAULT_LEVEL or request.opset is not None or request.inline or request.layout is not None:
        return None
    return min(_bytes_read(source, original) or sys.maxsize, file_bytes(original))


def _check_options(level: int, skip: Sequence[str], target: str, layout: str | None) -> None:
    if level not in (0, 1, 2, 3):
        raise OptionError(f"level {level} does not exist; levels are 0 to 3.")
    if target not in pipeline.TARGET_NAMES:
        raise OptionError(f"there is no target '{target}'; targets are {', '.join(pipeline.TARGET_NAMES)}.")
    if layout is not None and layout not in pipeline.LAYOUT_NAMES:
        raise OptionError(f"there is no layout '{layout}'; layouts are {', '.join(pipeline.LAYOUT_NAMES)}.")
    known = set(pipeline.names()) | {rule.name for rule in pipeline.rules()}
    for name in skip:
        if name not in known:
            raise OptionError(f"there is no pass or rule '{name}' to skip; passes are {', '.join(pipeline.names())}.")


@with_our_errors
def verify(
    first: Source,
    second: Source,
    *,
    seconds: float = DEFAULT_VERIFY_SECONDS,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
) -> Verification:
    """Compare two models with the same inputs and outputs on seeded feeds.

    `feeds` and `tolerance` are those of `optimize`.
    """
    one, other = _comparable(first, second)
    return reference.verify(one, other, seconds, given=read_feeds(one, feeds), tolerance=tolerance)


@with_our_errors
def first_divergence(
    first: Source,
    second: Source,
    *,
    seconds: float = DEFAULT_VERIFY_SECONDS,
    progress: Callable[[str], None] | None = None,
) -> Divergence | None:
    """The first value named in both models, in the order of `first`, that differs; None when there is none."""
    try:
        return divergence.first_divergence(*_comparable(first, second), seconds, progress)
    except CannotRun as error:
        raise VerificationError(
            f"the values inside the two models cannot be compared: {error}; compare the models without them."
        ) from error


def _comparable(first: Source, second: Source) -> tuple[ir.Model, ir.Model]:
    """Both models, after a look at whether they take and give the same."""
    one, other = load(first), load(second)
    for kind, left, right in (
        ("inputs", one.graph.inputs, other.graph.inputs),
        ("outputs", one.graph.outputs, other.graph.outputs),
    ):
        names, other_names = [value.name for value in left], [value.name for value in right]
        if names != other_names:
            raise OptionError(f"the models cannot be compared: their {kind} are {names} and {other_names}.")
    return one, other


@with_our_errors
def compile(  # the builtin of this name is not used here
    source: Source,
    *,
    target: TargetName = "host",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimValue] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    exact: bool = False,
    memory_budget: int | None = None,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
) -> Compiled:
    """A native program for one size of every dim, compared with ONNX Runtime without optimizations.

    The result runs like ONNX Runtime's session (`run(None, feeds)`), or by keywords (`program(x=array)` gives a dict),
    and `save(folder)` writes a bundle that needs no Python. `target`: "host", "x86-64-v3", "x86-64-v4", "aarch64"; a
    program for a processor that this machine is not runs in QEMU for the comparison; where there is none,
    `not_compared` of the result says why, and `save` asks for `unchecked=True`. `exact` leaves out kernels that round
    otherwise than a plain sum does: Winograd's convolutions. `memory_budget` in bytes is what the arena of temporaries
    may take; some kernels then run again, or in tiles. `values` fixes inputs at constants. Inputs with defaults are
    constants of every program, so that `fix_defaults` says nothing new. `feeds` and `tolerance` as for `optimize`.

    Operators that have no kernel run in ONNX Runtime, from Python only: `fallback` of the result lists them, and `save`
    then refuses with their names.

    Raises ModelError for a model that cannot be worked on, OptionError for a request that does not fit it, NotLowered
    naming the operators when none has a kernel, VerificationError when the program does not give what the model gives.
    """
    original, _ = _given(source, values, fix_defaults=True)
    return compile_model(
        original, target=target, shapes=shapes, dims=dims, exact=exact, memory_budget=memory_budget, feeds=feeds,
        tolerance=tolerance,
    )  # fmt: skip


@with_our_errors
def memory(
    source: Source,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    order: Order = "given",
    budget: int | None = None,
    tiers: str | os.PathLike[str] | None = None,
    tier_mode: TierMode = "sync",
    what_if: Mapping[str, Sequence[int]] | None = None,
    points: int = 0,
    progress: Callable[[str], None] | None = None,
) -> MemoryReport:
    """How much memory a model's tensors need, where they live in one arena, and what would save some.

    `values` fixes inputs at constants (`{"sr": 16000}`), `fix_defaults` those that have defaults.
    `order`: "given" as in the file, or "best". `budget` in bytes: by order, and recomputing or tiles where that is not
    enough. `tiers`: a machine file or the name of a preset. `what_if`: values of dims to plan besides. `points` plans
    of memory against time are added to the record. Sizes count temporaries and outputs, not weights and inputs.

    Raises ModelError for a model that cannot be worked on, OptionError for dims without a value, a budget that no plan
    keeps (saying the least that was found), and tiers that cannot hold the model.
    """
    name = Path(source).name if isinstance(source, (str, os.PathLike)) else "model"
    return memory_report(
        _given(source, values, fix_defaults)[0],
        name,
        shapes=shapes or {},
        dims=dims or {},
        order=order,
        budget=budget,
        machine=None if tiers is None else machine(os.fspath(tiers)),
        tier_mode=tier_mode,
        what_if=what_if,
        points=points,
        tell=progress or (lambda text: None),
    )


@with_our_errors
def schedule(
    source: Source,
    *,
    device: str | os.PathLike[str],
    policy: str = "best",
    target: TargetName = "host",
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    work: int = DEFAULT_SCHEDULE_WORK,
    progress: Callable[[str], None] | None = None,
) -> ScheduleReport:
    """A model's regions on the workers of a device: simulated makespans by policy, bounds, and a verified program.

    `device`: "h200", "v100", "cpu:2" or a machine file. `target` is the processor that regions are lowered for.
    `values` fixes inputs at constants; inputs with defaults are always constants of a program, so that `fix_defaults`
    says nothing new. `work`, in blocks placed, is for each schedule. Schedule and memory are planned together.

    Raises ModelError for a model that cannot be worked on, OptionError for dims without a value, an unknown device, and
    work that does not fit it.
    """
    name = Path(source).name if isinstance(source, (str, os.PathLike)) else "model"
    return schedule_report(
        _given(source, values, fix_defaults=True)[0],
        name,
        find_device(os.fspath(device)),
        named(target),
        shapes=shapes or {},
        dims=dims or {},
        policy=policy,
        work=work,
        tell=progress or (lambda text: None),
    )


def simplify(model: Source, **options: object) -> tuple[onnx.ModelProto, bool]:
    """What `onnxsim.simplify` gives: the optimized ModelProto and whether it was checked equal.

    Takes onnxsim's `check_n` (0 is the default there; here the check is always made), `overwrite_input_shapes` and
    `test_input_shapes`; other options of onnxsim are refused by name.
    """
    allowed = {"check_n", "overwrite_input_shapes", "test_input_shapes", "perform_optimization", "skip_fuse_bn"}
    unknown = set(options) - allowed
    if unknown:
        raise OptionError(f"simplify does not take {sorted(unknown)}; use graphopt.optimize for everything else.")
    shapes = options.get("overwrite_input_shapes")
    skip = ("weights",) if options.get("skip_fuse_bn") else ()
    level = 1 if options.get("perform_optimization") is False else DEFAULT_LEVEL
    result = optimize(model, shapes=shapes if isinstance(shapes, dict) else None, skip=skip, level=level)
    return result.to_proto(), result.verification.passed


__all__ = [
    "Census",
    "GraphoptError",
    "MemoryReport",
    "OptimizeResult",
    "ScheduleReport",
    "VerificationError",
    "census",
    "load",
    "memory",
    "optimize",
    "schedule",
    "simplify",
    "verify",
]
