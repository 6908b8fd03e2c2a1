"""Choosing by measurement: candidates of a program's kernels run where they lie in the program, by turns.

A kernel alone finds its weights where its last run left them; in a program they come from wherever the others pushed
them. So all runs of a program pass in their order, in memory of their own, and each run whose kernel has rivals is
timed by itself; from pass to pass the candidates take turns. What is found is kept in a file that anyone may read, by
what decides it: the template, the problem, the target.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from kernels.kernel import Kernel
from kernels.listing import Listing, Place, Run
from kernels.llvm.load import ObjectCache
from kernels.run import Array, Executable, aligned, driver, placed
from kernels.target import Target
from kernels.templates.template import Template

SCHEMA = "graphopt.tuning/2"
CLEARLY = 0.97  # of the time of the likely best candidate must another one take to be chosen
SURE, LOST = 2, 1.25  # turns, and times the best of them, after which one has lost
SEVERAL = 4  # runs of a kernel, whose first turn tells as much as several of a single run
Clock = Callable[[], float]  # seconds
_Prepared = Callable[[], None]  # a run whose addresses are fixed


class Choice(msgspec.Struct, frozen=True):
    """What was found for one kernel."""

    kernel: str  # the template, for people
    target: str
    candidate: str
    nanoseconds: float  # of a run of all blocks by the candidate, where it lies in a program
    measured: dict[str, float]  # the same of all that were tried
    left_out: tuple[str, ...] = ()  # those that were not, since others of their kind had gained nothing


class _File(msgspec.Struct, frozen=True):
    schema: str
    choices: dict[str, Choice]


class Database:
    """Choices in a JSON file; several processes may share it, and the last one to write wins.

    A file that is damaged or of another version holds nothing, and is written anew.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def choices(self) -> dict[str, Choice]:
        """All of them by key."""
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=_File)
        except (FileNotFoundError, msgspec.DecodeError):
            return {}
        return found.choices if found.schema == SCHEMA else {}

    def add(self, choices: Mapping[str, Choice]) -> None:
        """Keep choices, in place of those with the same keys."""
        content = _File(SCHEMA, dict(sorted({**self.choices(), **choices}.items())))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
        os.replace(name, self.path)


def key(template: Template[Any, Any], problem: object, target: Target) -> str:
    """What decides a choice, as a hash."""
    machine = (target.triple, target.cpu, target.features, target.vector_bytes, target.constant_level)
    parts = (template.name, template.variant, repr(problem), repr(machine))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


class Rival:
    """A candidate of one of a program's kernels, compiled."""

    def __init__(self, kernel: Kernel, cache: ObjectCache | None = None) -> None:
        self.kernel = kernel
        self.code = Executable([kernel], cache)


class Trial:
    """A program's runs for one worker, in memory of their own.

    `address` says where a kernel's code lies, `weights` are those of the listing, `inputs` the bytes of each input. A
    rival whose weights take more bytes than those that lie in the listing gets room of its own, filled with theirs:
    only the time of its runs means something, and its results are those of other weights. Scratch is one for all, as in
    a program: what the run before left in the caches is a part of a kernel's time.
    """

    def __init__(
        self, listing: Listing, address: Callable[[str], int], weights: npt.NDArray[np.uint8], inputs: Sequence[Array],
        target: Target, *, clock: Clock = time.perf_counter,
    ) -> None:  # fmt: skip
        self.runs, self.clock = listing.runs, clock
        self._target = target
        arena = placed(np.zeros(max(listing.arena_bytes, 1), np.uint8))
        outputs = [aligned(max(one.bytes, 1), np.uint8) for one in (*listing.outputs, *listing.dims)]
        self._memory: dict[str, Sequence[Array]] = {
            "arena": [arena], "weights": [weights], "input": inputs, "output": outputs,
        }  # fmt: skip
        self._kept: list[object] = [address]
        self._kernels = {kernel.name: kernel for kernel in listing.kernels}
        self._entries = {name: address(name) for name in self._kernels}
        self._lay_scratch(listing.scratch_bytes)

    def extra_bytes(self, kernel: Kernel) -> int:
        """The room that a rival of the kernel with its name takes besides, over all of its runs."""
        pairs = zip(kernel.operands, self._kernels[kernel.name].operands, strict=True)
        return sum(one.bytes for one, own in pairs if one.bytes > own.bytes) * self.count(kernel.name)

    def count(self, name: str) -> int:
        """How many runs a kernel has."""
        return sum(run.kernel == name for run in self.runs)

    def contest(
        self, rivals: Mapping[str, Sequence[Rival]], rounds: int, until: float | None = None,
        ahead: float | None = None,
    ) -> dict[str, list[float]]:  # fmt: skip
        """Nanoseconds of all runs of each kernel, first its own and then those of its rivals, each the least of turns.

        There are `rounds` of turns, or fewer where the clock has come to `until`, but one at least. In a turn each run
        has every way once; the runs of one kernel have different ones in a pass. After SURE turns those that are LOST
        times as slow as the best of their kernel take no more; with `ahead` all rivals that need more than this share
        of its own kernel's time, and where a kernel has SEVERAL runs after one turn, the others after a second. With
        `ahead` those that have LOST to its own kernel in the first turn take no second one.
        """
        self._make_room(rival for some in rivals.values() for rival in some)
        ways = {
            number: [self._own[number], *(self._in_place(rival, run) for rival in rivals[run.kernel])]
            for number, run in enumerate(self.runs)
            if rivals.get(run.kernel)
        }
        of_kernel: dict[str, list[int]] = {}
        for number in ways:
            of_kernel.setdefault(self.runs[number].kernel, []).append(number)
        rank = {number: place for numbers in of_kernel.values() for place, number in enumerate(numbers)}
        least = {number: [float("inf")] * len(one) for number, one in ways.items()}
        racing, passes = {name: list(range(len(ways[numbers[0]]))) for name, numbers in of_kernel.items()}, 0
        for turn in range(rounds):
            for _ in range(max(map(len, racing.values()), default=0)):
                if turn and until is not None and self.clock() > until:
                    racing.clear()
                    break
                chosen = {
                    number: some[(passes + rank[number]) % len(some)]
                    for name, some in racing.items()
                    for number in of_kernel[name]
                }
                self._pass(chosen, ways, least)
                passes += 1
            for name, some in racing.items():
                several = ahead is not None and len(of_kernel[name]) >= SEVERAL
                times = _summed(least[number] for number in of_kernel[name])
                if turn + 1 == (1 if several else SURE):
                    most = LOST * min(times) if ahead is None else ahead * times[0]
                    racing[name] = [one for one in some if times[one] <= most or (ahead and not one)]
                elif ahead is not None and turn == 0:
                    racing[name] = [one for one in some if not one or times[one] <= LOST * times[0]]
                elif several:
                    racing[name] = []
            racing = {name: some for name, some in racing.items() if len(some) > 1}
        return {
            name: [1e9 * seconds for seconds in _summed(least[number] for number in numbers)]
            for name, numbers in of_kernel.items()
        }

    def times(self, rounds: int) -> dict[str, float]:
        """Nanoseconds of all runs of each kernel of the program, each the least of so many."""
        ways = {number: [own] for number, own in enumerate(self._own)}
        least = {number: [float("inf")] for number in ways}
        for _ in range(rounds):
            self._pass(dict.fromkeys(ways, 0), ways, least)
        found: dict[str, float] = {}
        for number, (seconds,) in least.items():
            name = self.runs[number].kernel
            found[name] = found.get(name, 0.0) + 1e9 * seconds
        return found

    def whole(self, chosen: Mapping[str, Rival], rounds: int, until: float | None = None) -> tuple[float, float]:
        """Seconds of the whole program as it is, and with rivals in place of some of its kernels, by turns.

        There are `rounds` of them, or fewer where one of both was the faster one in more than half of so many.
        """
        self._make_room(chosen.values())
        other = [
            self._in_place(chosen[run.kernel], run) if run.kernel in chosen else own
            for run, own in zip(self.runs, self._own, strict=True)
        ]
        taken: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds):
            if turn and until is not None and self.clock() > until:
                break
            for side, runs in zip(taken, (self._own, other), strict=True):
                start = self.clock()
                for one in runs:
                    one()
                side.append(self.clock() - start)
            won = sum(after < before for before, after in zip(*taken, strict=True))
            if 2 * max(won, turn + 1 - won) > rounds:
                break
        return min(taken[0]), min(taken[1])

    def _pass(
        self, turn: Mapping[int, int], ways: Mapping[int, Sequence[_Prepared]], least: Mapping[int, list[float]]
    ) -> None:
        """All runs in their order; the times of those that have ways are noted."""
        clock = self.clock
        for number, own in enumerate(self._own):
            if number not in turn:
                own()
                continue
            way = ways[number][turn[number]]
            start = clock()
            way()
            taken = clock() - start
            if taken < least[number][turn[number]]:
                least[number][turn[number]] = taken

    def _lay_scratch(self, size: int) -> None:
        """Room for what every kernel keeps while it runs; the program's own are prepared for it."""
        self._scratch = placed(np.zeros(size, np.uint8))
        self._own = [self._prepared(self._kernels[run.kernel], run, self._entries[run.kernel]) for run in self.runs]

    def _make_room(self, rivals: Iterable[Rival]) -> None:
        """Larger scratch where a rival needs it."""
        most = max((rival.kernel.scratch_bytes for rival in rivals), default=0)
        if most > self._scratch.size:
            self._lay_scratch(most)

    def _prepared(self, kernel: Kernel, run: Run, entry: int) -> _Prepared:
        mine = self._kernels[run.kernel].operands
        pointers = [
            self._address(place) if one.bytes <= own.bytes else self._filled(one.bytes, own.bytes, place)
            for one, own, place in zip(kernel.operands, mine, run.operands, strict=True)
        ]
        table = np.array(pointers, np.uint64)
        scratch = self._scratch.ctypes.data if kernel.scratch_bytes else 0
        row = np.array([entry, table.ctypes.data, 0, kernel.blocks, scratch], np.uint64)
        self._kept += [table, row]
        run_rows = driver(self._target, units=kernel.module.uses_units)
        return functools.partial(run_rows, row.ctypes.data, 1)

    def _in_place(self, rival: Rival, run: Run) -> _Prepared:
        self._kept.append(rival)
        return self._prepared(rival.kernel, run, rival.code.address(rival.kernel.name))

    def _address(self, place: Place) -> int:
        return int(self._memory[place.space][place.argument].ctypes.data) + place.offset

    def _filled(self, size: int, given: int, place: Place) -> int:
        """Room of `size` bytes with the `given` bytes at a place, over and over."""
        source = self._memory[place.space][place.argument].reshape(-1).view(np.uint8)
        room = placed(np.resize(source[place.offset : place.offset + given], size))
        self._kept.append(room)
        return int(room.ctypes.data)


def _summed(times: Iterable[Sequence[float]]) -> list[float]:
    """The seconds of each way, over all runs of a kernel."""
    return [sum(one) for one in zip(*times, strict=True)]
