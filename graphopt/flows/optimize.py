"""`optimize`: a better model that was checked equal to the first."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from graphopt.check.given import Feeds, read_feeds
from graphopt.check.relaid import relaid_fault
from graphopt.errors import OptionError
from graphopt.flows.inspect import count_flops
from graphopt.flows.result import OptimizeResult
from graphopt.flows.source import read, resize
from graphopt.lazy import Lazy
from graphopt.memory.share import read_budget
from graphopt.model.census import file_bytes
from graphopt.model.dimensions import DimValue
from graphopt.model.load import Source
from graphopt.model.relayout import relayout
from graphopt.model.save import data_files
from graphopt.model.signature import signature_of
from graphopt.model.tensors import tensors_of
from graphopt.model.text import Progress, silent
from graphopt.passes import pipeline
from graphopt.passes.layout.images import images
from graphopt.passes.layout.kept import kept_transposes
from graphopt.rewrite.optimizer import optimize_verified

if TYPE_CHECKING:
    from graphopt.memory import budget as budgets
else:
    budgets = Lazy("graphopt.memory.budget")  # its planners are heavy, and few ask for a budget

DEFAULT_LEVEL = 2
DEFAULT_VERIFY_SECONDS = 300.0


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
    memory_budget: int | str | None = None,
    measure: bool = True,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
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
    `memory_budget` in bytes ("40MiB"), or a share of the best order's arena ("50%"): nodes are ordered, values computed
    again or in tiles, so that temporaries and outputs fit an arena of that size in file order; the outputs are the same
    bit for bit. With `measure` the heap of ONNX Runtime is counted too, and kept within the budget under the options
    that `session()` of the result sets.
    `feeds` are compared besides the seeded ones: a mapping of arrays by input name, a .npz file, a folder of these or
    of ONNX test data sets, or several of them; arrays named as outputs are what the model is expected to give.
    `tolerance` is a relative difference that takes the place of the types' allowances and of the model's own rounding.
    `stop_after` cuts the run after that many rewrites. A rewrite that the check objects to is rolled back and listed;
    the result is correct all the same.

    Raises ModelError for a model that cannot be worked on, OptionError for a request that does not fit it.
    """
    _check_options(level, skip, target, layout)
    budget = read_budget(memory_budget)
    request = pipeline.Request(level, frozenset(skip), target, opset, inline, layout, layout_functions)
    original, fixed = read(source, values, fix_defaults=fix_defaults)
    loaded_signature = signature_of(original)
    if shapes or dims:
        resize(original, shapes or {}, dims or {}, verify=verify)
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
    if budget is not None:
        budgeted = budgets.keep_budget(
            outcome.model, budget, verify_seconds=verify_seconds if verify else None, measure=measure,
            progress=progress or silent,
        )  # fmt: skip
    model = outcome.model if budgeted is None else budgeted.model
    return OptimizeResult(
        request=request,
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
    """The bytes of the input where it came as a path or bytes, external data included."""
    if not isinstance(source, (str, os.PathLike, bytes, bytearray, memoryview)):
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
        raise OptionError(f"level {level!r} does not exist; levels are 0 to 3.")
    if target not in pipeline.TARGET_NAMES:
        raise OptionError(f"there is no target '{target}'; targets are {', '.join(pipeline.TARGET_NAMES)}.")
    if layout is not None and layout not in pipeline.LAYOUT_NAMES:
        raise OptionError(f"there is no layout '{layout}'; layouts are {', '.join(pipeline.LAYOUT_NAMES)}.")
    if isinstance(skip, str):
        raise OptionError(f"skip is a sequence of names such as ('{skip}',), not a text.")
    known = set(pipeline.names()) | {rule.name for rule in pipeline.rules()}
    for name in skip:
        if name not in known:
            raise OptionError(f"there is no pass or rule '{name}' to skip; passes are {', '.join(pipeline.names())}.")
