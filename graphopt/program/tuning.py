"""Kernels of a program by measurement: the likely best candidates of each family, each where it lies in the program.

Estimates choose well among candidates that are alike, and less well between algorithms. So of each kernel that takes a
part of the time worth mentioning, the likely best candidates of each family run in the program by turns, as long as
there is time; the estimate's own is kept unless it loses clearly, and the whole program has the last word. In a little
time the most promising few go first, and every one that gains nothing halves what is hoped of others of its kind: where
estimates are right, measuring soon ends. What was found is kept by kernel and machine, so that it is measured once.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from graphopt.model.text import Progress, several, silent
from graphopt.program.deploy.session import Program
from graphopt.program.elsewhere import Elsewhere, Job
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
WAVE = 4  # rivals that are measured before it is asked again which are worth it
COMPILING = 0.6  # of the time for compiling rivals, the rest for their turns
ROUNDS, MORE_ROUNDS = (2, 5, 3), (3, 7, 9)  # passes before rivals are compiled, turns of each, of whole programs
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
    elsewhere: Elsewhere | None = None  # other machines, which measure in this one's place
    only: frozenset[str] | None = None  # keys of the kernels that are measured here; None: all

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

    @property
    def ahead(self) -> float | None:
        """What `Trial.contest` is told."""
        return CLEARLY if self.seconds <= WIDE else None

    @property
    def wave(self) -> int:
        """How many rivals are measured together."""
        return WAVE if self.seconds <= WIDE else 1 << 30

    def is_worth(self, share: float, is_kin: bool, losses: int = 0) -> bool:
        """Whether a rival of a kernel with this share of the time is tried: in a little time for what it may gain.

        `losses` of its kind that were tried gained nothing.
        """
        return self.seconds > WIDE or hoped(share, is_kin, losses) >= LEAST_GAIN


def hoped(share: float, is_kin: bool, losses: int) -> float:
    """Which part of the program's time a rival may gain, of whose kind so many gained nothing."""
    return share * (KIN if is_kin else STRANGER) * 0.5**losses


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


def tuned(
    lowered: Lowered, listing: Listing, program: Program, tuning: Tuning, job: Callable[[], Job] | None = None
) -> dict[str, Kernel]:
    """The kernels that measuring finds better than those of a program, by name; what it finds is kept.

    `job` is what other machines are sent, where they measure.
    """
    entrants = _entrants(lowered, tuning) if tuning.seconds > 0 else []
    if not entrants:
        return {}
    tuning.progress(f"measuring {several(len(entrants), 'kernel')}")
    return _Contest(listing, program, lowered.target, tuning, entrants).won(job)


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

    def kind(self, candidate: Any) -> _Kind:
        """Of what a candidate is one: a template, and whether it is of the kernel's own family."""
        return self.template.name, str(candidate) in self.kin


_Kind = tuple[str, bool]
_Pair = tuple[_Entrant, Any]  # an entrant and one of its candidates
_Reading = tuple[dict[str, float], tuple[str, ...]]  # nanoseconds of all runs by candidate, and those left out


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
        if share <= SHARE or not (tuning.only is None or one in tuning.only):
            continue
        measured = known[one].measured if one in known else {}
        rivals = template.rivals(problem, target, tuning.each, tuning.hopeless)
        kin = _kin(template, problem, target, kernels[name].choice, rivals)
        rivals = tuple(
            rival for rival in rivals
            if str(rival) not in (*measured, kernels[name].choice) and tuning.is_worth(share, str(rival) in kin)
            and (tuning.seconds > WIDE or one not in known or str(rival) not in known[one].left_out)
        )  # fmt: skip
        if rivals:
            found.append(_Entrant(kernels[name], template, problem, one, rivals, kin, measured))
    return found


def _kin(
    template: Template[Any, Any], problem: Any, target: Target, choice: str, rivals: Sequence[Any]
) -> frozenset[str]:
    """Those rivals that are of the family of a choice; all where the template has no families."""
    if template.family is None:
        return frozenset(map(str, rivals))
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
        self._begin()
        self._rivals: dict[str, list[Rival]] = {}  # compiled, by kernel
        self._extra = 0  # bytes of room for their weights
        self._shares: Mapping[str, float] = {}  # of the time, by kernel
        self._losses: Counter[_Kind] = Counter()  # rivals that gained nothing since one of their kind did
        self.cache = program.cache
        self.stage = Trial(
            listing, program.address, program.weights, _drawn(listing), target, clock=tuning.clock
        )  # fmt: skip

    def _begin(self) -> None:
        """The seconds run from now on."""
        self.end = self.tuning.clock() + self.tuning.seconds
        self._until = self.end - (1 - COMPILING) * self.tuning.seconds  # rivals are compiled

    def won(self, job: Callable[[], Job] | None) -> dict[str, Kernel]:
        """The kernels to take; choices of all that were measured are kept."""
        times = self.stage.times(self.tuning.rounds[0])
        total = sum(times.values())
        self._shares = {name: taken / total for name, taken in times.items()}
        worth = [self._worth(one, self._shares[one.kernel.name]) for one in self.entrants]
        if self.tuning.elsewhere is None or job is None:
            readings = self._measured(worth, times)
        else:
            readings = self._asked(worth, times, self.tuning.elsewhere, job)
            self._begin()
            self._until = math.inf  # what is chosen there is compiled here, however long it takes
        return self._kept(worth, times, readings, total)

    def _measured(self, worth: Sequence[_Entrant], times: Mapping[str, float]) -> Mapping[str, _Reading]:
        """What rivals take, by turns, for as long as there is time."""
        found: dict[str, list[float]] = {}
        waiting: list[_Pair] = [(one, candidate) for one in worth for candidate in one.candidates]
        while waiting:
            waiting.sort(key=self._hoped, reverse=True)
            some = self._wave(waiting)
            compiled = self._compiled(some)
            taken = self.stage.contest(compiled, self.tuning.rounds[1], self.end, self.tuning.ahead) if compiled else {}
            for name, (own, *others) in taken.items():
                before = found.get(name, [own])
                found[name] = [min(own, before[0]), *before[1:], *others]
                self._rivals.setdefault(name, []).extend(compiled[name])
            tried = {(name, rival.kernel.choice): taken[name][number + 1] < CLEARLY * taken[name][0]
                     for name, one in compiled.items() for number, rival in enumerate(one)}  # fmt: skip
            for one, candidate in some:
                gained = tried.get((one.kernel.name, str(candidate)))
                if gained is not None:
                    kind = one.kind(candidate)
                    self._losses[kind] = 0 if gained else self._losses[kind] + 1
            waiting = [pair for pair in waiting if (pair[0].kernel.name, str(pair[1])) not in tried]
            if len(tried) < len(some) or not some:  # there was no time, or no more that is worth it
                break
        left_out = waiting if self.tuning.clock() <= self._until else []
        readings = {}
        for one in worth:
            name = one.kernel.name
            left = tuple(str(each) for other, each in left_out if other is one)
            if name in self._rivals or left:  # else there was no time
                texts = (one.kernel.choice, *(rival.kernel.choice for rival in self._rivals.get(name, ())))
                readings[name] = dict(zip(texts, found.get(name, [times[name]]), strict=False)), left
        return readings

    def _asked(
        self, worth: Sequence[_Entrant], times: Mapping[str, float], elsewhere: Elsewhere, job: Callable[[], Job]
    ) -> Mapping[str, _Reading]:
        """What rivals take as other machines measured them; those that had no time for a kernel say nothing of it."""
        taken = {one.key: times[one.kernel.name] for one in worth if one.candidates}
        found = elsewhere(job(), taken, self.tuning.database.choices(), self.tuning.seconds) if taken else {}
        readings = {}
        for one in worth:
            choice = found.get(one.key)
            if choice is not None:
                own, runs = one.kernel.choice, self.stage.count(one.kernel.name)
                new = {text: runs * time for text, time in choice.measured.items() if text not in one.known}
                own_time = runs * choice.measured[own] if own in choice.measured else times[one.kernel.name]
                readings[one.kernel.name] = {own: own_time, **new}, choice.left_out
        return readings

    def _kept(
        self, worth: Sequence[_Entrant], times: Mapping[str, float], readings: Mapping[str, _Reading], total: float
    ) -> dict[str, Kernel]:
        """The kernels to take by what was found; all of that is kept."""
        results, gained = [], 0.0
        for one in worth:
            own = one.kernel.choice
            if one.candidates and one.kernel.name not in readings:
                continue
            taken, left = readings[one.kernel.name] if one.candidates else ({own: times[one.kernel.name]}, ())
            best = min(taken, key=lambda text: taken[text])
            best = best if taken[best] < CLEARLY * taken[own] else own
            results.append((one, taken, best, left))
            gained += taken[own] - taken[best]
        chosen = {one.kernel.name: best for one, _, best, _ in results if best != one.kernel.choice}
        if gained < LEAST_GAIN * total or not self._are_faster(chosen):
            chosen = {}
        kept = {}
        for one, taken, _, left in results:
            best, runs = chosen.get(one.kernel.name, one.kernel.choice), self.stage.count(one.kernel.name)
            each = {text: nanoseconds / runs for text, nanoseconds in taken.items()}
            kept[one.key] = Choice(one.template.name, self.target.cpu, best, each[best], {**one.known, **each}, left)
        self.tuning.database.add(kept)
        return {one.kernel.name: self._made(one, chosen[one.kernel.name]) for one, *_ in results
                if one.kernel.name in chosen}  # fmt: skip

    def _hoped(self, pair: _Pair) -> float:
        """Which part of the program's time a rival may gain."""
        one, candidate = pair
        return hoped(self._shares[one.kernel.name], str(candidate) in one.kin, self._losses[one.kind(candidate)])

    def _wave(self, waiting: Sequence[_Pair]) -> list[_Pair]:
        """Which rivals are next: in a little time one of a kernel, since each of one kernel takes a pass of its own."""
        little = self.tuning.wave < len(waiting)
        first = {pair[0].kernel.name: pair for pair in reversed(waiting)}
        some = [pair for pair in waiting if not little or first[pair[0].kernel.name] is pair]
        return [pair for pair in some[: self.tuning.wave] if self._is_tried(pair)]

    def _is_tried(self, pair: _Pair) -> bool:
        one, candidate = pair
        losses = self._losses[one.kind(candidate)]
        return self.tuning.is_worth(self._shares[one.kernel.name], str(candidate) in one.kin, losses)

    def _worth(self, one: _Entrant, share: float) -> _Entrant:
        """With those candidates alone that are worth trying, as large a share of the time as the kernel has."""
        some = one.candidates if share >= SHARE else ()
        some = tuple(each for each in some if self.tuning.is_worth(share, str(each) in one.kin))
        return replace(one, candidates=some)

    def _made(self, one: _Entrant, choice: str) -> Kernel:
        """The kernel of a choice, with what several workers share."""
        return one.template.kernel(one.problem, self.target, one.kernel.name, self._candidate(one, choice))

    def _candidate(self, one: _Entrant, choice: str) -> Any:
        """The candidate of a name, also one that another machine found worth trying, and this one not."""
        candidates = one.template.rivals(one.problem, self.target, self.tuning.each, self.tuning.hopeless)
        return next(each for each in candidates if str(each) == choice)

    def _are_faster(self, chosen: Mapping[str, str]) -> bool:
        """Whether the whole program is faster with the chosen candidates."""
        entrants = {one.kernel.name: one for one in self.entrants}
        absent = [
            (entrants[name], self._candidate(entrants[name], choice)) for name, choice in chosen.items()
            if all(one.kernel.choice != choice for one in self._rivals.get(name, ()))
        ]  # fmt: skip
        for name, some in (self._compiled(absent) if absent else {}).items():
            self._rivals.setdefault(name, []).extend(some)
        taken = {
            name: rival for name, choice in chosen.items() for rival in self._rivals.get(name, ())
            if rival.kernel.choice == choice
        }  # fmt: skip
        if len(taken) < len(chosen):  # there is no room for their weights
            return False
        own, other = self.stage.whole(taken, self.tuning.rounds[2], self.end)
        return other < own

    def _compiled(self, some: Sequence[_Pair]) -> dict[str, list[Rival]]:
        """Rivals, as many as can be compiled in their share of the time, in this order."""
        begun: deque[Kernel] = deque()
        found: dict[str, list[Rival]] = {}

        def take() -> None:
            rival = Rival(begun.popleft(), self.cache)
            found.setdefault(rival.kernel.name, []).append(rival)

        for kernel in self._written(some):
            if self.tuning.clock() > self._until:
                break
            self.cache.begin(kernel.module.text(), self.target)
            begun.append(kernel)
            if len(begun) > AHEAD:
                take()
        while begun and self.tuning.clock() <= self._until:
            take()
        self.cache.only(())
        return found

    def _written(self, some: Sequence[_Pair]) -> Iterator[Kernel]:
        """The rivals without those whose larger weights find no room."""
        for one, candidate in some:
            kernel = one.template.build(one.problem, candidate, self.target, one.kernel.name)
            more = self.stage.extra_bytes(kernel)
            if self._extra + more <= MOST_EXTRA:
                self._extra += more
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
