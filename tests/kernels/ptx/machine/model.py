"""The memory model of PTX as axioms, for litmus tests: all executions of a few events, and which are consistent.

After Lustig, Sahasrabuddhe and Giroux, A formal analysis of the NVIDIA PTX memory consistency model (ASPLOS 2019).
It shares nothing with the machine: no clocks, no order in which things run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Strength = Literal["weak", "relaxed", "acquire", "release", "acq_rel", "sc"]
Pairs = frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Event:
    """A read, a write, or a fence of a thread; 0 lies everywhere at first."""

    kind: Literal["R", "W", "F"]
    place: str = ""
    value: int = 0
    strength: Strength = "weak"
    scope: Literal["cta", "gpu"] = "gpu"


@dataclass(frozen=True)
class Litmus:
    """Threads as lists of events, and the block of each."""

    threads: tuple[tuple[Event, ...], ...]
    blocks: tuple[int, ...]


def closed(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """The transitive closure."""
    found = set(pairs)
    for middle in range(count):
        for a in range(count):
            if (a, middle) in found:
                found |= {(a, b) for b in range(count) if (middle, b) in found}
    return found


def executions(litmus: Litmus) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Of each consistent execution what the reads see, thread by thread, and whether it has a data race."""
    events = [(thread, event) for thread, some in enumerate(litmus.threads) for event in some]
    count = len(events)
    places = sorted({event.place for _, event in events if event.kind != "F"})
    first = {place: count + number for number, place in enumerate(places)}  # what lies there at first
    order = {(a, b) for a in range(count) for b in range(a + 1, count) if events[a][0] == events[b][0]}
    reads = [one for one in range(count) if events[one][1].kind == "R"]
    writes = {place: [one for one in range(count) if events[one][1].kind == "W" and events[one][1].place == place]
              for place in places}  # fmt: skip
    fences = [one for one in range(count) if events[one][1].kind == "F" and events[one][1].strength == "sc"]
    sources = [[first[events[one][1].place], *writes[events[one][1].place]] for one in reads]
    for rf in itertools.product(*sources):
        for orders in itertools.product(*(itertools.permutations(writes[place]) for place in places)):
            for sc in itertools.permutations(fences):
                lines = [[first[place], *one] for place, one in zip(places, orders, strict=True)]
                verdict = _judged(litmus, events, order, dict(zip(reads, rf, strict=True)), lines, sc)
                if verdict is not None:
                    seen = tuple(0 if one >= count else events[one][1].value for one in rf)
                    yield seen, verdict


def _judged(
    litmus: Litmus, events: list[tuple[int, Event]], order: set[tuple[int, int]], rf: dict[int, int],
    coherence: list[list[int]], sc: tuple[int, ...],
) -> bool | None:  # fmt: skip
    """Whether a consistent execution has a race; None for one that is not consistent."""
    count = len(events)

    def inclusive(a: int, b: int) -> bool:
        if a >= count or b >= count:
            return True
        (s, x), (t, y) = events[a], events[b]
        return litmus.blocks[s] == litmus.blocks[t] or x.scope == y.scope == "gpu"

    def strong(a: int, b: int) -> bool:
        """Morally strong."""
        if a >= count or b >= count:
            return a >= count or b >= count
        return "weak" not in (events[a][1].strength, events[b][1].strength) and inclusive(a, b)

    co = {(a, b) for line in coherence for place, a in enumerate(line) for b in line[place + 1 :]}
    fr = {(read, b) for read, source in rf.items() for a, b in co if a == source}
    seen = {(source, read) for read, source in rf.items()}
    releases: list[tuple[int, int]] = []  # what begins a release pattern, and its write
    acquires: list[tuple[int, int]] = []
    for a in range(count):
        event = events[a][1]
        if event.kind == "W" and event.strength in ("release", "acq_rel"):
            releases.append((a, a))
        if event.kind == "R" and event.strength in ("acquire", "acq_rel"):
            acquires.append((a, a))
        if event.kind == "F":
            for b in range(count):
                if events[b][1].strength != "weak":
                    if (a, b) in order and events[b][1].kind == "W":
                        releases.append((a, b))
                    elif (b, a) in order and events[b][1].kind == "R":
                        acquires.append((a, b))
    sync = {(a, c) for a, b in releases for c, d in acquires
            if (b, d) in seen and strong(b, d) and inclusive(a, c) and events[a][0] != events[c][0]}  # fmt: skip
    sync |= {(a, b) for place, a in enumerate(sc) for b in sc[place + 1 :] if inclusive(a, b)}
    cause = closed(order | sync, count)
    watched = {(a, b) for a, b in seen if a < count and strong(a, b)}
    cause |= {(a, d) for a, b in watched for c, d in cause if b == c}  # what was observed came before
    if any(a == b for a, b in cause):
        return None
    for place, a in enumerate(sc):
        if any((b, a) in cause for b in sc[place + 1 :]):
            return None
    if any((b, a) in co for a, b in cause):  # coherence
        return None
    if any((b, a) in cause for a, b in seen | fr if a < count):  # causality
        return None
    local = {(a, b) for a, b in order if events[a][1].place == events[b][1].place != ""}
    per_place = {(a, b) for a, b in seen | co | fr if a < count and b < count and strong(a, b)} | local
    if any(a == b for a, b in closed(per_place, count)):
        return None
    return any(
        events[a][1].place == events[b][1].place and "W" in (events[a][1].kind, events[b][1].kind)
        and "F" not in (events[a][1].kind, events[b][1].kind) and events[a][0] != events[b][0]
        and not strong(a, b) and (a, b) not in cause and (b, a) not in cause
        for a in range(count) for b in range(a + 1, count)
    )  # fmt: skip


def as_ptx(litmus: Litmus) -> str:
    """The body of a kernel: places are words of p0, sixteen apart; what a thread reads goes to its row of p1."""
    places = sorted({event.place for some in litmus.threads for event in some if event.kind != "F"})
    lines: list[str] = []
    number = 0
    first_of: dict[int, int] = {}
    for thread, some in enumerate(litmus.threads):
        block = litmus.blocks[thread]
        warp = first_of.setdefault(block, 0)
        first_of[block] += 1
        lines += [f" setp.ne.u32 %p1, %r1, {block}; @%p1 bra $T{thread};"]
        lines += [f" setp.ne.u32 %p1, %r0, {32 * warp}; @%p1 bra $T{thread};"]
        for event in some:
            at = f"[%d0+{64 * places.index(event.place)}]" if event.kind != "F" else ""
            how = "" if event.strength == "weak" else f".{event.strength}.{event.scope}"
            if event.kind == "F":
                lines.append(f" fence.{event.strength}.{event.scope};")
            elif event.kind == "W":
                lines.append(f" mov.b32 %r10, {event.value}; st{how}.global.b32 {at}, %r10;")
            else:
                lines.append(f" ld{how}.global.b32 %r11, {at}; st.global.b32 [%d1+{4 * number}], %r11;")
                number += 1
        lines += [" bra $END;", f"$T{thread}:"]
    return "\n".join([*lines, "$END:"])
