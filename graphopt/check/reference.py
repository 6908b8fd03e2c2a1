"""The original model, run on feeds that suit it; candidates, models and programs, are held to what it gave.

A check, not a proof. Shares no code with the passes, and the feeds depend on the original alone. Outputs that depend
on random operators are excluded and listed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.check.branches import Branches, watched
from graphopt.check.comparison import Comparison
from graphopt.check.double import is_small
from graphopt.check.engine import REFERENCE
from graphopt.check.feeds import NOTHING, Contents, Feed, holding, may_be_mask
from graphopt.check.foreign import cut
from graphopt.check.given import Given
from graphopt.check.held import Held
from graphopt.check.inputs import inputs_of
from graphopt.check.lineage import bounded_outputs, limits_of, stepped_outputs, summed_outputs
from graphopt.check.noise import Case, Noise
from graphopt.check.patience import Patience
from graphopt.check.randomness import random_outputs
from graphopt.check.runner import CannotRun, OutOfTime, Runner, Workplace
from graphopt.check.search import Search
from graphopt.check.sizes import Assignment
from graphopt.check.tables import changed_table
from graphopt.check.tolerance import EQUAL, LIMITS, PLAIN, ROUGH, Compared, Difference, Nature, compare
from graphopt.check.verification import Status, Verification
from graphopt.check.work import work_of_run
from graphopt.errors import OptionError
from graphopt.model.facts import Facts
from graphopt.model.functions import inlined
from graphopt.model.oversized import oversized
from graphopt.model.rooms import let_go


class Reference:
    """The original model, run once on feeds that suit it; candidates are compared with its recorded outputs."""

    def __init__(
        self,
        workplace: Workplace,
        model: ir.Model,
        seconds: float,
        *,
        given: Sequence[Given] = (),
        tolerance: float | None = None,
        contents: Contents = NOTHING,
    ) -> None:
        """Feeds that the user has `given` come first; the model must give the outputs that they expect.

        All others hold the numbers of `contents`.
        `tolerance` takes the place of the types' allowances and of the model's own rounding. Raises OptionError for a
        given feed that the model refuses.
        """
        self.workplace = workplace
        self.seconds = seconds
        self.model = model
        self.problem: str | None = None
        self.limited: str | None = None
        self.sizes: list[dict[str, int]] = []
        self.cases: list[Case] = []
        self.excluded = random_outputs(model)
        self.tolerance = tolerance
        self._contents = contents
        self.held = Held()
        self.limits: dict[str, float] = {}
        # A model is held to the strictest check that the original passes.
        self.checks = next((full for full in (True, False) if workplace.checker_error(model, full) is None), None)
        self.engine = ""
        self._started, self._patience = time.monotonic(), Patience(model)
        self._failure: str | None = None
        self.foreign: tuple[str, ...] = ()
        self._sound = self.checks is True
        self.branches = Branches()
        copy = inlined(model)
        facts = Facts(copy)
        self.problem = oversized(copy, facts)
        if self.problem is not None:
            return
        runnable = model
        try:
            self.runner = self._runner_of(model, work_of_run(copy, facts, {}))
        except CannotRun as error:
            around = cut(model)
            if around is None:
                self.problem = str(error)
                return
            runnable, self.foreign = around.model, around.operators
            try:
                self.runner = workplace.runner(runnable, self._sound)
            except CannotRun as rest:
                self.problem = str(rest)
                return
        self.limits = limits_of(copy, facts, tolerance)
        summed, bounded, stepped = summed_outputs(copy), bounded_outputs(copy), stepped_outputs(copy)
        names = summed | bounded | stepped
        self.natures = {name: Nature(name in summed, name in bounded, name in stepped) for name in names}

        def work(sizes: Assignment) -> int:
            return work_of_run(copy, facts, sizes)

        self.engine = self.runner.engine
        self._count = len(runnable.graph.outputs)
        with_conditions = watched(runnable)
        if with_conditions is not None:
            with contextlib.suppress(CannotRun):  # by an engine that will not give a condition out
                self.runner = workplace.runner(with_conditions.model, self._sound)
                self.branches = Branches(with_conditions.ifs)
        self.noise = Noise(
            workplace, runnable, self.runner, self._sound, lambda: work(self.sizes[0] if self.sizes else {}),
            self.cases, self.held,
        )  # fmt: skip
        self.inputs = inputs_of(runnable)
        for one in given:
            self._give(one)
        self._record(work)
        if self.foreign:
            self.limited = f"compared around what cannot be run here: {', '.join(self.foreign)}"

    def _runner_of(self, model: ir.Model, work: int) -> Runner:
        """ONNX Runtime, or the reference for a small model of operators or types that it lacks.

        Raises CannotRun, with ONNX Runtime's words where neither runs the model.
        """
        try:
            return self.workplace.runner(model, self._sound)
        except CannotRun as error:
            if self._sound and is_small(model, work):
                with contextlib.suppress(CannotRun):
                    return self.workplace.runner(model, True, defining=True)
            raise error

    def _give(self, given: Given) -> None:
        """Run the original on a feed of the user's; what it gives must be what is expected, if anything is."""
        try:
            found = list(self.runner.run(given.feed))
        except CannotRun as error:
            defined = self._given_to_reference(given)
            if defined is None:
                raise OptionError(f"the model does not accept {given.name}: {error}.") from error
            found = defined
        case = Case(self.held.feed(given.feed), self.held.all(found[: self._count]), "given")
        self.branches.note(found[self._count :])
        self.cases.append(case)
        for name, output in zip(self.runner.output_names, case.outputs, strict=False):
            if name not in given.expected or self.problem is not None:
                continue
            difference = compare(given.expected[name], output, limit=ROUGH)  # of another runtime, perhaps
            if difference.reason is not None:
                self.problem = f"the model does not give output '{name}' as {given.name} has it ({difference.reason})"

    def _given_to_reference(self, given: Given) -> list[object] | None:
        """What the ONNX reference evaluator gives for the first feed, which runs the original from now on; or None."""
        if self.cases or not self._sound or self.foreign:
            return None
        try:
            runner = self.workplace.runner(self.model, True, defining=True)
            found = list(runner.run(given.feed))
        except CannotRun:
            return None
        self.runner, self.engine, self.branches = runner, runner.engine, Branches()
        return found

    def _record(self, work: Callable[[Assignment], int]) -> None:
        """Find feeds that the original accepts, and keep what it gives."""
        search = Search(self.inputs, self._accepts, work, self.sizes)
        try:
            found = search.run() or (self._patience.renewed() and search.run())
        except OutOfTime:
            self.limited = f"stopped after {self.seconds:.0f} s"
            self._failure = (
                f"no run of the original succeeded within the {self.seconds:g} s for verification; allow more"
            )
            found = bool(self.cases)
        if not found and not self.cases:
            self.problem = search.refusal(self._failure)
        elif search.limited and self.limited is None:
            sizes = ", ".join(f"{name}={size}" for name, size in (self.sizes[0] if self.sizes else {}).items())
            failed = "the original failed at all other sizes that were tried; fix these dims, or give feeds of others"
            self.limited = f"at {sizes} only: {failed}"

    def _accepts(self, feed: Feed, draw: str) -> bool:
        """Run the original on one feed and keep the outputs; False when it refuses, OutOfTime when time is up."""
        left = self.seconds - (time.monotonic() - self._started)
        if left <= 0:
            raise OutOfTime
        feed = holding(feed, self._contents)
        feed = self.held.feed(feed, (one.default for one in self.inputs))
        self.held.make_room()
        try:
            outputs = list(self._patience.run(self.runner, feed, left))
        except CannotRun as error:
            self._failure = str(error)
            return False
        self.branches.note(outputs[self._count :])
        self.cases.append(Case(feed, self.held.all(outputs[: self._count]), draw))
        return True

    def check(self, candidate: ir.Model) -> Verification:
        """Compare a candidate with the original."""
        if self.checks is not None:
            fault = self.workplace.checker_error(candidate, self.checks)
            if fault is not None:
                return self.verdict("different", f"the result is not a valid model: {fault}")
        if self.problem is not None:
            return self.verdict("not run", self.problem)
        if self.foreign:
            around = cut(candidate)
            if around is None or around.operators != self.foreign:
                return self.verdict("different", "a custom operator was changed or removed")
            candidate = around.model
        try:
            runner = self.workplace.runner(candidate, self._sound, defining=self.engine == REFERENCE)
        except CannotRun as error:
            return self.verdict("different", f"the result cannot be loaded: {error}")
        if runner.engine != self.engine:
            why = f"only {runner.engine} can load the result, and {self.engine} the original"
            return self.verdict("different", why)
        changed = changed_table(self.model, candidate)
        if changed is not None:
            return self.verdict("different", changed)
        comparison = Comparison(self, runner.output_names)
        for case in comparison.cases:
            try:
                outputs = runner.run(case.feed)
            except CannotRun as error:
                comparison.fail(case, error)
                break
            if not comparison.take(case, outputs):
                break
        return comparison.verification

    def difference(
        self, name: str, case: Case, one: object, other: object, least: float = 0.0, *, summed: bool = False
    ) -> Difference:
        """The difference of one output, with samples of the model's own rounding as far as they are needed.

        `least` is a relative difference that is allowed unless the user has set another. `summed`: whether an infinity
        may stand for a NaN, and a NaN for an infinity, as an order of summing decides.
        """
        limit = self.limits.get(name)
        limit = limit if limit is None or self.tolerance is not None else max(limit, least)
        nature = self.natures.get(name, PLAIN)
        nature = replace(nature, summed=nature.summed or summed)
        compared = Compared(one, other, limit=limit, nature=nature)
        found = compared.difference()
        if found.reason is None or self.tolerance is not None:
            return found
        position = list(self.runner.output_names).index(name)
        for outputs in self.noise.samples(case):
            compared.add(outputs[position])
            let_go(outputs[position])
            found = compared.difference()
            if found.reason is None:
                break
        return found

    def defined(self, name: str, case: Case, other: object, least: float) -> Difference | None:
        """The difference from what the ONNX reference evaluator gives; None where that cannot say."""
        outputs = self.noise.defined(case)
        if outputs is None:
            return None
        position = list(self.runner.output_names).index(name)
        return self.difference(name, case, outputs[position], other, least)

    def verdict(
        self,
        status: Status,
        reason: str | None,
        worst: Difference | None = None,
        feeds: int = 0,
        least: float = 0.0,
        limited: str | None = None,
    ) -> Verification:
        """The verdict after so many `feeds`, `worst` being the largest difference; `least` as for `difference`.

        `limited` is what a complete check has to say all the same.
        """
        worst = worst or EQUAL
        tolerance = (
            {kind: max(limit, least) for kind, limit in LIMITS.items() if limit in self.limits.values()}
            if self.tolerance is None
            else dict.fromkeys(LIMITS, self.tolerance)
        )
        return Verification(
            status, feeds, worst.max_abs, worst.max_rel, reason, tuple(sorted(self.excluded)), tuple(self.sizes),
            self.engine, tolerance, self.limited or limited, worst.rounding,
            tuple(dict.fromkeys(case.draw for case in self.cases)), self.branches.reached, self._shut_rows(),
        )  # fmt: skip

    def _shut_rows(self) -> bool | None:
        masks = [value for case in self.cases for value in case.feed.values() if may_be_mask(value)]
        return any(not np.asarray(value).any(axis=-1).all() for value in masks) if masks else None
