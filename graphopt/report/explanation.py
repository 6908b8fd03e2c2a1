"""The text of `graphopt explain`."""

from __future__ import annotations

import inspect
from collections import Counter

from graphopt.flows.records.models import ExplainRecord, RewriteLine, RuleReasons
from graphopt.report.screen import Screen

SHOWN = 3  # nodes named for one reason
REWRITES = 20  # rewrites listed one by one


def print_explain(screen: Screen, record: ExplainRecord) -> None:
    """What it is, where it fired, why not elsewhere."""
    screen.line(f"{record.subject} {record.name} in {record.model}, level {record.level}", "bold")
    for text in inspect.cleandoc(record.text).splitlines():
        screen.small(f"  {text}".rstrip())
    _print_fired(screen, record)
    for rollback in record.rolled_back:
        screen.line(f"taken back at '{rollback.site}': {rollback.reason}", "yellow")
    for missed in record.missed:
        _print_missed(screen, missed, record.subject)
    if record.subject == "rule" and not any(missed.reasons for missed in record.missed):
        screen.line("there is no other place in the optimized model where it could fire")
    if record.subject == "node" and not record.missed and not record.fired:
        screen.line("no rule looks at nodes of this type")


def _print_fired(screen: Screen, record: ExplainRecord) -> None:
    count = len(record.fired)
    what = "touched by" if record.subject == "node" else "fired"
    if not count:
        if record.subject == "node":
            screen.line("not touched by any rewrite")
        elif not any(missed.reasons for missed in record.missed):  # else the reasons begin with these words
            screen.line("did not fire")
        return
    noun = "rewrite" if record.subject == "node" else "time"
    screen.line(f"{what} {count} {noun}{'' if count == 1 else 's'}:")
    for rewrite in record.fired[:REWRITES]:
        screen.line(f"  {_rewrite(rewrite, named=record.subject != 'rule')}")
    if count > REWRITES:
        rest = Counter(rewrite.rule for rewrite in record.fired[REWRITES:])
        screen.line(f"  and {', '.join(f'{name} {number} more' for name, number in rest.most_common())}")


def _rewrite(rewrite: RewriteLine, named: bool) -> str:
    rule = f"{rewrite.rule} " if named else ""
    before, after = ", ".join(rewrite.before), ", ".join(rewrite.after)
    change = f": {before} --> {after or 'no node'}" if before else ""
    reason = f" ({rewrite.reason})" if rewrite.reason else ""
    return f"{rewrite.number}. {rule}at '{rewrite.site}'{change}{reason}"


def _places(missed: RuleReasons) -> str:
    count = sum(reason.count for reason in missed.reasons)
    return "1 place" if count == 1 else f"{count:,} places"


def _print_missed(screen: Screen, missed: RuleReasons, subject: str) -> None:
    if subject == "node":
        for reason in missed.reasons:
            screen.line(f"{missed.rule} did not fire: {reason.reason}")
        return
    if missed.reasons:
        screen.line(f"did not fire at {_places(missed)}:")
    for reason in missed.reasons:
        more = f" and {reason.count - SHOWN:,} more" if reason.count > SHOWN else ""
        screen.line(f"  {reason.count:,} x {reason.reason}")
        screen.small(f"      at {', '.join(reason.nodes[:SHOWN])}{more}")
