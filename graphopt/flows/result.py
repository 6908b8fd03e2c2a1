"""What `optimize` gives: the model, the story of how it came to be, and the way to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx_ir as ir
import onnxruntime
from msgspec import structs

from graphopt.check.verification import Verification
from graphopt.errors import VerificationError
from graphopt.flows.records.models import OptimizeFile, OptimizeRecord, RewriteLine
from graphopt.flows.shown import Shown
from graphopt.flows.written import Written
from graphopt.memory.budgeted import Budgeted
from graphopt.memory.contract import contract_options
from graphopt.model.census import Census, census
from graphopt.model.save import save
from graphopt.model.signature import Signature
from graphopt.model.text import binary_size, several
from graphopt.passes import pipeline
from graphopt.passes.meaning import meanings, why
from graphopt.rewrite.record import PassRecord, Rewrite, Rollback


@dataclass(frozen=True, repr=False)
class OptimizeResult(Shown, Written):
    """The optimized model and what was done to reach it. What is in a model is counted when it is first asked for."""

    request: pipeline.Request  # what the caller asked for
    model: ir.Model
    original: ir.Model  # as loaded, with the dims and the layout that the caller asked for
    original_bytes: int | None  # of the file or bytes that were read; None where there was neither
    seconds: float  # of the passes, without loading, saving and verification
    verify_seconds: float
    passes: tuple[PassRecord, ...]
    rewrites: tuple[Rewrite, ...]
    rolled_back: tuple[Rollback, ...]
    flops: tuple[int, int] | None  # before and after, dynamic dims taken as 1; None without `details`
    verification: Verification
    signature: Signature
    signature_changes: tuple[str, ...]  # inputs and dims that the caller fixed, freed or permuted; nothing else ever
    kept_transposes: tuple[str, ...]  # with `layout`: the Transposes left in the main graph, each with what keeps it
    source: Path | None
    source_data: frozenset[Path]  # files that the input keeps tensors in
    budgeted: Budgeted | None = None  # with `memory_budget`: what keeping it took

    def __repr__(self) -> str:
        name = "" if self.source is None else f"{self.source.name}: "
        return f"<OptimizeResult {name}{self.before.nodes} -> {self.after.nodes} nodes, {self.verification.status}>"

    def _record(self) -> OptimizeFile:
        return self.full_record()

    def _headers(self) -> tuple[str, ...]:
        return ("", "before", "after")

    def _figures(self) -> list[tuple[str, ...]]:
        return [
            ("nodes", f"{self.before.nodes:,}", f"{self.after.nodes:,}"),
            ("bytes", binary_size(self.before.bytes), binary_size(self.after.bytes)),
            ("parameters", f"{self.before.parameters:,}", f"{self.after.parameters:,}"),
            ("verification", "", f"{self.verification.status}, {several(self.verification.feeds, 'feed')}"),
        ]

    @cached_property
    def before(self) -> Census:
        """Nodes, bytes, parameters and operators of the original."""
        return census(self.original, self.original_bytes)

    @cached_property
    def after(self) -> Census:
        """Nodes, bytes, parameters and operators of the optimized model."""
        return census(self.model)

    @property
    def unverified(self) -> str | None:
        """Why the result did not pass a check that was asked for; None where it passed, or none was asked for."""
        if self.verification.status not in ("verified", "off"):
            return self.verification.reason or "nothing ran it"
        if self.budgeted is not None and self.budgeted.not_compared is not None:
            return f"under the memory budget, {self.budgeted.not_compared}"
        return None

    def record(self, output: str = "", source: str | None = None) -> OptimizeRecord:
        """What was done, as `--json` prints it; `output` is the file that is written, empty for none.

        `source` names the input, whose path is taken otherwise.
        """
        return OptimizeRecord(
            input=source or ("" if self.source is None else str(self.source)),
            output=output,
            level=self.request.level,
            nodes_before=self.before.nodes,
            nodes_after=self.after.nodes,
            bytes_before=self.before.bytes,
            bytes_after=self.after.bytes,
            parameters_before=self.before.parameters,
            parameters_after=self.after.parameters,
            types_before=dict(self.before.by_type),
            types_after=dict(self.after.by_type),
            seconds=self.seconds,
            verify_seconds=self.verify_seconds,
            passes=self.passes,
            rolled_back=self.rolled_back,
            verification=self.verification,
            signature_unchanged=not self.signature_changes,
            signature_changes=self.signature_changes,
            opset_before=_opset(self.original),
            opset_after=_opset(self.model),
            kept_transposes=self.kept_transposes,
            memory=None if self.budgeted is None else self.budgeted.record,
            inputs=tuple(map(str, self.signature.inputs)),
            outputs=tuple(map(str, self.signature.outputs)),
        )

    def full_record(self, output: str = "", source: str | None = None) -> OptimizeFile:
        """The same record and every rewrite, as `--report` writes it."""
        return OptimizeFile(**structs.asdict(self.record(output, source)), rewrites=rewrite_lines(self.rewrites))

    def save(self, path: str | os.PathLike[str], *, in_place: bool = False, unchecked: bool = False) -> None:
        """Write the model, its external data beside it, and leave what was there when that fails, or dies on the way.

        Raises SaveError where nothing can be written, and VerificationError for a result that was to be checked but
        could not be, or was found different, unless it is `unchecked` that is wanted.
        """
        if self.unverified is not None and not unchecked:
            raise VerificationError(
                f"the result could not be verified, so it is not saved: {self.unverified}; pass "
                "unchecked=True to save it all the same."
            )
        save(self.model, path, source=self.source, source_data=self.source_data, in_place=in_place)

    def session(self, options: onnxruntime.SessionOptions | None = None) -> onnxruntime.InferenceSession:
        """A session of ONNX Runtime's CPU provider for the model, checked or not.

        Without `options` those of ONNX Runtime, or under a memory budget those that keep it.
        """
        return super().session(contract_options() if options is None and self.budgeted is not None else options)


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


def _opset(model: ir.Model) -> int:
    """The version of ONNX's own operators that the model imports; 1 where it names none."""
    return model.opset_imports.get("", 1)
