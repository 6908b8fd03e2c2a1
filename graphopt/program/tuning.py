"""Kernels of a program by measurement: the likely best candidates of each family, each where it lies in the program.

Estimates choose well among candidates that are alike, and less well between algorithms. So of each kernel that takes a
part of the time worth mentioning, the likely best candidates of each family run in the program by turns, as long as
there is time; the estimate's own is kept unless it loses clearly, and the whole program has the last word. What was
found is kept by kernel and machine, so that it is measured once.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
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
from kernels.templates.template import HOPELESS, Template
from kernels.tune import CLEARLY, Choice, Clock, Database, Rival, Trial, key

EACH = 2  # candidates of a family that are tried in a little time
WIDE = 10.0  # seconds; with more of them all candidates are tried, as far as they last
SHARE = 0.005  # of the program's time: what takes less is left as it is
LEAST_GAIN = 0.005  # of the program's time, for which its kernels are exchanged
KIN, STRANGER = 0.1, 0.3  # of a kernel's time, that a candidate of its own family may save, and one of another
SLOW = 1.5  # times the likely best one's estimate, above which a rival is not tried in a little time
COMPILING = 0.6  # of the time for compiling rivals, the rest for their turns
ROUNDS, MORE_ROUNDS = (2, 5, 5), (3, 7, 9)  # passes before rivals are compiled, turns of each, of whole programs
AHEAD = 2  # rivals that are written while an earlier one is compiled
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

    @property
    def hopeless(self) -> float:
        """Times the likely best one's estimate, above which a rival is not tried."""
        return SLOW if self.seconds <= WIDE else HOPELESS

    @property
    def rounds(self) -> tuple[int, int, int]:
        """How often the program runs before rivals are compiled, each of them, and whole programs at the end."""
        return ROUNDS if self.seconds <= WIDE else MORE_ROUNDS

    def is_worth(self, share: float, is_kin: bool) -> bool:
        """Whether a rival of a kernel with this share of the time is tried: in a little time for what it may gain."""
        return self.seconds > WIDE or share * (KIN if is_kin else STRANGER) >= LEAST_GAIN


def with_choices(lowered: Lowered, choices: Mapping[str, Choice]) -> Lowered:
    """The program with the kernels that choices name, as far as there are such candidates."""
    chosen, target = {}, lowered.target
    for name, (template, problem) in lowered.problems.items():
        choice = choices.get(key(template, problem, target)) if choices else None
        if choice is None:
            continue
        likely, *others = template.candidates(problem, target)
        if choice.candidate != str(likely):
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
    kin: frozenset[str]  # those of its own family
    known: Mapping[str, float]  # nanoseconds of candidates that were measured before


def _entrants(lowered: Lowered, tuning: Tuning) -> list[_Entrant]:
    """Kernels with candidates that were never measured; not those that were, and took too little to matter here."""
    known, target, found = tuning.database.choices(), lowered.target, []
    bound = products_over(lowered)
    kernels = {one.kernel.name: one.kernel for one in lowered.regions if one.kernel.name not in bound}
    runs = Counter(region.kernel.name for region in lowered.regions)
    keys = {name: key(*lowered.problems[name], target) for name in kernels if name in lowered.problems}
    taken = {name: known[one].nanoseconds * runs[name] for name, one in keys.items() if one in known}
    for name, one in keys.items():
        template, problem = lowered.problems[name]
        share = taken[name] / sum(taken.values()) if name in taken else 1.0
        if share <= SHARE:
            continue
        measured = known[one].measured if one in known else {}
        rivals = template.rivals(problem, target, tuning.each, tuning.hopeless)
        kin = _kin(template, problem, target, kernels[name].choice, rivals)
        rivals = tuple(
            rival for rival in rivals
            if str(rival) not in (*measured, kernels[name].choice) and tuning.is_worth(share, str(rival) in kin)
        )  # fmt: skip
        if rivals:
            found.append(_Entrant(kernels[name], template, problem, one, rivals, kin, measured))
    return found


def _kin(
    template: Template[Any, Any], problem: Any, target: Target, choice: str, rivals: Sequence[Any]
) -> frozenset[str]:
    """Those rivals that are of the family of a choice; none where the template has no families."""
    if template.family is None:
        return frozenset()
    likely = bool(rivals) and str(rivals[0]) == choice
    known = rivals if likely else template.candidates(problem, target)
    own = next((one for one in known if str(one) == choice), None)
    if own is None:
        return frozenset()
    return frozenset(str(one) for one in rivals if template.family(one)[0] == template.family(own)[0])


class _Contest:
    """One program's measurement."""

    def __init__(
        self, listing: Listing, program: Program, target: Target, tuning: Tuning, entrants: Sequence[_Entrant]
    ) -> None:
        self.target, self.tuning, self.entrants = target, tuning, entrants
        self.end = tuning.clock() + tuning.seconds
        self.cache = program.cache
        self.stage = Trial(
            listing, program.address, program.weights, _drawn(listing), target, clock=tuning.clock
        )  # fmt: skip

    def won(self) -> dict[str, Kernel]:
        """The kernels to take; choices of all that were measured are kept."""
        warm, rounds, _ = self.tuning.rounds
        times = self.stage.times(warm)
        total = sum(times.values())
        ordered = sorted(self.entrants, key=lambda one: -times[one.kernel.name])
        worth = [self._worth(one, times[one.kernel.name] / total) for one in ordered]
        rivals = self._compiled(worth)
        found = self.stage.contest(rivals, rounds, self.end)
        results, gained = [], 0.0
        for one in worth:
            name = one.kernel.name
            if not one.candidates or name in rivals:  # else there was no time
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

    def _worth(self, one: _Entrant, share: float) -> _Entrant:
        """With those candidates alone that are worth trying, as large a share of the time as the kernel has."""
        some = one.candidates if share >= SHARE else ()
        some = tuple(each for each in some if self.tuning.is_worth(share, str(each) in one.kin))
        return replace(one, candidates=some)

    def _made(self, one: _Entrant, choice: str) -> Kernel:
        """The kernel of a choice, with what several workers share."""
        candidate = next(each for each in one.candidates if str(each) == choice)
        return one.template.kernel(one.problem, self.target, one.kernel.name, candidate)

    def _are_faster(self, rivals: Mapping[str, Sequence[Rival]], chosen: Mapping[str, str]) -> bool:
        """Whether the whole program is faster with the chosen candidates."""
        taken = {
            name: next(one for one in rivals[name] if one.kernel.choice == choice) for name, choice in chosen.items()
        }
        own, other = self.stage.whole(taken, self.tuning.rounds[2], self.end)
        return other < own

    def _compiled(self, entrants: Sequence[_Entrant]) -> dict[str, list[Rival]]:
        """The rivals of kernels, as many as can be compiled in their share of the time, the likely best ones first."""
        until, begun = self.end - (1 - COMPILING) * self.tuning.seconds, deque[Kernel]()
        found: dict[str, list[Rival]] = {}

        def take() -> None:
            rival = Rival(begun.popleft(), self.cache)
            found.setdefault(rival.kernel.name, []).append(rival)

        for kernel in self._written(entrants):
            if self.tuning.clock() > until:
                break
            self.cache.begin(kernel.module.text(), self.target)
            begun.append(kernel)
            if len(begun) > AHEAD:
                take()
        while begun and self.tuning.clock() <= until:
            take()
        self.cache.only(())
        return found

    def _written(self, entrants: Sequence[_Entrant]) -> Iterator[Kernel]:
        """The rivals, the likely best ones first, without those whose larger weights find no room."""
        extra = 0
        for place in range(max((len(one.candidates) for one in entrants), default=0)):
            for one in entrants:
                if place < len(one.candidates):
                    candidate = one.candidates[place]
                    kernel = one.template.build(one.problem, candidate, self.target, one.kernel.name)
                    more = self.stage.extra_bytes(kernel)
                    if extra + more <= MOST_EXTRA:
                        extra += more
                        yield replace(kernel, choice=str(candidate))


def _drawn(listing: Listing) -> list[Array]:
    """Bytes of every input: numbers around zero, or zeros and ones where they may be places."""
    generator, found = np.random.default_rng(SEED), []
    for one in listing.inputs:
        array, count = aligned(max(one.bytes, 1), np.uint8), one.bytes // one.dtype.bytes
        drawn = generator.standard_normal(count) if one.dtype.is_float else generator.integers(0, 2, count)
        array[: one.bytes] = drawn.astype(one.dtype.numpy).view(np.uint8)
        found.append(array)
    return found
