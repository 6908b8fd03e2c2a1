"""Kernels of a program by measurement: the likely best candidates of each family, each where it lies in the program.

Estimates choose well among candidates that are alike, and less well between algorithms. So of each kernel that takes a
part of the time worth mentioning, the likely best candidates of each family run in the program by turns, as long as
there is time; the estimate's own is kept unless it loses clearly, and the whole program has the last word. What was
found is kept by kernel and machine, so that it is measured once.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphopt.model.text import Progress, several, silent
from graphopt.program.deploy.session import Program
from graphopt.program.in_place import products_over
from graphopt.program.regions.region import Lowered
from kernels.kernel import Kernel
from kernels.listing import Listing
from kernels.run import Array, aligned
from kernels.target import Target
from kernels.templates.template import Template
from kernels.tune import CLEARLY, Choice, Clock, Database, Rival, Trial, key

EACH = 2  # candidates of a family that are tried in a little time
WIDE = 10.0  # seconds; with more of them all candidates are tried, as far as they last
SHARE = 0.005  # of the program's time: what takes less is left as it is
LEAST_GAIN = 0.005  # of the program's time, for which its kernels are exchanged
COMPILING = 0.6  # of the time for compiling rivals, the rest for their turns
WARM, ROUNDS, LAST_ROUNDS = 3, 7, 9  # passes before rivals are compiled, turns of each, of whole programs
MOST_EXTRA = 1 << 30  # bytes of room for larger weights of rivals
SEED = 0


@dataclass(frozen=True, slots=True)
class Tuning:
    """How long to measure, and where choices are kept; `seconds` of 0: what is kept is used, and nothing measured."""

    database: Database
    seconds: float
    progress: Progress = silent
    clock: Clock = time.perf_counter

    @property
    def each(self) -> int:
        """Candidates of each family that are tried."""
        return EACH if self.seconds <= WIDE else 1 << 30


def with_choices(lowered: Lowered, choices: Mapping[str, Choice]) -> Lowered:
    """The program with the kernels that choices name, as far as there are such candidates."""
    chosen, target = {}, lowered.target
    for name, (template, problem) in lowered.problems.items():
        choice = choices.get(key(template, problem, target))
        likely, *others = template.candidates(problem, target)
        if choice is not None and choice.candidate != str(likely):
            named = next((one for one in others if str(one) == choice.candidate), None)
            if named is not None:
                chosen[name] = template.kernel(problem, target, name, named)
    return lowered.with_kernels(chosen) if chosen else lowered


def tuned(lowered: Lowered, listing: Listing, program: Program, tuning: Tuning) -> dict[str, Kernel]:
    """The kernels that measuring finds better than those of a program, by name; what it finds is kept."""
    entrants = _entrants(lowered, tuning) if tuning.seconds > 0 else []
    if not entrants:
        return {}
    tuning.progress(f"measuring {several(len(entrants), 'kernel')}")
    return _Contest(listing, program, lowered.target, tuning, entrants).won()


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A kernel of a program, and which candidates are to be measured beside its own."""

    kernel: Kernel
    template: Template[Any, Any]
    problem: Any
    key: str
    candidates: tuple[Any, ...]
    known: Mapping[str, float]  # nanoseconds of candidates that were measured before


def _entrants(lowered: Lowered, tuning: Tuning) -> list[_Entrant]:
    """Kernels with candidates that were never measured; not those that were, and took too little to matter here."""
    known, target, found = tuning.database.choices(), lowered.target, []
    bound = products_over(lowered)
    kernels = {one.kernel.name: one.kernel for one in lowered.regions if one.kernel.name not in bound}
    keys = {name: key(*lowered.problems[name], target) for name in kernels if name in lowered.problems}
    total = sum(known[one].nanoseconds for one in keys.values() if one in known)
    for name, one in keys.items():
        template, problem = lowered.problems[name]
        choice = known.get(one)
        if choice is not None and choice.nanoseconds <= SHARE * total:
            continue
        measured = {} if choice is None else choice.measured
        rivals = template.rivals(problem, target, tuning.each)
        rivals = tuple(rival for rival in rivals if str(rival) not in (*measured, kernels[name].choice))
        if rivals:
            found.append(_Entrant(kernels[name], template, problem, one, rivals, measured))
    return found


class _Contest:
    """One program's measurement."""

    def __init__(
        self, listing: Listing, program: Program, target: Target, tuning: Tuning, entrants: Sequence[_Entrant]
    ) -> None:
        self.target, self.tuning, self.entrants = target, tuning, entrants
        self.end = tuning.clock() + tuning.seconds
        self.stage = Trial(
            listing, program.address, program.weights, _drawn(listing), target, clock=tuning.clock
        )  # fmt: skip

    def won(self) -> dict[str, Kernel]:
        """The kernels to take; choices of all that were measured are kept."""
        times = self.stage.times(WARM)
        total = sum(times.values())
        ordered = sorted(self.entrants, key=lambda one: -times[one.kernel.name])
        worth = [one for one in ordered if times[one.kernel.name] >= SHARE * total]
        rivals = self._compiled(worth)
        found = self.stage.contest(rivals, ROUNDS, self.end)
        results, gained = [], 0.0
        for one in ordered:
            name = one.kernel.name
            if one not in worth or name in rivals:  # else there was no time
                texts = (one.kernel.choice, *(rival.kernel.choice for rival in rivals.get(name, ())))
                taken = dict(zip(texts, found.get(name, [times[name]]), strict=False))
                best = min(taken, key=lambda text: taken[text])
                best = best if taken[best] < CLEARLY * taken[texts[0]] else texts[0]
                results.append((one, taken, best))
                gained += taken[texts[0]] - taken[best]
        chosen = {one.kernel.name: best for one, _, best in results if best != one.kernel.choice}
        if gained < LEAST_GAIN * total or not self._are_faster(rivals, chosen):
            chosen = {}
        kept = {}
        for one, taken, _ in results:
            best, runs = chosen.get(one.kernel.name, one.kernel.choice), self.stage.count(one.kernel.name)
            each = {text: nanoseconds / runs for text, nanoseconds in taken.items()}
            kept[one.key] = Choice(one.template.name, self.target.cpu, best, each[best], {**one.known, **each})
        self.tuning.database.add(kept)
        return {one.kernel.name: self._made(one, chosen[one.kernel.name]) for one, _, _ in results
                if one.kernel.name in chosen}  # fmt: skip

    def _made(self, one: _Entrant, choice: str) -> Kernel:
        """The kernel of a choice, with what several workers share."""
        candidate = next(each for each in one.candidates if str(each) == choice)
        return one.template.kernel(one.problem, self.target, one.kernel.name, candidate)

    def _are_faster(self, rivals: Mapping[str, Sequence[Rival]], chosen: Mapping[str, str]) -> bool:
        """Whether the whole program is faster with the chosen candidates."""
        taken = {
            name: next(one for one in rivals[name] if one.kernel.choice == choice) for name, choice in chosen.items()
        }
        own, other = self.stage.whole(taken, LAST_ROUNDS, self.end)
        return other < own

    def _compiled(self, entrants: Sequence[_Entrant]) -> dict[str, list[Rival]]:
        """The rivals of kernels, as many as can be compiled in their share of the time, the likely best ones first."""
        until, extra = self.end - (1 - COMPILING) * self.tuning.seconds, 0
        found: dict[str, list[Rival]] = {}
        for place in range(max((len(one.candidates) for one in entrants), default=0)):
            for one in entrants:
                if self.tuning.clock() > until:
                    return found
                if place >= len(one.candidates):
                    continue
                candidate, name = one.candidates[place], one.kernel.name
                kernel = one.template.build(one.problem, candidate, self.target, name)
                extra += (more := self.stage.extra_bytes(kernel))
                if extra > MOST_EXTRA:
                    extra -= more
                    continue
                found.setdefault(name, []).append(Rival(replace(kernel, choice=str(candidate))))
        return found


def _drawn(listing: Listing) -> list[Array]:
    """Bytes of every input: numbers around zero, or zeros and ones where they may be places."""
    generator, found = np.random.default_rng(SEED), []
    for one in listing.inputs:
        array, count = aligned(max(one.bytes, 1), np.uint8), one.bytes // one.dtype.bytes
        drawn = generator.standard_normal(count) if one.dtype.is_float else generator.integers(0, 2, count)
        array[: one.bytes] = drawn.astype(one.dtype.numpy).view(np.uint8)
        found.append(array)
    return found
