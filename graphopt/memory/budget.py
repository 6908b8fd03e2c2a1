"""A model that keeps a memory budget: nodes in another order, again or in tiles, outputs the same bit for bit.

The budget is that of the arena for temporaries and outputs in file order, every result in bytes of its own where that
can be kept, and else with results in place and slices, as our bundles have them. What ONNX Runtime takes for the model
is measured, with the options under which a plan survives there (memory.contract). Its kernels need scratch that the
plan does not know, and its own optimizations change the graph once more: where that makes it take more than the budget,
the plan is made anew for less, by as much.
"""

from __future__ import annotations

import statistics
import sys
from dataclasses import dataclass, replace

import onnx_ir as ir
from msgspec import structs

from graphopt.check.reference import Reference
from graphopt.check.runner import Workplace
from graphopt.check.verification import Verification
from graphopt.errors import BudgetNotKept, OptionError, VerificationError
from graphopt.memory.budgeted import Budgeted, BudgetRecord
from graphopt.memory.fit import fit
from graphopt.memory.levers.lever import Fitted
from graphopt.memory.levers.order import best_order
from graphopt.memory.levers.recompute import RECOMPUTATION, RECOMPUTE_WORK
from graphopt.memory.levers.tile import TILES
from graphopt.memory.measured import Use, use_in_onnxruntime
from graphopt.memory.plan import Planned, given, problem_of
from graphopt.memory.sequence import write_order
from graphopt.memory.share import Budget, in_bytes
from graphopt.memory.tensors import Sharing, model_memory
from graphopt.memory.ties import tie, tie_all, visited_order
from graphopt.memory.tiling.candidates import FEW_COLUMNS, LEAST_COLUMNS, MANY_COLUMNS
from graphopt.model.text import Progress, silent
from memplan.bounds import live_peak
from memplan.compiling import telling

RETRIES = 3  # plans for less, after ONNX Runtime took more than the budget
PROCESSES = 3  # further ones in which a kept budget has to be kept: the order of nodes differs between processes
BOOKS = 64 << 10  # bytes that a runtime may take for its own books, or a share of the budget
BOOKS_SHARE = 0.02
LARGE = (64, 1024)  # parts of the budget: a value as large is worth three nodes; smaller ones where needed
TIES = 1 << 10  # bytes of an arena for the few numbers that a tied node reads


@dataclass(frozen=True, slots=True)
class _Try:
    """One way to look for a plan."""

    sharing: Sharing  # as in `model_memory`
    room: int  # bytes of the budget that are left for ties
    recomputing: int  # steps of looking for what to compute again
    columns: tuple[int, ...] = (LEAST_COLUMNS, MANY_COLUMNS, 0)  # of a tile, at least: the next where bits differ


def keep_budget(
    model: ir.Model,
    budget: Budget,
    *,
    verify_seconds: float | None,
    measure: bool = True,
    progress: Progress = silent,
) -> Budgeted:
    """A copy of `model` whose plan fits `budget`; with `verify_seconds`, run beside the model and compared bit for bit.

    A share is one of the arena of the best order, where every result has bytes of its own.
    A model that cannot be run is not compared, and `not_compared` of the result says why. With `measure` the budget is
    also kept by the heap of ONNX Runtime, where that can be measured.

    Raises BudgetNotKept for a budget that no plan keeps, or none that ONNX Runtime keeps, OptionError for dims without
    a value, VerificationError where a bit differs.
    """
    if model.functions:
        raise OptionError("a memory budget counts tensors inside model-local functions too: pass inline=True with it.")
    with telling(progress):
        orders = _Orders(model, progress)
        most = in_bytes(budget, orders.of(False).packing.arena_size)
        if not measure:
            return _planned(model, most, most, verify_seconds, progress, orders)
        return _measured(model, most, verify_seconds, progress, orders)


class _Orders:
    """The best orders of a model's nodes, each looked for once."""

    def __init__(self, model: ir.Model, progress: Progress) -> None:
        self._model, self._progress = model, progress
        self._known: dict[Sharing, Planned] = {}

    def of(self, sharing: Sharing) -> Planned:
        """The one where results share bytes like this."""
        if sharing not in self._known:
            self._progress("ordering under the memory budget")
            self._known[sharing] = best_order(model_memory(self._model, sharing=sharing))
        return self._known[sharing]


def _measured(
    model: ir.Model, budget: int, verify_seconds: float | None, progress: Progress, orders: _Orders
) -> Budgeted:
    """A plan that ONNX Runtime's heap keeps too, where that can be measured."""
    most = budget + max(int(BOOKS_SHARE * budget), BOOKS)
    aim, best, arena = budget, None, 0
    least = sys.maxsize
    for _ in range(1 + RETRIES):
        try:
            found = _planned(model, budget, aim, verify_seconds, progress, orders)
        except BudgetNotKept as refusal:
            if best is None:
                raise
            if not aim < refusal.least + TIES < arena:
                break
            aim = refusal.least + TIES
            continue
        progress("measuring what ONNX Runtime takes")
        uses = use_in_onnxruntime((model, found.model), contract=True)
        if uses is None:
            return found
        if uses[1].heap > most and (tied := _all_tied(model, found, aim, verify_seconds)) is not None:
            less = use_in_onnxruntime((model, tied.model), contract=True)
            if less is not None and less[1].heap < uses[1].heap:
                found, uses = tied, less
        if uses[1].heap <= most:
            again = use_in_onnxruntime((found.model,), contract=True, rounds=0, processes=PROCESSES)
            uses = (uses[0], uses[1].at_most(again[0]) if again is not None else uses[1])
        taken, arena = uses[1].heap, found.record.arena
        if taken < least:
            best, least = replace(found, record=_with_uses(found.record, *uses)), taken
        if taken <= most:
            break
        aim = min(aim, arena) - (taken - budget)
        if aim <= 0:
            break
    if best is None or least > most:
        raise BudgetNotKept(budget, least, "in ONNX Runtime the least that was measured is")
    return best


def _with_uses(record: BudgetRecord, before: Use, after: Use) -> BudgetRecord:
    pairs = zip(before.milliseconds, after.milliseconds, strict=True)
    ratio = statistics.median(two / max(one, 1e-9) for one, two in pairs)
    return structs.replace(record, heap_before=before.heap, heap=after.heap, slowdown_percent=100 * (ratio - 1))


def _planned(
    model: ir.Model, budget: int, aim: int, verify_seconds: float | None, progress: Progress, orders: _Orders
) -> Budgeted:
    """A plan of at most `aim` bytes: with room for ties and every result in bytes of its own, if that can be kept."""
    work = RECOMPUTE_WORK if aim == budget else RECOMPUTE_WORK // (1 + RETRIES)
    small = _Try(False, TIES, 0, (FEW_COLUMNS,))  # that computing values again is not enough is known by then
    tries = [_Try(False, TIES, work), small, _Try("in place", TIES, work)]
    if aim == budget:  # ONNX Runtime copies what it joins: no use where it has taken too much
        tries += [_Try(True, TIES, work), _Try(False, 0, work), _Try(True, 0, work)]
    refusals: list[BudgetNotKept] = []
    for one in tries:
        if FEW_COLUMNS in one.columns and verify_seconds is None:
            continue  # only bits tell whether so small a tile is summed as the whole is
        if not one.room and min(refusal.least for refusal in refusals) > aim:
            continue
        try:
            found = _kept(model, aim, verify_seconds, progress, one, orders)
        except BudgetNotKept as refusal:
            refusals.append(refusal)
        except VerificationError:
            if FEW_COLUMNS not in one.columns:
                raise
        else:
            return replace(found, record=structs.replace(found.record, budget=budget, aim=aim))
    raise BudgetNotKept(aim, min(refusal.least for refusal in refusals))


def _kept(
    model: ir.Model, budget: int, verify_seconds: float | None, progress: Progress, how: _Try, orders: _Orders
) -> Budgeted:
    """A plan of at most `budget` bytes whose tiles have at least the first number of columns that keeps all bits."""
    sharing = how.sharing
    work = model.clone()
    memory = model_memory(work, sharing=sharing)
    start = given(memory)
    ordered = orders.of(sharing)
    room = 0 if ordered.packing.arena_size <= budget else how.room  # an order alone has nothing to tie
    # Libraries may sum a tile in another order than the whole: then larger tiles are tried, and in the end none.
    for columns in how.columns:
        steps = {RECOMPUTATION.name: how.recomputing} if columns else {TILES.name: 0}
        fitted = fit(work, memory, budget - room, start=ordered, columns=columns, work=steps, progress=progress)
        progress("comparing bits")
        try:
            kept, arena, not_compared = _written(model, fitted, budget, verify_seconds)
            break
        except VerificationError:
            if TILES.name not in fitted.uses or columns == how.columns[-1]:
                raise
    record = BudgetRecord(
        budget=budget,
        sharing=bool(sharing),
        arena_given=start.packing.arena_size,
        arena_best=ordered.packing.arena_size,
        arena=arena,
        added_nodes=len(kept.graph) - len(model.graph),
        tiled_regions=fitted.uses.get(TILES.name, 0),
        extra_time_percent=100 * (fitted.planned.time - start.time) / start.time if start.time else 0.0,
        bit_equal=verify_seconds is not None and not_compared is None,
    )
    return Budgeted(kept, record, not_compared)


def _written(
    model: ir.Model, fitted: Fitted, budget: int, verify_seconds: float | None
) -> tuple[ir.Model, int, str | None]:
    """The fitted model in the plan's order, compared with `model`; its arena; and why it could not be compared."""
    kept = fitted.model.clone()
    there = dict(zip(fitted.model.graph, kept.graph, strict=True))
    write_order(kept, fitted.planned.order, {name: there[node] for name, node in fitted.memory.nodes.items()})
    tied, arena = kept.clone(), fitted.planned.packing.arena_size
    added = tie(tied)
    for parts in LARGE:
        if _visited_peak(tied, fitted.memory.sharing) <= budget:
            break
        added += tie_all(tied, budget // parts)
    if added:
        with_ties = given(model_memory(tied, sharing=fitted.memory.sharing)).packing.arena_size
        if with_ties <= budget:
            kept, arena = tied, with_ties
    if verify_seconds is None:
        return kept, arena, None
    verification = _compare(model, kept, verify_seconds)
    return kept, arena, None if verification.passed else verification.reason or "nothing ran it"


def _all_tied(model: ir.Model, found: Budgeted, aim: int, verify_seconds: float | None) -> Budgeted | None:
    """The same with every node tied to its place; None where all are, or where a bit differs then."""
    tied = found.model.clone()
    if not tie_all(tied, aim // LARGE[-1]):
        return None
    arena = given(model_memory(tied, sharing=found.record.sharing)).packing.arena_size
    if arena > aim:
        return None
    if verify_seconds is not None and found.not_compared is None:
        try:
            _compare(model, tied, verify_seconds)
        except VerificationError:
            return None
    nodes = len(tied.graph) - len(model.graph)
    return replace(found, model=tied, record=structs.replace(found.record, arena=arena, added_nodes=nodes))


def _visited_peak(model: ir.Model, sharing: Sharing) -> int:
    """The live peak in the order in which ONNX Runtime runs the nodes."""
    memory = model_memory(model, sharing=sharing)
    names = {node: name for name, node in memory.nodes.items()}
    return live_peak(problem_of(memory.graph, [names[node] for node in visited_order(model.graph) if node in names]))


def _compare(model: ir.Model, changed: ir.Model, seconds: float) -> Verification:
    """The verdict, "verified" or "not run"; raises VerificationError where an output is not the same, bit for bit."""
    with Workplace() as workplace:
        found = Reference(workplace, model, seconds).check(changed)
    if found.status == "different" or found.max_abs:
        reason = found.reason or f"an output differs by {found.max_abs:.1e}"
        raise VerificationError(f"the model in its new order does not give the same bits: {reason}.")
    return found
