"""Exact search for the order of least peak: over sets of operators that have run, level of peak by level.

A state is a set of operators that have run; what is live follows from it. All states that can be reached without
needing more than a level are explored, depth first, the one with the fewest live bytes first; then the level rises to
the least that one of them was refused for. The level is thus a bound from below at any moment, and the first way to
the full set is the best there is.

What makes it fast is that some steps need no alternatives. Live bytes are a submodular function of the set, so that an
operator which leaves no more live bytes than there were, and needs no more than the level, can run at once: in any way
onwards it could be moved to the front without making a step need more. The same holds for a chain of operators, each
waiting for the one before it, whose last one is the first to leave no more than there were. The state behind all
such steps stands for those before.

Source: Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural Networks for Edge Devices",
MLSys 2020 (sets as states, a budget that prunes); the rule for chains is our own.
"""

from __future__ import annotations

import numpy as np

from memplan.compiling import compiled, plainly
from memplan.ordering.arrays import Ints
from memplan.ordering.part import Part, Words

FOUND, EXHAUSTED, FULL, PAUSED = 0, 1, 2, 3
LONGEST_CHAIN = 24
PLAIN_LOOKS = 25_000  # the first of a search, which take less time than numba takes to be imported
NEVER = 2**62


class Search:
    """A search that can be continued. `level` is a bound from below once everything under it has been explored."""

    def __init__(self, part: Part, level: int, below: int, *, states: int, rising: bool = True) -> None:
        """Look for an order of `part` that needs at most `level` bytes or, rising, the fewest less than `below`."""
        self.part = part
        words = part.before.shape[1]
        self._tables = (
            part.grows, part.workspace, part.fades, part.before, part.behind.start, part.behind.items, part.users,
            part.size, part.reads.start, part.reads.items, part.reused,
        )  # fmt: skip
        slots = 1 << (2 * states - 1).bit_length()
        self._store = (
            np.zeros((states, words), np.uint64),  # sets
            np.zeros(states, np.int64),  # live bytes
            np.full(states, -1, np.int64),  # the state before
            np.full(states, -1, np.int64),  # the operator that leads here, -1: none but what runs at once
            np.zeros(states, np.int64),  # the level at which the state was made
            np.full(slots, -1, np.int64),  # hash -> state
            np.zeros(states, np.int64),  # the level at which the state was last looked at
            np.zeros(states, np.int64),  # stack
            np.zeros(states, np.int64),  # heap: levels at which states are to be looked at again
            np.zeros(states, np.int64),  # heap: those states
        )
        self._numbers = np.array([level, 0, 0, 0, below, 1 if rising else 0, -1, 0], np.int64)
        with plainly(), np.errstate(over="ignore"):
            _start(part.live, self._tables, self._store, self._numbers)

    @property
    def level(self) -> int:
        """Bytes."""
        return int(self._numbers[0])

    @property
    def states(self) -> int:
        """How many have been made."""
        return int(self._numbers[1])

    @property
    def looks(self) -> int:
        """How often an operator was looked at in a state."""
        return int(self._numbers[7])

    def run(self, looks: int) -> int:
        """Take about so many looks: FOUND, EXHAUSTED (there is no such order), FULL (no room), or PAUSED."""
        last = self.looks + looks
        if self.looks < PLAIN_LOOKS:
            with plainly(), np.errstate(over="ignore"):  # hashes
                outcome = int(_run(min(last, PLAIN_LOOKS), self._tables, self._store, self._numbers))
            if outcome != PAUSED or last <= PLAIN_LOOKS:
                return outcome
        return int(_run(last, self._tables, self._store, self._numbers))

    def order(self) -> Ints:
        """The order that was found, as positions in the graph."""
        with plainly():
            order: Ints = self.part.operators[_order(self._numbers[6], self.part.live, self._tables, self._store)]
        return order


@compiled
def _is_in(words: Words, one: int) -> bool:
    return bool((words[one >> 6] >> np.uint64(one & 63)) & np.uint64(1) != 0)


@compiled
def _put(words: Words, one: int) -> None:
    words[one >> 6] |= np.uint64(1) << np.uint64(one & 63)


@compiled
def _is_ready(words: Words, before: Words, one: int) -> bool:
    for word in range(len(words)):  # noqa: SIM110  (numba compiles no generators)
        if before[one, word] & ~words[word]:
            return False
    return True


@compiled
def _live_after(words: Words, live: int, one: int, tables: tuple) -> int:  # type: ignore[type-arg]
    """Live bytes once `one` has run too; what it reads is dropped where nobody else waits for it."""
    grows, _, fades, _, _, _, users, size, read_start, reads, _ = tables
    live += grows[one] - fades[one]
    mine = one >> 6
    for at in range(read_start[one], read_start[one + 1]):
        value = reads[at]
        wanted = False
        for word in range(len(words)):
            others = users[value, word] & ~words[word]
            if word == mine:
                others &= ~(np.uint64(1) << np.uint64(one & 63))
            if others:
                wanted = True
                break
        if not wanted:
            live -= size[value]
    return live


@compiled
def _need(live: int, after: int, one: int, tables: tuple) -> int:  # type: ignore[type-arg]
    """Bytes while `one` runs; what it drops may give its place to the results."""
    grows, workspace, fades, reused = tables[0], tables[1], tables[2], tables[10]
    dropped = live + grows[one] - fades[one] - after
    return int(live + grows[one] + workspace[one] - min(reused[one], dropped))


@compiled
def _at_once(words: Words, live: int, level: int, tables: tuple, ran: Ints, many: int) -> tuple[int, int]:  # type: ignore[type-arg]
    """Run what needs no alternative; `ran` notes what did. Returns the live bytes and how many have been noted."""
    grows, workspace, _, before, behind_start, behind = tables[:6]
    reused = tables[10]
    chain, ahead = np.empty(LONGEST_CHAIN, np.int64), np.empty_like(words)
    changed = True
    while changed:
        changed = False
        for one in range(len(grows)):
            least = live + grows[one] + workspace[one] - reused[one]
            if _is_in(words, one) or least > level or not _is_ready(words, before, one):
                continue
            after = _live_after(words, live, one, tables)
            if _need(live, after, one, tables) > level:
                continue
            length = 1
            chain[0] = one
            if after > live:
                ahead[:] = words
                _put(ahead, one)
            while after > live and length < LONGEST_CHAIN:
                last, best, least = int(chain[length - 1]), -1, 0
                for at in range(behind_start[last], behind_start[last + 1]):
                    other = int(behind[at])
                    if _is_ready(ahead, before, other):
                        then = _live_after(ahead, after, other, tables)
                        if _need(after, then, other, tables) <= level and (best < 0 or then < least):
                            best, least = other, then
                if best < 0:
                    break
                chain[length] = best
                length += 1
                _put(ahead, best)
                after = least
            if after <= live:
                for at in range(length):
                    _put(words, chain[at])
                    ran[many] = chain[at]
                    many += 1
                live = after
                changed = True
    return live, many


@compiled
def _find(words: Words, sets: Words, table: Ints) -> tuple[int, bool]:
    """The slot of a set in the table, or the free one where it belongs."""
    mixed = np.uint64(0x9E3779B97F4A7C15)
    for word in range(len(words)):
        mixed = (mixed ^ words[word]) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    slot = int(np.int64(mixed & np.uint64(len(table) - 1)))
    while table[slot] >= 0:
        same = True
        for word in range(len(words)):
            if sets[table[slot], word] != words[word]:
                same = False
                break
        if same:
            return slot, True
        slot = (slot + 1) & (len(table) - 1)
    return slot, False


@compiled
def _add(words: Words, live: int, parent: int, by: int, store: tuple, numbers: Ints) -> int:  # type: ignore[type-arg]
    """A new state's number, or -1 where the set has been reached before."""
    sets, lives, parents, leads, levels, table, looked = store[:7]
    slot, known = _find(words, sets, table)
    if known:
        return -1
    state = int(numbers[1])
    numbers[1] += 1
    table[slot] = state
    sets[state], lives[state], parents[state], leads[state], levels[state] = words, live, parent, by, numbers[0]
    looked[state] = numbers[0]
    return state


@compiled
def _is_full(words: Words, count: int) -> bool:
    for one in range(count):  # noqa: SIM110
        if not _is_in(words, one):
            return False
    return True


@compiled
def _start(live: int, tables: tuple, store: tuple, numbers: Ints) -> None:  # type: ignore[type-arg]
    words = np.zeros(store[0].shape[1], np.uint64)
    ran = np.empty(len(tables[0]), np.int64)
    live, _ = _at_once(words, live, numbers[0], tables, ran, 0)
    state = _add(words, live, -1, -1, store, numbers)
    store[7][0] = state
    numbers[2] = 1
    if _is_full(words, len(tables[0])):
        numbers[6] = state


@compiled
def _push(levels: Ints, states: Ints, many: int, level: int, state: int) -> None:
    at = many
    while at > 0:
        above = (at - 1) >> 1
        if levels[above] <= level:
            break
        levels[at], states[at] = levels[above], states[above]
        at = above
    levels[at], states[at] = level, state


@compiled
def _pop(levels: Ints, states: Ints, many: int) -> int:
    """The state of the lowest level; the heap then has many - 1."""
    first = int(states[0])
    many -= 1
    level, state = levels[many], states[many]
    at = 0
    while 2 * at + 1 < many:
        child = 2 * at + 1
        if child + 1 < many and levels[child + 1] < levels[child]:
            child += 1
        if levels[child] >= level:
            break
        levels[at], states[at] = levels[child], states[child]
        at = child
    levels[at], states[at] = level, state
    return first


@compiled
def _run(most: int, tables: tuple, store: tuple, numbers: Ints) -> int:  # type: ignore[type-arg]
    """numbers: level, states, height of stack and of heap, bound from above, whether to rise, result, looks."""
    grows, _, _, before = tables[:4]
    sets, lives, _, _, _, _, looked, stack, heap_levels, heap_states = store
    count = len(grows)
    words, ran = np.empty(sets.shape[1], np.uint64), np.empty(count, np.int64)
    children, orders = np.empty(count, np.int64), np.empty(count, np.int64)
    while numbers[7] < most:
        if numbers[6] >= 0:
            return FOUND
        if numbers[1] + count + 1 >= len(sets):
            return FULL
        if numbers[2] == 0:
            if numbers[5] == 0 or numbers[3] == 0:
                return EXHAUSTED
            numbers[0] = heap_levels[0]
            while numbers[3] > 0 and heap_levels[0] <= numbers[0]:
                stack[numbers[2]] = _pop(heap_levels, heap_states, numbers[3])
                numbers[2] += 1
                numbers[3] -= 1
            continue
        numbers[2] -= 1
        numbers[7] += 2 * count
        state = stack[numbers[2]]
        live = lives[state]
        if looked[state] < numbers[0]:
            looked[state] = numbers[0]
            words[:] = sets[state]
            after, many = _at_once(words, live, numbers[0], tables, ran, 0)
            if many:
                made = _add(words, after, state, -1, store, numbers)
                if made >= 0:
                    if _is_full(words, count):
                        numbers[6] = made
                    stack[numbers[2]] = made
                    numbers[2] += 1
                continue
        refused, born = NEVER, 0
        for one in range(count):
            if _is_in(sets[state], one) or not _is_ready(sets[state], before, one):
                continue
            words[:] = sets[state]
            after = _live_after(words, live, one, tables)
            need = _need(live, after, one, tables)
            if need > numbers[0]:
                refused = min(refused, need)
                continue
            _put(words, one)
            numbers[7] += count
            after, _ = _at_once(words, after, numbers[0], tables, ran, 0)
            made = _add(words, after, state, one, store, numbers)
            if made < 0:
                continue
            if _is_full(words, count):
                numbers[6] = made
            children[born], orders[born] = made, after
            born += 1
        if refused < numbers[4]:
            _push(heap_levels, heap_states, numbers[3], refused, state)
            numbers[3] += 1
        for place in np.argsort(-orders[:born], kind="mergesort"):
            stack[numbers[2]] = children[place]
            numbers[2] += 1
    return FOUND if numbers[6] >= 0 else PAUSED


@compiled
def _order(state: int, live: int, tables: tuple, store: tuple) -> Ints:  # type: ignore[type-arg]
    """The way to a state, with what ran at once on it found again."""
    sets, _, parents, leads, made_at = store[:5]
    count = len(tables[0])
    path = np.empty(len(sets), np.int64)
    length = 0
    while state >= 0:
        path[length] = state
        length += 1
        state = parents[state]
    order = np.empty(count, np.int64)
    many = 0
    words = np.zeros(sets.shape[1], np.uint64)
    for place in range(length - 1, -1, -1):
        state = path[place]
        if leads[state] >= 0:
            live = _live_after(words, live, leads[state], tables)
            _put(words, leads[state])
            order[many] = leads[state]
            many += 1
        live, many = _at_once(words, live, made_at[state], tables, order, many)
    return order
