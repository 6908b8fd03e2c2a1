"""Contraction by alias classes: views and results in place join the operator that makes what they stand on.

    conv -> x -> relu (in place) -> y -> reshape (view) -> z      -->      conv+relu+reshape -> z

A view has no bytes of its own, and between an operator and the only one that uses its result in place nothing can be
gained by running another; so an order of the small graph is as good as one of the large graph. Results in place with
further operands are joined only when asked for: an operator then waits for what its result is combined with, and that
rules orders out. Otherwise an operator says how many bytes of its results lie where operands lay that end with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from memplan.graph import Graph, Operator, Share, Value


@dataclass(frozen=True, slots=True)
class Condensed:
    """The small graph, and what its operators stand for in the given order of the large one."""

    graph: Graph
    groups: Mapping[str, tuple[str, ...]]
    first: tuple[str, ...]  # operators that only view what is given: before all others

    def expand(self, order: Sequence[str]) -> tuple[str, ...]:
        """An order of the small graph, operators repeated or not, as one of the large graph."""
        return (*self.first, *(name for group in order for name in self.groups[group]))


def condense(graph: Graph, *, sums: bool = False, rooms: bool = False) -> Condensed:
    """Join views and sole in-place results to what they stand on; with `sums` also those with further operands.

    With `rooms` the operator that makes the last slice of a concatenation counts the room of the whole as workspace: it
    writes into it, while the other slices may still lie elsewhere. Without, slices are taken to lie in it from the
    start and to cost nothing before they are made. What really holds lies between, and depends on the order.
    """
    return _Condenser(graph, sums, rooms).run()


class _Condenser:
    def __init__(self, graph: Graph, sums: bool, rooms: bool) -> None:
        self._graph = graph
        self._sums, self._rooms = sums, rooms
        self._position: dict[str, int] = {}  # group -> where it stands in the small graph
        self._values = {value.name: value for value in graph.values}
        self._shares: dict[str, list[Share]] = {}
        for share in graph.shares:
            self._shares.setdefault(share.value, []).append(share)
        self._into: dict[str, list[Share]] = {}
        for share in graph.shares:
            self._into.setdefault(share.of, []).append(share)
        self._stands_for: dict[str, str] = {}  # value of the large graph -> value that has its bytes
        self._uses: dict[str, int] = {}  # by value, views followed
        self._made_by: dict[str, str] = {}  # value that is left -> group
        self._maker: dict[str, str] = {}  # value -> group, overwritten ones too
        self._groups: dict[str, list[str]] = {}
        self._merged: dict[str, Operator] = {}
        self._group_of: dict[str, str] = {}
        self._first: list[str] = []
        self._last_use: dict[str, str] = {}  # value -> the operator that uses it last, in the given order

    def run(self) -> Condensed:
        # Views first: only then is it known how many operators really use a value.
        views = {operator.name for operator in self._graph.operators if self._take_view(operator)}
        for operator in self._graph.operators:
            if operator.name not in views:
                for name in {self._base(name) for name in operator.inputs}:
                    self._uses[name] = self._uses.get(name, 0) + 1
                    self._last_use[name] = operator.name
        kept: set[str] = {self._base(value.name) for value in self._graph.values if value.kind == "output"}
        for operator in self._graph.operators:
            if operator.name in views:
                self._append_view(operator)
            else:
                self._add(operator, kept)
        values = []
        for value in self._graph.values:
            if self._base(value.name) == value.name and self._is_left(value.name):
                values.append(replace(value, kind="output") if value.name in kept and self._is_made(value) else value)
        left = {value.name for value in values}
        shares = []
        for share in self._graph.shares:
            of = self._base(share.of)
            # A joined operator writes its result before it reads the others' operands: they cannot make room for it.
            joined = share.overwrites and len(self._groups.get(self._made_by.get(share.value, ""), ())) > 1
            if share.value in left and of in left and of != share.value and not joined:
                shares.append(replace(share, of=of))
        small = Graph(tuple(values), tuple(self._merged.values()), tuple(shares))
        return Condensed(small, {name: tuple(group) for name, group in self._groups.items()}, tuple(self._first))

    def _base(self, name: str) -> str:
        while name in self._stands_for:
            name = self._stands_for[name]
        return name

    def _is_made(self, value: Value) -> bool:
        return value.kind not in ("input", "constant")

    def _is_left(self, name: str) -> bool:
        return self._values[name].kind in ("input", "constant") or name in self._made_by

    def _take_view(self, operator: Operator) -> bool:
        """Whether all that the operator does is to describe one operand's bytes anew."""
        if operator.workspace or operator.after or len(operator.outputs) != 1:
            return False
        (made,) = operator.outputs
        for share in self._shares.get(made, ()):
            same = self._values[share.of].size == self._values[made].size
            if not share.overwrites and share.at == 0 and same and share.of in operator.inputs:
                rest = [name for name in operator.inputs if name != share.of]
                if all(self._values[name].kind == "constant" for name in rest):
                    self._stands_for[made] = share.of
                    return True
        return False

    def _append_view(self, operator: Operator) -> None:
        # Also of a value that was overwritten since: a view that nobody reads does not keep it.
        group = self._maker.get(self._base(operator.outputs[0]))
        if group is None:
            self._first.append(operator.name)
            return
        self._groups[group].append(operator.name)
        self._group_of[operator.name] = group

    def _add(self, operator: Operator, kept: set[str]) -> None:
        inputs = tuple(dict.fromkeys(self._base(name) for name in operator.inputs))
        joined = self._in_place_on(operator, inputs, kept)
        after = tuple(dict.fromkeys(self._group_of[name] for name in operator.after if name in self._group_of))
        if joined is None:
            self._groups[operator.name] = [operator.name]
            self._position[operator.name] = len(self._position)
            self._group_of[operator.name] = operator.name
            reused = self._reused(operator, inputs, kept)
            self._merged[operator.name] = replace(operator, inputs=inputs, after=after, reused=reused)
            self._made_by.update((name, operator.name) for name in operator.outputs)
            self._maker.update((name, operator.name) for name in operator.outputs)
            return
        group = self._made_by.pop(joined)
        self._groups[group].append(operator.name)
        self._group_of[operator.name] = group
        (made,) = operator.outputs
        before = self._merged[group]
        self._made_by[made] = self._maker[made] = group
        self._merged[group] = replace(
            before,
            inputs=tuple(dict.fromkeys((*before.inputs, *(name for name in inputs if name != joined)))),
            outputs=tuple(made if name == joined else name for name in before.outputs),
            time=before.time + operator.time,
            workspace=max(before.workspace, operator.workspace),
            recomputable=before.recomputable and operator.recomputable,
        )

    def _reused(self, operator: Operator, inputs: tuple[str, ...], kept: set[str]) -> int:
        """Bytes of the results that lie where operands lay: one that is overwritten, or slices of a concatenation."""
        ending = {
            name
            for name in inputs
            if name in self._made_by and name not in kept and self._last_use[name] == operator.name
        }
        most = 0
        for made in operator.outputs:
            size = self._values[made].size
            over = [self._base(share.of) for share in self._shares.get(made, ()) if share.overwrites]
            if any(name in ending and self._values[name].size >= size for name in over):
                most += size
                continue
            slices = ending & {self._base(share.value) for share in self._into.get(made, ())}
            most += min(size, sum(self._values[name].size for name in slices))
            if self._rooms and slices:
                self._make_room(max(slices, key=lambda name: (self._position[self._made_by[name]], name)), size)
        return most

    def _make_room(self, last: str, size: int) -> None:
        group = self._made_by[last]
        room = size - self._values[last].size
        self._merged[group] = replace(self._merged[group], workspace=max(self._merged[group].workspace, room))

    def _in_place_on(self, operator: Operator, inputs: tuple[str, ...], kept: set[str]) -> str | None:
        """The operand that only this operator uses, whose bytes its one result takes, and that may wait for the others.

        Where several would do, the one that is made last.
        """
        if operator.after or len(operator.outputs) != 1:
            return None
        size = self._values[operator.outputs[0]].size
        offered = {self._base(share.of) for share in self._shares.get(operator.outputs[0], ()) if share.overwrites}
        live = [name for name in inputs if self._values[name].kind != "constant"]
        made_at = {name: self._position[self._made_by[name]] if name in self._made_by else -1 for name in live}
        for name in sorted(live, key=lambda one: -made_at[one]):
            alone = name in self._made_by and self._uses[name] == 1 and name not in kept
            if not alone or name not in offered or self._values[name].size != size:
                continue
            others = [other for other in live if other != name]
            if not others or (self._sums and all(made_at[other] < made_at[name] for other in others)):
                return name
        return None
