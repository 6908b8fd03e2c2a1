"""Programs that fetch weights, damaged on purpose: what an adversary of a scheduler can break has to be refused.

Small random programs are planned under random budgets. Each mutant moves, swaps or leaves out one thing: a fetch, what
it waits for, how many fetches a run waits for, a wait, a place, blocks. The adversary runs a program block by block
with several workers and the thread that fetches, in random orders that the waits allow, and looks at every byte that a
block reads, when it begins and when it ends. The checker of the product (graphopt/program/ram/check.py) knows nothing
of it. A mutant counts as caught where the listing or the checker refuses it; one that the adversary breaks and nobody
refuses is missed. The programs themselves have to pass both.

    python -m bench.fetching [--mutants N] [--seed N]
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass

from bench.fetching.adversary import broken
from bench.fetching.mutants import CHANGES, mutant
from bench.fetching.subject import Subject, subject
from graphopt.errors import VerificationError
from graphopt.program.ram.check import check_streamed

PER_PROGRAM = 25


@dataclass(slots=True)
class Tally:
    """Mutants of one kind."""

    made: int = 0
    refused: int = 0  # by the listing or the checker
    missed: int = 0  # that the adversary broke, and nobody refused


def tally(count: int, seed: int) -> dict[str, Tally]:
    """Mutants by kind. Raises AssertionError where a program without damage is refused, or broken."""
    draw = random.Random(seed)
    found = {kind: Tally() for kind, _ in CHANGES}
    made = 0
    while made < count:
        given = subject(draw)
        if given is None:
            continue
        check_streamed(given.whole, given.weights, given.listing, given.file, given.owned)
        fault = broken(given, draw)
        assert fault is None, f"a program that is whole: {fault}"
        for _ in range(min(PER_PROGRAM, count - made)):
            kind, other = mutant(given, draw)
            row = found[kind]
            row.made += 1
            made += 1
            if other is None or _is_refused(other):
                row.refused += 1
                continue
            if broken(other, draw) is not None:
                row.missed += 1
    return found


def _is_refused(given: Subject) -> bool:
    try:
        check_streamed(given.whole, given.weights, given.listing, given.file, given.owned)
    except VerificationError:
        return True
    return False


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = tally(given.mutants, given.seed)
    print(f"{'change':<30} {'mutants':>8} {'refused':>8} {'missed':>8}")
    for kind, row in found.items():
        print(f"{kind:<30} {row.made:>8,} {row.refused:>8,} {row.missed:>8,}")
    sums = [sum(getattr(row, field) for row in found.values()) for field in ("made", "refused", "missed")]
    print(f"{'all':<30} {sums[0]:>8,} {sums[1]:>8,} {sums[2]:>8,}")


if __name__ == "__main__":
    main()
