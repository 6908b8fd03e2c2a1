"""The profile in a terminal."""

from __future__ import annotations

from graphopt.flows.records.profile import ProfileRecord, StepLine
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen, Table

FIGURES = 70  # characters that the columns of figures take
LEAST = 30  # that names share in the narrowest terminal


def nodes_of(line: StepLine) -> str:
    """What a step computes: its operators and the name of its first node; its kernel's name where none is known."""
    return " ".join(filter(None, ("+".join(line.operators), line.node))) or line.kernel


def print_profile(screen: Screen, record: ProfileRecord, *, in_order: bool = False) -> None:
    """A line for each step, the one with most work first unless they are wanted in order; then each worker's time.

    Times are in milliseconds.
    """
    screen.line(f"{record.program}: {_ms(record.wall)} ms", "bold")
    screen.line(f"{'measured':<13} {several(record.rounds, 'call')}, medians; {several(record.workers, 'worker')}")
    screen.line(f"{'columns':<13} ms: first block to last one; work: of all blocks; waited: by all workers, before it")
    screen.line(f"{'peak':<13} {record.peak:.3g} Gflop/s of a worker, measured in the same process")
    lines = record.steps if in_order else sorted(record.steps, key=lambda line: (-line.work, line.step))
    names = max(screen.width - FIGURES, LEAST)
    table = Table("nodes", "tiles", "blocks", "ms", "work", "Gflop/s", "peak", "constants", "waited", left=(0, 1))
    for line in lines:
        rates = (f"{line.rate:.3g}", f"{line.peak_share:.0%}") if line.flops else ("", "")  # no operations are known
        table.add(
            _middle(nodes_of(line), names * 3 // 5), _head(line.candidate or line.kernel, names * 2 // 5),
            f"{line.blocks:,}", _ms(line.wall), _ms(line.work), *rates,
            binary_size(line.constants), _ms(line.waited),
        )  # fmt: skip
    screen.table(table)
    table = Table("worker", "blocks", "ms busy", "ms waiting", "busy", left=(0,))
    for worker in record.by_worker:
        table.add(
            str(worker.worker), f"{worker.blocks:,}", _ms(worker.busy), _ms(worker.waiting),
            f"{worker.busy / record.wall if record.wall else 0:.0%}",
        )  # fmt: skip
    screen.table(table)


def _head(text: str, width: int) -> str:
    """The begin of a text that is too long."""
    return text if len(text) <= width else f"{text[: width - 2]}.."


def _middle(text: str, width: int) -> str:
    """Begin and end of a text that is too long: an operator, and where names differ."""
    first = width // 3
    return text if len(text) <= width else f"{text[:first]}..{text[first + 2 - width :]}"


def _ms(nanoseconds: float) -> str:
    return f"{nanoseconds / 1e6:.3f}"
