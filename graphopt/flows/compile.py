"""`compile`: a native program of a model, compared with it before it is given out."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx_ir as ir

from graphopt.check.feeds import NOTHING
from graphopt.check.given import Feeds, Given, read_feeds
from graphopt.check.heap import give_back
from graphopt.check.pending import Pending
from graphopt.check.runner import Workplace
from graphopt.check.verification import OFF, Verification
from graphopt.errors import NotLowered, OptionError, VerificationError
from graphopt.flows.asked import Asked, optimized, planned_target
from graphopt.flows.cluster import Cluster
from graphopt.flows.comparing import accepted, compared, reference_of, way_on
from graphopt.flows.ranged import of_ranges
from graphopt.flows.ranges import dims_of_ranges, free_named, split_ranges
from graphopt.flows.requirements import require_bare, require_one_program, require_plain, require_rounding, where_fixed
from graphopt.flows.rounded import made_rounded
from graphopt.flows.several import made_several, ordered, points_of, split_listed
from graphopt.flows.source import digest_of, read, resize
from graphopt.flows.tune import tuning_of
from graphopt.machine.record import MachineRecord
from graphopt.memory.share import read_budget
from graphopt.model.dimensions import DimValue
from graphopt.model.load import Source
from graphopt.model.mapped import rest
from graphopt.model.settling import settle
from graphopt.model.signature import Port, signature_of
from graphopt.model.tensors import tensors_of
from graphopt.model.text import Progress, silent
from graphopt.program.contents import decided_contents, with_contents
from graphopt.program.costs import costs_of
from graphopt.program.deploy.compiled import Compiled, type_of
from graphopt.program.deploy.custom.operators import Operators, operators_of_several
from graphopt.program.deploy.hybrid import Hybrid
from graphopt.program.deploy.sizes import Argument, Sizes
from graphopt.program.make import COMPARE_SECONDS, Family, Form, Program, make, runnable
from graphopt.program.regions.precision import PrecisionName
from graphopt.program.regions.scope import Scope
from kernels.emit.program import Points
from kernels.target import Target, TargetName, named, why_not_here
from memplan.compiling import telling

TAKEN = frozenset(("pthread", "thrd", "timer"))  # names with which the C library has functions like a program's


def compile(  # the builtin of this name is not used here
    source: Source,
    *,
    target: TargetName | Sequence[TargetName] = "host",
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, DimValue | tuple[int, int] | list[int]] | None = None,
    values: Mapping[str, object] | None = None,
    fix_defaults: bool = False,
    exact: bool = False,
    small: bool = False,
    precision: PrecisionName = "float32",
    memory_budget: int | str | None = None,
    ram: int | str | None = None,
    threads: int = 0,
    machine: MachineRecord | str | None = None,
    tune: float = 0.0,
    dask: Cluster | None = None,
    feeds: Feeds | None = None,
    tolerance: float | None = None,
    form: Form = "bundle",
    caches: bool = False,
    progress: Progress | None = None,
) -> Compiled:
    """A native program, compared with ONNX Runtime without optimizations.

    It is for one size of every dim of its inputs. Where those are free, the result holds a program for every size: it
    is made and compared when the size is first run, and shares constants and threads with the others; such a result has
    no bundle. A list of sizes in `dims`, {"side": [224, 256]}, makes a program for each, also of combinations, in one
    bundle; so do several names in `target`, each for the level of processors that it names. A range of sizes,
    {"sequence": (1, 512)}, makes one program for all of them: its memory is planned for the greatest, and its work
    follows the sizes of each run. Dims may be formulas of those with ranges, {"past": (0, 511), "all": "past + 1"}.
    With `caches`, outputs that begin with the rows of an input (keys and values of a decoder) lie in its memory: what a
    call returns is the next call's input, and nothing of it is copied.

    The result runs like ONNX Runtime's session (`run(None, feeds)`), or by keywords (`program(x=array)` gives a
    dict), and `save(folder)` writes a bundle that needs no Python. `target`: "host", "x86-64-v3", "x86-64-v4",
    "x86-64-amx", "aarch64", "riscv64", "wasm32" for web pages, "thumbv7em" for microcontrollers, or "x86-64-v4-256"
    for cores that slow down for vectors of 64 bytes. A program for a processor that this machine is not runs in QEMU,
    or in node, for the comparison; where there is none, `not_compared` of the result says why, and `save` asks for
    `unchecked=True`.
    `name` is that of the library and of its functions in C; with None it follows from the file's. `exact` leaves
    out kernels that round otherwise than a plain sum does: Winograd's convolutions. `small` leaves out the same,
    whose transformed weights take up to four times the model's memory. With the `precision` "bf16" products and
    convolutions multiply numbers rounded to bfloat16 on the processor's matrix units, or on its dot products of pairs
    where it has no such units, where that is faster and for as many of them as keep every output within `tolerance` of
    the model's (0.01 with None, in shares of the output's largest element); sums and all else stay in float32, and
    `rounding` of the result has the measured errors. `memory_budget`, in bytes ("40MiB") or as a share of what it
    takes without ("50%"), is what the arena of temporaries may take; some kernels then run again, or in tiles. `ram`,
    likewise, is what a process may take for the program when at most `threads` run it (0: as many as its plan is for):
    weights that do not fit are read from the bundle's file while it runs, by a thread of its own; results have the same
    bits. `threads` run the program here, 0:
    as many as it may use cores, with the same bits for any number; a bundle is run by any number too, but for 1, whose
    bundle holds nothing that several need; its plan is made for so many, with 0 for the cores of `machine`, or four.
    `machine` is a record that kernels and this plan are chosen with, `graphopt.machine()` for this one, or LLVM's name
    of a known core ("znver4"); with None they are those of a usual server, alike on every machine of one kind. In
    `tune` seconds kernels are measured where they lie in the program, and those exchanged that lose clearly; what is
    found is kept in the user's cache folder, and used whenever there is a time to tune. With 0 estimates alone choose.
    `dask`, the address of a cluster or a `distributed.Client`, has its workers measure, each a share of the kernels in
    as many seconds; they are machines of this one's kind. The comparison of whole programs is made here.
    `values` fixes inputs at constants. Inputs with defaults are constants of every program, so that `fix_defaults` says
    nothing new. `feeds` and `tolerance` as for `optimize`.

    An output whose dims data decides has those that each call finds. An integer input that holds dims which the model
    declares has to hold just these.

    Operators that have no kernel run in ONNX Runtime, from Python only: `fallback` of the result lists them, and `save`
    then refuses with their names.

    In the `form` "onnxruntime" the result is an ONNX file with custom operators and the library that computes them,
    which `save` writes and any ONNX Runtime from 1.24 on runs. Operators without a kernel stay ONNX Runtime's own.

    Raises ModelError for a model that cannot be worked on, OptionError for a request that does not fit it, NotLowered
    naming the operators when none has a kernel, VerificationError when the program does not give what the model gives.
    """
    if threads < 0:
        raise OptionError(f"{threads} threads cannot run a program; 0 stands for all cores.")
    name = named_by(source) if name is None else name
    if not (name.isascii() and name.isidentifier()):
        raise OptionError(f"'{name}' is no name in C; use letters, digits and underscores.")
    if name in TAKEN:
        raise OptionError(f"functions of '{name}' would stand in for the C library's; choose another name.")
    progress = progress or silent
    targets = (target,) if isinstance(target, str) else ordered(target, named)
    processor = planned_target(targets[0], machine, threads)
    if processor.is_gpu:
        require_plain(targets, bool(memory_budget or ram), caches, form)
    if processor.architecture.name == "wasm32":
        threads = 1
        if form == "onnxruntime":
            raise OptionError("ONNX Runtime loads no custom operators of WebAssembly; leave out the form.")
    if processor.architecture.is_bare:
        require_bare(targets, threads, form)
        threads, small = 1, True
    not_here = why_not_here(processor)
    if tune and not_here is not None:
        raise OptionError(f"kernels cannot be measured: {not_here}; leave out the tuning.")
    sized, listed = split_listed(dims or {})
    points = points_of(listed)
    tuning = tuning_of(tune, progress, dask)
    original, _ = read(source, values, fix_defaults=True)
    digest = digest_of(source, original)
    ranges, formulas, sizes = split_ranges(sized)
    where = where_fixed(processor)
    if (ranges or len(points) > 1) and where is not None:
        raise OptionError(f"a program {where} has one size of every dim; give dims numbers.")
    if shapes or sizes or ranges:
        resize(original, shapes or {}, sizes)
        free_named(original, ranges)
    settle(original)
    examples = read_feeds(original, feeds)
    asked = Asked(
        processor, name, exact or small, read_budget(memory_budget), read_budget(ram), not_here, threads, machine,
        tuning, examples, tolerance, progress, digest, form, caches, precision,
    )  # fmt: skip
    if caches and not ranges:
        raise OptionError("caches grow from call to call: give their length a range, past=0..511 for example.")
    if caches and form != "bundle":
        raise OptionError("ONNX Runtime gives every output memory of its own; leave out the caches, or the form.")
    several = len(points) > 1 or len(targets) > 1
    if precision != "float32":
        require_rounding(targets, machine, exact=exact, ranges=bool(ranges), form=form)
    if ram is not None:
        require_one_program(processor, form, several)
    if several and ranges:
        raise OptionError("a range of sizes is compiled for one target, and without lists of sizes.")
    if several:
        return _several(original, asked, targets, points)
    if listed:
        resize(original, {}, dict(points[0]))
    if ranges:
        return of_ranges(original, asked, dims_of_ranges(original, ranges, formulas))
    if not_here is None and form == "bundle" and not all(map(_is_fixed, _open_inputs(original))):
        return _of_any_size(original, asked)
    return _made(original, asked)


def named_by(source: Source) -> str:
    """A name in C that follows from a file's: "resnet_18" for resnet-18.onnx; "model" for what is no file."""
    stem = Path(source).stem if isinstance(source, (str, os.PathLike)) else "model"
    name = "".join(one if one.isascii() and one.isalnum() else "_" for one in stem).strip("_") or "model"
    return f"model_{name}" if name[0].isdigit() or name in TAKEN else name


def _several(original: ir.Model, asked: Asked, targets: Sequence[TargetName], points: Points) -> Compiled:
    """Programs for several levels and listed sizes. What was said of one is said of all: the worst of it."""

    def make_one(model: ir.Model, target: TargetName, family: Family) -> Compiled:
        processor = planned_target(target, asked.machine, asked.threads)
        given = [one for one in asked.given if _fits(one, model)]
        one = replace(asked, target=processor, not_here=why_not_here(processor), given=given, form="bundle")
        return _made(model, one, family)

    made = made_several(original, targets, points, make_one)
    worst = max(made.programs, key=lambda one: one.verification.max_rel)
    not_compared = next((one.not_compared for one in made.programs if one.not_compared is not None), None)
    seconds = sum(one.seconds for one in made.programs)
    found = replace(worst, made=made, target=made.first.target, seconds=seconds, not_compared=not_compared)
    if asked.form == "bundle":
        return found
    linked = [one.linked for one in made.programs]
    operators = operators_of_several(original, asked.name, made.choices, points, linked, asked.threads)
    for point in points if asked.not_here is None else ():
        model = original.clone()
        resize(model, {}, dict(point))
        _hold(model, replace(asked, given=[one for one in asked.given if _fits(one, model)]), operators)
    return replace(found, made=operators)


def _hold(original: ir.Model, asked: Asked, program: Program) -> None:
    """Compare programs of a size once more, where they lie together; raises VerificationError."""
    with Workplace() as workplace:
        verdict = compared(reference_of(workplace, original, asked.given, asked.tolerance), original, program)
    if not verdict.passed:
        raise VerificationError(f"the program does not give what ONNX Runtime gives: {verdict.reason}.")


def _fits(given: Given, model: ir.Model) -> bool:
    """Whether a feed has the dims of the model's inputs."""
    ports = {port.name: port for port in _open_inputs(model)}
    return all(list(np.asarray(array).shape) == list(ports[name].dims or ()) for name, array in given.feed.items())


def _of_any_size(original: ir.Model, asked: Asked) -> Compiled:
    """Programs that are made when their sizes are first seen."""
    family = Family()
    inputs = _arguments(_open_inputs(original))

    def make_one(shapes: Mapping[str, Sequence[int]]) -> Compiled:
        model = original.clone()
        resize(model, shapes, {})
        given = [
            one for one in asked.given if all(np.asarray(one.feed[name]).shape == dims for name, dims in shapes.items())
        ]
        return _made(model, replace(asked, given=given), family)

    sizes = Sizes(inputs, _arguments(signature_of(original).outputs), _why_no_bundle(original, asked.target), make_one)
    held = sum(tensor.nbytes for tensor in tensors_of(original))
    return Compiled(sizes, asked.target, 0.0, OFF, model_bytes=held)


def _open_inputs(model: ir.Model) -> list[Port]:
    signature = signature_of(model)
    return [port for port in signature.inputs if port.name not in signature.defaults]


def _is_fixed(port: Port) -> bool:
    return port.dims is not None and all(isinstance(dim, int) for dim in port.dims)


def _arguments(ports: Sequence[Port]) -> list[Argument]:
    return [Argument(port.name, type_of(port.type), list(port.dims or ())) for port in ports]


def _why_no_bundle(model: ir.Model, target: Target) -> str:
    """What is said of a model with free dims where one size is wanted."""
    scope = Scope(model, target)
    for value in model.graph.inputs:
        try:
            scope.shape(value)
        except NotLowered as error:
            return str(error)
    raise AssertionError("an input has a free dim")


def _made(original: ir.Model, asked: Asked, family: Family | None = None) -> Compiled:
    """The program of a model whose dims are all numbers, as `compile` says."""
    if asked.precision == "float32":
        return _in_float32(original, asked, family)
    rounded = made_rounded(original, asked, family)
    if isinstance(rounded, Compiled):
        return rounded
    found = _in_float32(original, replace(asked, precision="float32", tolerance=None), family)
    return replace(found, not_rounded=rounded)


def _in_float32(original: ir.Model, asked: Asked, family: Family | None) -> Compiled:
    exact, progress = asked.exact, asked.progress
    ways = [(exact, False), (True, False), (True, True)] if not exact else [(True, False), (True, True)]
    held = sum(tensor.nbytes for tensor in tensors_of(original))
    verdicts: list[Verification] = []
    seconds = 0.0
    with Workplace() as workplace:
        pending = Pending(workplace, original, COMPARE_SECONDS, asked.given, asked.tolerance)
        for exactly, checked in ways:  # as asked, with exact kernels, and of rewrites that have each been checked
            started = time.perf_counter()
            compared_before = pending.seconds
            progress("optimizing")
            work = optimized(original, checked=checked)
            rest(original)
            progress("making kernels")
            with telling(progress):
                known = decided_contents(work, [one.feed for one in asked.given])
                for contents in (known, NOTHING) if known else (NOTHING,):  # parts check nothing of what inputs hold
                    model = optimized(with_contents(work, contents)) if contents else work
                    made = make(
                        model, asked.target, asked.name, exactly, asked.memory_budget, asked.not_here, asked.threads,
                        costs_of(asked.machine), asked.tuning, contents, family, asked.form, asked.ram,
                        meanwhile=partial(pending.get, contents),
                    )  # fmt: skip
                    if not isinstance(made, Hybrid) and not (isinstance(made, Operators) and made.fallback):
                        break
            program, not_compared = runnable(made, asked.target, asked.not_here)
            seconds += time.perf_counter() - started - (pending.seconds - compared_before)
            if program is None:
                return Compiled(
                    made, asked.target, seconds, OFF, asked.not_here, not_compared, None, held, asked.digest
                )
            progress("comparing with ONNX Runtime")
            verdicts.append(compared(accepted(pending.get(contents)), original, program))
            rest(original)
            give_back()
            if verdicts[-1].passed:
                remade = None if len(verdicts) == 1 else verdicts[0].reason
                return Compiled(
                    made, asked.target, seconds, verdicts[-1], asked.not_here, None, remade, held, asked.digest
                )
    raise VerificationError(
        f"the program does not give what ONNX Runtime gives: {verdicts[-1].reason}; nothing was written"
        f"{way_on(verdicts[-1].max_rel)}."
    )
