"""The log of a run: every change as a record, completed when its new nodes have their names; the first few drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from graphopt.model import nodes
from graphopt.rewrite.record import Rewrite
from graphopt.rewrite.sketch import Surroundings, draw, surroundings

SKETCHES = 3  # rewrites of one rule that are drawn, where drawings are asked for


@dataclass(slots=True)
class _Unsettled:
    """The last change, as far as its record waits for what the change brings about."""

    record: Rewrite
    after: tuple[ir.Node | str, ...]
    around: Surroundings | None  # None: this one is not drawn
    inserted: list[ir.Node] = field(default_factory=list)


class Journal:
    """Writes the log; the changes themselves are the editor's."""

    def __init__(self, *, sketches: bool) -> None:
        self.log: list[Rewrite] = []
        self._unsettled: _Unsettled | None = None
        self._drawn: Counter[str] | None = Counter() if sketches else None

    def write(
        self,
        pass_name: str,
        rule: str,
        site: ir.Value | str,
        before: Sequence[ir.Node | str],
        after: Sequence[ir.Node | str],
        reason: str | None,
    ) -> None:
        """Add the record of a change that is about to happen."""
        self.settle()
        name = site if isinstance(site, str) else (site.name or "")
        record = Rewrite(len(self.log) + 1, pass_name, rule, name, _words(before), _words(after), reason)
        self.log.append(record)
        around = None
        if self._drawn is not None and self._drawn[rule] < SKETCHES:
            self._drawn[rule] += 1
            around = surroundings(_matched(site, before))
        if around is not None or any(isinstance(item, ir.Node) for item in after):
            self._unsettled = _Unsettled(record, tuple(after), around)

    def inserted(self, node: ir.Node) -> None:
        """A node has been put into a graph."""
        if self._unsettled is not None and self._unsettled.around is not None:
            self._unsettled.inserted.append(node)

    def settle(self) -> None:
        """Complete the last record; to be called before the next change and when the log is read."""
        if self._unsettled is None:
            return
        last, self._unsettled = self._unsettled, None
        done = replace(last.record, after=_words(last.after))
        if last.around is not None:
            new = [item for item in last.after if isinstance(item, ir.Node)]
            done = replace(done, sketches=(last.around.before, draw(last.around, [*new, *last.inserted])))
        self.log[last.record.number - 1] = done


def _words(items: Sequence[ir.Node | str]) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else nodes.describe(item) for item in items)


def _matched(site: ir.Value | str, before: Sequence[ir.Node | str]) -> Sequence[ir.Node]:
    """The nodes that change: those listed, else the one that computes the site, else what reads it."""
    listed = [item for item in before if isinstance(item, ir.Node)]
    if listed or isinstance(site, str):
        return listed
    producer = site.producer()
    return list(dict.fromkeys(site.consumers())) if producer is None else [producer]
