"""Results of the Python interface as the records that are printed."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from graphopt.api import OptimizeResult
from graphopt.check.divergence import Divergence
from graphopt.check.verification import Verification
from graphopt.memory.budget import Budgeted
from graphopt.memory.measured import KEEPING
from graphopt.report.meaning import meanings, why
from graphopt.report.records import (
    BudgetRecord,
    DivergenceRecord,
    OptimizeFile,
    OptimizeRecord,
    PassLine,
    ReasonLine,
    RewriteLine,
    RollbackLine,
    VerificationRecord,
)  # fmt: skip
from graphopt.rewrite.explain import Reason
from graphopt.rewrite.record import Rewrite, Rollback


def verification_record(verification: Verification) -> VerificationRecord:
    """The verdict."""
    return VerificationRecord(
        verification.status, verification.feeds, verification.max_abs, verification.max_rel, verification.reason,
        verification.excluded, verification.sizes, verification.engine, verification.tolerance, verification.limited,
        verification.rounding, verification.reached.draws, verification.reached.branches,
        verification.reached.shut_rows,
    )  # fmt: skip


def rewrite_lines(rewrites: Sequence[Rewrite]) -> tuple[RewriteLine, ...]:
    """Changes, each with what its rule does."""
    said = meanings()
    return tuple(
        RewriteLine(
            item.number, item.pass_name, item.rule, item.site, item.before, item.after, why(said, item).short,
            item.reason,
        )
        for item in rewrites
    )  # fmt: skip


def rollback_line(rollback: Rollback) -> RollbackLine:
    """One change that was taken back."""
    return RollbackLine(rollback.rule, rollback.site, rollback.reason)


def _opset(model: ir.Model) -> int:
    """The version of ONNX's own operators that the model imports; 1 where it names none."""
    return model.opset_imports.get("", 1)


def optimize_record(result: OptimizeResult, source: str, target: str, level: int) -> OptimizeRecord:
    """What an optimization did."""
    return OptimizeRecord(
        input=source,
        output=target,
        level=level,
        nodes_before=result.before.nodes,
        nodes_after=result.after.nodes,
        bytes_before=result.before.bytes,
        bytes_after=result.after.bytes,
        parameters_before=result.before.parameters,
        parameters_after=result.after.parameters,
        types_before=dict(result.before.by_type),
        types_after=dict(result.after.by_type),
        seconds=result.seconds,
        verify_seconds=result.verify_seconds,
        passes=tuple(
            PassLine(step.name, step.rewrites, step.nodes_before, step.nodes_after, step.seconds)
            for step in result.passes
        ),
        rolled_back=tuple(rollback_line(item) for item in result.rolled_back),
        verification=verification_record(result.verification),
        signature_unchanged=not result.signature_changes,
        signature_changes=result.signature_changes,
        opset_before=_opset(result.original),
        opset_after=_opset(result.model),
        kept_transposes=result.kept_transposes,
        memory=None if result.budgeted is None else _budget_record(result.budgeted),
    )


def _budget_record(done: Budgeted) -> BudgetRecord:
    before, after = (None, None) if done.measured is None else (one.all_runs for one in done.measured)
    return BudgetRecord(
        done.budget, done.sharing, done.arena_given, done.arena_best, done.arena, done.added_nodes, done.tiled_regions,
        done.extra_time_percent, done.compared, KEEPING, before, after,
    )  # fmt: skip


def with_rewrites(record: OptimizeRecord, result: OptimizeResult) -> OptimizeFile:
    """The same record and every rewrite."""
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    return OptimizeFile(**fields, rewrites=rewrite_lines(result.rewrites))


def divergence_record(found: Divergence) -> DivergenceRecord:
    """Where two models part."""
    return DivergenceRecord(
        found.name, found.node_a, found.node_b, found.reason, found.max_abs, found.max_rel, found.compared
    )


def reason_line(reason: Reason) -> ReasonLine:
    """Why a rule did not fire, and where."""
    return ReasonLine(reason.text, len(reason.nodes), reason.nodes)
