"""The loops of a kernel, and what its inner loop did: shares of instructions, transactions, bank conflicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernels.ptx.machine.grammar import PtxFunction, PtxInstruction, PtxLabel, Symbol
from kernels.ptx.machine.reports import Tally, Traffic

MULTIPLIES = ("fma", "mma", "wmma", "wgmma")


@dataclass(frozen=True, slots=True)
class InnerLoop:
    """What a loop that multiplies did: instructions of warps by name, and traffic by space.

    `spaces` has "global read", "shared read", "shared copy" and the like.
    """

    lines: frozenset[int]
    instructions: Mapping[str, int]
    spaces: Mapping[str, Traffic]

    @property
    def total(self) -> int:
        """Instructions of warps."""
        return sum(self.instructions.values())

    @property
    def multiplies(self) -> int:
        """Those that multiply and add."""
        return sum(self.instructions.get(one, 0) for one in MULTIPLIES)


def inner_loops(function: PtxFunction, tally: Tally) -> list[InnerLoop]:
    """The loops of a kernel that multiply, those with the most multiplications first."""
    found: list[InnerLoop] = []
    for body in loops(function):
        lines = frozenset(one.line for one in body)
        named: dict[str, int] = {}
        spaces: dict[str, Traffic] = {}
        for one in body:
            named[one.name] = named.get(one.name, 0) + tally.executed.get(one.line, 0)
            space = next((space for space in ("shared", "global", "local") if space in one.modifiers), "generic")
            if one.line in tally.copied:
                _add(spaces, "shared copy", tally.copied[one.line])
                space = "global"
            if one.line in tally.by_line:
                _add(spaces, f"{space} {'write' if one.name == 'st' else 'read'}", tally.by_line[one.line])
        loop = InnerLoop(lines, {name: many for name, many in sorted(named.items()) if many}, spaces)
        if loop.multiplies:
            found.append(loop)
    return sorted(found, key=lambda one: -one.multiplies)


def loops(function: PtxFunction) -> list[list[PtxInstruction]]:
    """The instructions of each innermost loop: blocks that reach one another, without the way back of a loop around."""
    blocks, follows = _blocks(function)
    found = sorted(map(sorted, _innermost(range(len(blocks)), follows)))
    return [[one for number in some for one in blocks[number]] for some in found]


def _add(spaces: dict[str, Traffic], name: str, traffic: Traffic) -> None:
    before = spaces.get(name, Traffic(0, 0, 0, 0))
    spaces[name] = Traffic(
        before.accesses + traffic.accesses, before.transactions + traffic.transactions, before.least + traffic.least,
        before.bytes + traffic.bytes,
    )  # fmt: skip


def _blocks(function: PtxFunction) -> tuple[list[list[PtxInstruction]], list[set[int]]]:
    """Instructions between labels and branches, and which blocks follow each."""
    blocks: list[list[PtxInstruction]] = [[]]
    begins: dict[str, int] = {}
    for item in function.body:
        if isinstance(item, PtxLabel):
            if blocks[-1]:
                blocks.append([])
            begins[item.name] = len(blocks) - 1
        elif isinstance(item, PtxInstruction):
            blocks[-1].append(item)
            if item.name in ("bra", "brx", "ret", "exit"):
                blocks.append([])
    follows: list[set[int]] = []
    for number, block in enumerate(blocks):
        last = block[-1] if block else None
        after: set[int] = set()
        if last is not None and last.name == "bra":
            after |= {begins[one.name] for one in last.operands if isinstance(one, Symbol)}
        ends = last is not None and last.name in ("bra", "brx", "ret", "exit") and last.guard is None
        if not ends and number + 1 < len(blocks):
            after.add(number + 1)
        follows.append(after)
    return blocks, follows


def _innermost(nodes: Iterable[int], follows: Sequence[set[int]]) -> list[list[int]]:
    """Components of blocks that reach one another; where one holds others, these."""
    found = []
    for component in _components(list(nodes), follows):
        alone = len(component) == 1
        if alone and component[0] not in follows[component[0]]:
            continue
        head = min(component)
        entered = {one for number, some in enumerate(follows) if number not in component for one in some}
        heads = sorted(entered & set(component)) or [head]
        inner = [] if alone else _innermost([one for one in component if one != heads[0]], follows)
        found += inner or [component]
    return found


def _components(nodes: Sequence[int], follows: Sequence[set[int]]) -> list[list[int]]:
    """Strongly connected components (Tarjan, 1972), without recursion."""
    among = set(nodes)
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    held: set[int] = set()
    found: list[list[int]] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(sorted(follows[root] & among)))]
        index[root] = low[root] = len(index)
        stack.append(root)
        held.add(root)
        while work:
            node, after = work[-1]
            following = next(after, None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component: list[int] = []
                    while not component or component[-1] != node:
                        component.append(stack.pop())
                        held.discard(component[-1])
                    found.append(sorted(component))
            elif following not in index:
                index[following] = low[following] = len(index)
                stack.append(following)
                held.add(following)
                work.append((following, iter(sorted(follows[following] & among))))
            elif following in held:
                low[node] = min(low[node], index[following])
    return found
