"""What a target, a form or a precision cannot do, refused by a sentence before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from graphopt.errors import OptionError
from graphopt.machine.record import MachineRecord
from graphopt.program.core import with_core
from graphopt.program.make import Form
from kernels.target import Target, TargetName, named
from kernels.templates.dots.product_choice import are_faster
from kernels.units.write import has_unit


def require_plain(targets: Sequence[TargetName], budget: bool, caches: bool, form: Form) -> None:
    """Raise OptionError for what programs of GPUs do not have."""
    if len(targets) > 1:
        raise OptionError("a bundle for a GPU holds code for one target; compile for each by itself.")
    if budget:
        raise OptionError("a memory budget is kept by programs of processors; leave it out for a GPU.")
    if caches:
        raise OptionError("outputs of programs of GPUs have memory of their own; leave out the caches.")
    if form != "bundle":
        raise OptionError("ONNX Runtime loads no custom operators of GPUs; leave out the form.")


def require_bare(targets: Sequence[TargetName], threads: int, form: Form) -> None:
    """Raise OptionError for what programs of microcontrollers do not have."""
    if len(targets) > 1:
        raise OptionError("a library for a microcontroller holds code for one target; compile for each by itself.")
    if threads > 1:
        raise OptionError(f"a microcontroller has no threads, of which {threads} are asked for; leave out the threads.")
    if form == "onnxruntime":
        raise OptionError("ONNX Runtime does not run on microcontrollers; leave out the form.")


def where_fixed(processor: Target) -> str | None:
    """Where a program has neither files nor free sizes, in words; None: it has."""
    if processor.is_gpu:
        return "on a GPU"
    if processor.architecture.is_bare:
        return "on a microcontroller"
    return "in WebAssembly" if processor.architecture.name == "wasm32" else None


def require_one_program(processor: Target, form: Form, several: bool) -> None:
    """Raise OptionError where weights cannot be read while a program runs."""
    where = where_fixed(processor)
    if where is not None:
        raise OptionError(f"a program {where} reads no files; leave out the budget of the process.")
    if form == "onnxruntime":
        raise OptionError("ONNX Runtime takes memory of its own; leave out the budget of the process, or the form.")
    if several:
        raise OptionError("a budget of the process is kept by a program of one target, and no list of sizes.")


def require_rounding(
    targets: Sequence[TargetName], machine: MachineRecord | str | None, *, exact: bool, ranges: bool, form: Form
) -> None:
    """Raise OptionError where nothing of a program would be rounded."""
    if exact:
        raise OptionError("exact kernels are those of float32; leave out 'exact', or the precision.")
    asked = [with_core(named(one), machine) for one in targets]
    has_units = any(has_unit("bf16", one) for one in asked)
    if has_units and form != "bundle":
        raise OptionError(
            "custom operators are compiled in float32 where there are matrix units; leave out the precision."
        )
    if any(map(are_faster, asked)):
        return
    if not has_units:
        raise OptionError(
            f"{', '.join(targets)}: the processor has no matrix units, and no dot products of bf16 that are faster "
            "than float32; leave out the precision, or compile for x86-64-amx."
        )
    if ranges:
        raise OptionError(
            "matrix units work on one size of every dim, and the processor has no dot products of bf16 that are faster "
            "than float32; leave out the precision, or give dims numbers."
        )
