"""The text of `graphopt explain`."""

from __future__ import annotations

import inspect
from collections import Counter

from rich.console import Console

from graphopt.flows.records.models import ExplainRecord, RewriteLine, RuleReasons
from graphopt.report.terminal import dim_line, line

SHOWN = 3  # nodes named for one reason
REWRITES = 20  # rewrites listed one by one


def print_explain(console: Console, record: ExplainRecord) -> None:
    """What it is, where it fired, why not elsewhere."""
    line(console, f"{record.subject} {record.name} in {record.model}, level {record.level}", "bold")
    for text in inspect.cleandoc(record.text).splitlines():
        dim_line(console, f"  {text}".rstrip())
    _print_fired(console, record)
    for rollback in record.rolled_back:
        line(console, f"taken back at '{rollback.site}': {rollback.reason}", "yellow")
    for missed in record.missed:
        _print_missed(console, missed, record.subject)
    if record.subject == "rule" and not any(missed.reasons for missed in record.missed):
        line(console, "there is no other place in the optimized model where it could fire")
    if record.subject == "node" and not record.missed and not record.fired:
        line(console, "no rule looks at nodes of this type")


def _print_fired(console: Console, record: ExplainRecord) -> None:
    count = len(record.fired)
    what = "touched by" if record.subject == "node" else "fired"
    if not count:
        line(console, "not touched by any rewrite" if record.subject == "node" else "did not fire")
        return
    noun = "rewrite" if record.subject == "node" else "time"
    line(console, f"{what} {count} {noun}{'' if count == 1 else 's'}:")
    for rewrite in record.fired[:REWRITES]:
        line(console, f"  {_rewrite(rewrite, named=record.subject != 'rule')}")
    if count > REWRITES:
        rest = Counter(rewrite.rule for rewrite in record.fired[REWRITES:])
        line(console, f"  and {', '.join(f'{name} {number} more' for name, number in rest.most_common())}")


def _rewrite(rewrite: RewriteLine, named: bool) -> str:
    rule = f"{rewrite.rule} " if named else ""
    before, after = ", ".join(rewrite.before), ", ".join(rewrite.after)
    change = f": {before} --> {after or 'no node'}" if before else ""
    reason = f" ({rewrite.reason})" if rewrite.reason else ""
    return f"{rewrite.number}. {rule}at '{rewrite.site}'{change}{reason}"


def _places(missed: RuleReasons) -> str:
    count = sum(reason.count for reason in missed.reasons)
    return "1 place" if count == 1 else f"{count:,} places"


def _print_missed(console: Console, missed: RuleReasons, subject: str) -> None:
    if subject == "node":
        for reason in missed.reasons:
            line(console, f"{missed.rule} did not fire: {reason.reason}")
        return
    if missed.reasons:
        line(console, f"did not fire at {_places(missed)}:")
    for reason in missed.reasons:
        more = f" and {reason.count - SHOWN:,} more" if reason.count > SHOWN else ""
        line(console, f"  {reason.count:,} x {reason.reason}")
        dim_line(console, f"      at {', '.join(reason.nodes[:SHOWN])}{more}")
