"""From an optimized model to a program: regions, order, memory, listing; parts in ONNX Runtime where kernels lack."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.check.feeds import NOTHING, Contents
from graphopt.check.reference import Reference
from graphopt.check.runner import Workplace
from graphopt.errors import BundleError, NotLowered, OptionError, VerificationError
from graphopt.lazy import Lazy
from graphopt.memory.share import Budget, in_bytes
from graphopt.model.collection import paused_collection
from graphopt.model.load import load
from graphopt.model.save import to_proto, weight_bytes
from graphopt.program.carried import changed_in_place
from graphopt.program.costs import ESTIMATED, Costs
from graphopt.program.deploy import session
from graphopt.program.deploy.compiled import Whole
from graphopt.program.deploy.custom.operators import Operators, operators_of_parts, operators_of_whole
from graphopt.program.deploy.emulation import Emulated
from graphopt.program.deploy.folding import fold_constants
from graphopt.program.deploy.hybrid import Hybrid, make_hybrid, parted_of
from graphopt.program.deploy.web.node import InNode
from graphopt.program.elsewhere import Job
from graphopt.program.kinks import Kink
from graphopt.program.lifetimes import planned
from graphopt.program.listing import Linked, link
from graphopt.program.order import in_best_order
from graphopt.program.quantizing import in_integers
from graphopt.program.regions.kernels import Kernels
from graphopt.program.regions.lower import lower
from graphopt.program.regions.precision import FLOAT32, Precision
from graphopt.program.regions.region import NO_CACHES, Cache, Lowered
from graphopt.program.regions.rounding import rounded_at_all
from graphopt.program.tuning import Tuning, tuned, with_choices
from graphopt.program.unifying import unified
from graphopt.program.weights import GROWTH, NOT_PACKED, Packed, Weights, bytes_of
from kernels.emit.common import CommonFunctions, kernel_modules
from kernels.kernel import Kernel, Packing
from kernels.llvm.load import ObjectCache
from kernels.llvm.module import Module
from kernels.size import Dim, Operation, Size
from kernels.target import Target
from kernels.tune import Choice, Database

if TYPE_CHECKING:
    from graphopt.program import fitting, gpu
    from graphopt.program.deploy.cuda import running as on_devices
else:  # with the search for tiles; with the scheduler's verifier and the PTX machine
    fitting = Lazy("graphopt.program.fitting")
    gpu, on_devices = Lazy("graphopt.program.gpu"), Lazy("graphopt.program.deploy.cuda.running")

MOST_SENT = (1 << 31) - (1 << 24)  # bytes of weights, in a file of one piece
COMPARE_SECONDS = 300.0  # for the model's own runs in ONNX Runtime; a longer one is not waited for

Program: TypeAlias = (
    "session.Program | Hybrid | Operators | Emulated | InNode | on_devices.OnDevice | on_devices.OnPtxMachine"
)
Form = Literal["bundle", "onnxruntime"]  # what is made: a program of its own, or custom operators of ONNX Runtime


class Family:
    """What programs of one model share, each of other sizes: constants, and threads."""

    def __init__(self, growth: int = GROWTH, *, keep: bool = False) -> None:
        """`growth`: room for so many times the constants of the first program; `keep` as for `Weights`."""
        self._keep = keep
        self._weights: Weights | None = None
        self._growth = growth
        self.first: session.Program | None = None  # whose threads run all

    def weights(self, lowered: Lowered) -> Weights:
        """Where the constants of a program go: to those of others for as long as there is room."""
        if self._weights is None or not self._weights.has_room(lowered):
            self._weights = Weights(self._growth * bytes_of(lowered), keep=self._keep)
        return self._weights


def make(
    model: ir.Model,
    target: Target,
    name: str,
    exact: bool,
    memory_budget: Budget | None,
    not_here: str | None,
    threads: int = 0,
    costs: Costs = ESTIMATED,
    tuning: Tuning | None = None,
    contents: Contents = NOTHING,
    family: Family | None = None,
    form: Form = "bundle",
    ram: Budget | None = None,
    precision: Precision = FLOAT32,
    meanwhile: Callable[[], object] = lambda: None,
) -> Whole | Hybrid | Operators:
    """The program of a model whose dims are all numbers; `memory_budget` is for its arena.

    `threads` run it here, 0: all cores; a program for 1 holds nothing that several need. `costs` decide among plans
    for several. With `tuning` kernels are those that were measured best, now or before; parts of a program beside ONNX
    Runtime are as they are estimated. `contents` are what inputs hold, as a whole program is made for them.
    `not_here` says why this machine cannot run code for `target`; such a program is not loaded. Its regions lose their
    constants, which are packed then. In the form "onnxruntime" it becomes custom operators. `meanwhile` is called once
    there is a listing, while the program is compiled. Raises OptionError for a budget that is not kept, and NotLowered
    where no operator has a kernel.
    """
    cache = ObjectCache(None)
    begun = cache if not_here is None and form == "bundle" and memory_budget is None else None
    try:
        lowered, linked = make_listing(
            model, target, name, exact, memory_budget, threads, costs, tuning, contents, family, ram, precision, begun
        )
    except NotLowered as error:
        if memory_budget is not None or ram is not None:
            raise OptionError(f"a memory budget is kept only by a program that has all kernels: {error}") from error
        if not_here is not None and form == "bundle":
            raise OptionError(f"ONNX Runtime cannot run parts of the program, as {not_here}: {error}") from error
        while (folded := fold_constants(model, whole=False)) is not model:
            model = folded
        _require_a_run(model)
        if form == "onnxruntime":
            return operators_of_parts(model, parted_of(model, target, exact=exact), target, name, threads)
        return make_hybrid(model, target, name, exact=exact)
    if form == "onnxruntime" and (tuning is None or not_here is not None):
        return operators_of_whole(model, linked, target, threads)
    if not_here is not None:
        return Whole(None, replace(lowered, constants={}), linked)
    kept = linked if tuning is None else replace(linked, streamed=None)  # kernels are measured where all weights lie
    program = _loaded(kept, target, threads, family, cache, meanwhile)

    def job() -> Job:
        if weight_bytes(model) > MOST_SENT:
            raise OptionError("a model of 2 GiB and more is not sent to other machines; leave out the cluster.")
        sent = to_proto(model).SerializeToString()
        return Job(sent, target, name, exact, memory_budget, threads, costs, contents, ram, precision)

    better = {} if tuning is None else tuned(lowered, linked.listing, program, tuning, job)
    if better:
        packed = _packed(lowered, linked)
        lowered = lowered.with_kernels(better)
        if begun is not None:
            kernels = {region.kernel.name: region.kernel for region in lowered.regions}.values()
            _begin(cache, kernel_modules(name, [one for kernel in kernels for one in _alike(kernel, threads)], target))
        linked = _linked(lowered, name, target, linked.budget, threads, costs, family, ram, packed)
    if (better or kept.streamed is not linked.streamed) and form != "onnxruntime":
        program = _loaded(linked, target, threads, family, cache)
    if form == "onnxruntime":
        return operators_of_whole(model, linked, target, threads)
    return Whole(program, replace(lowered, constants={}), linked)


def measured(job: Job, only: frozenset[str], known: Mapping[str, Choice], seconds: float) -> dict[str, Choice]:
    """What is found of some kernels of a program in so many seconds on this machine, where nothing of it is kept."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(Path(folder) / "choices.json")
        database.add(known)
        tuning = Tuning(database, seconds, only=only)
        lowered, linked = make_listing(
            load(job.model), job.target, job.name, job.exact, job.memory_budget, job.threads, job.costs, tuning,
            job.contents, None, job.ram, job.precision,
        )  # fmt: skip
        program = _loaded(replace(linked, streamed=None), job.target, 1, None)
        tuned(lowered, linked.listing, program, tuning)
        return {key: choice for key, choice in database.choices().items() if known.get(key) != choice}


def _packed(lowered: Lowered, linked: Linked) -> Packed:
    """The constants of a program as they were packed for its kernels."""
    found: dict[tuple[int, Packing | None], npt.NDArray[np.uint8]] = {}
    for region, run in zip(lowered.regions, linked.listing.runs, strict=True):
        for place, at in zip(region.places, run.operands, strict=True):
            constant = lowered.constants.get(place.buffer)
            if constant is not None:
                start = at.offset - place.offset
                found[id(constant.array), constant.packing] = linked.weights[start : start + place.buffer.size]
    return found


def _loaded(
    linked: Linked, target: Target, threads: int, family: Family | None, cache: ObjectCache | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> session.Program:  # fmt: skip
    """The program in this process, on the threads of its family where it has one."""
    pool = None if family is None else family.first
    found = session.Program(
        linked.executed, linked.stored, target, cache, threads=threads, in_place=True, pool=pool, meanwhile=meanwhile
    )
    if family is not None and pool is None and found.is_shared:
        family.first = found
    return found


def make_listing(
    model: ir.Model,
    target: Target,
    name: str,
    exact: bool,
    memory_budget: Budget | None,
    threads: int = 0,
    costs: Costs = ESTIMATED,
    tuning: Tuning | None = None,
    contents: Contents = NOTHING,
    family: Family | None = None,
    ram: Budget | None = None,
    precision: Precision = FLOAT32,
    begun: ObjectCache | None = None,
) -> tuple[Lowered, Linked]:
    """The regions of a program and its listing; choices that `tuning` keeps are used.

    In `begun` the kernels are compiled as soon as they are written, as the program will likely have them.
    Raises OptionError for a budget that is not kept, and NotLowered where an operator has no kernel.
    """
    kernels = Kernels()

    common = CommonFunctions(name, target)

    def begin(kernel: Kernel) -> None:
        if begun is not None:
            _begin(begun, common.modules_of(name, _alike(kernel, threads)))

    @paused_collection()
    def regions(one: ir.Model, *, tight: bool) -> Lowered:
        ordered, changed = changed_in_place(one)
        known = kernels if tight else None
        found = lower(
            ordered, target, exact=exact, precision=precision, tight=tight, caches=changed, kernels=known,
            written=None if tight else begin,
        )  # fmt: skip
        return _chosen(found, tuning)

    model = _folded(model)
    lowered = regions(model, tight=False)
    ordered = lowered if isinstance(memory_budget, int) else in_best_order(lowered)
    budget = None if memory_budget is None else in_bytes(memory_budget, planned(ordered).plan.arena_size)
    if budget is None:
        lowered = ordered
    else:
        lowered = fitting.fitted(model, lowered, budget, lambda one: regions(one, tight=True), costs)
        for kernel in {region.kernel.name: region.kernel for region in lowered.regions}.values():
            begin(kernel)  # of what was tried and not taken none is compiled
    held = {one: tuple(sorted(numbers.items())) for one, numbers in contents.items()}
    lowered = replace(lowered, inputs=tuple(replace(one, held=held.get(one.name, ())) for one in lowered.inputs))
    return lowered, _linked(lowered, name, target, budget, threads, costs, family, ram)


def _alike(kernel: Kernel, threads: int) -> list[Kernel]:
    """A kernel as a program of so many threads will likely have it: with that of several workers."""
    return [kernel] if kernel.shared is None or threads == 1 else [kernel, kernel.shared]


def _begin(cache: ObjectCache, modules: Iterable[Module]) -> None:
    """Have modules compiled meanwhile."""
    for module in modules:
        cache.begin(module.text(), module.target)


def _chosen(lowered: Lowered, tuning: Tuning | None) -> Lowered:
    """With the kernels that were measured best, where that is known."""
    return lowered if tuning is None else with_choices(lowered, tuning.database.choices())


def make_ranged(
    dims: Sequence[Dim],
    model_of: Callable[[tuple[int, ...]], ir.Model],
    target: Target,
    name: str,
    exact: bool,
    not_here: str | None,
    threads: int = 0,
    costs: Costs = ESTIMATED,
    held: Sequence[Sequence[Size | int]] = (),
    caches: Mapping[str, Cache] = NO_CACHES,
    kinks: Sequence[Kink] = (),
    steps: Sequence[Operation] = (),
    ram: Budget | None = None,
    precision: Precision = FLOAT32,
    allowed: Sequence[Dim] = (),
) -> Whole:
    """The one program of all sizes of free dims; `model_of` gives the model of one size, optimized.

    `held` says what the last inputs hold, which no caller gives; `caches` are outputs in the memory of inputs; `kinks`
    are the sizes at which numbers turn, `steps` quotients that numbers grow with. The greatest sizes and the least
    decide what is rounded at all, where `precision` says that some may be. A run may have sizes of the `allowed` dims
    only, where these are given.

    Raises NotLowered where an operator has no kernel, or none for a range of sizes.
    """

    greatest = tuple(dim.most for dim in dims)

    @paused_collection()
    def at(point: tuple[int, ...], precision: Precision) -> Lowered:
        model = _folded(model_of(point))
        there = target if point == greatest else replace(target, outlined=True)
        return lower(model, there, exact=exact, precision=precision, steady=True, caches=caches)

    decided = precision
    if precision != FLOAT32:
        samples = [at(greatest, precision)]
        with suppress(NotLowered):  # a size alone may have no kernels that the others have
            samples.append(at(tuple(max(1, dim.least) for dim in dims), precision))
        decided = replace(precision, only=rounded_at_all(samples))
    found = unified(dims, lambda point: at(point, decided), held, kinks, steps)
    lowered = in_best_order(replace(found, dims=tuple(allowed or dims)))
    linked = _linked(lowered, name, target, None, threads, costs, None, ram)
    program = None if not_here is not None else _loaded(linked, target, threads, None)
    return Whole(program, replace(lowered, constants={}), linked)


def _folded(model: ir.Model) -> ir.Model:
    """As it is lowered: in integers where it is quantized, and without what constants decide."""
    model = in_integers(model)
    while (folded := fold_constants(model, whole=True)) is not model:
        model = folded
    return model


def _linked(
    lowered: Lowered, name: str, target: Target, budget: int | None, threads: int, costs: Costs,
    family: Family | None, ram: Budget | None = None, packed: Packed = NOT_PACKED,
) -> Linked:  # fmt: skip
    if lowered.target.is_gpu:
        return gpu.link_tasks(lowered, name)
    weights = Weights(bytes_of(lowered), packed=packed) if family is None else family.weights(lowered)
    return link(lowered, name, threads=threads or target.workers, budget=budget, costs=costs, weights=weights, ram=ram)


def runnable(
    made: Whole | Hybrid | Operators, machine: Target, not_here: str | None
) -> tuple[Program | None, str | None]:
    """What can be run here for the comparison; None with the reason where nothing can."""
    if isinstance(made, Operators):
        return (made, None) if not_here is None else (None, not_here)
    if isinstance(made, Hybrid):
        return made, None
    if not_here is None:
        return made.program, None
    try:
        if machine.is_gpu:
            assert isinstance(made.linked, gpu.LinkedTasks), "a program of tasks"
            return on_devices.on_gpu(made.linked, machine), None
        elsewhere = InNode if machine.architecture.name == "wasm32" else Emulated
        return elsewhere(made.linked.listing, made.linked.weights, machine), None
    except BundleError as error:
        return None, f"{not_here}; {error}"


def _require_a_run(model: ir.Model) -> None:
    """Raise VerificationError for a model that ends ONNX Runtime: parts of it would be run in this process."""
    with Workplace() as workplace:
        if workplace.checker_error(model, full=True) is not None:
            reference = Reference(workplace, model, COMPARE_SECONDS)
            if reference.problem is not None:
                raise VerificationError(
                    f"the program cannot be compared, as its model does not run: {reference.problem}"
                )
