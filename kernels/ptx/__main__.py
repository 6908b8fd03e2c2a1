"""`python -m kernels.ptx run FILE.ptx LAUNCH.json`: a kernel on the PTX machine; exit status 1 for a fault."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import msgspec

from kernels.errors import KernelsError
from kernels.ptx.machine.described import described, prepared
from kernels.ptx.machine.launching import ORDERS, Adversary, Machine
from kernels.ptx.machine.reports import Fault, Outcome, Tally


class _Printed(msgspec.Struct, frozen=True):
    """What --json prints: faults by the order that found them, and the counts of the first."""

    faults: dict[str, tuple[Fault, ...]]
    tally: Tally


@click.group(help="PTX without a GPU.")
def app() -> None:
    """The commands."""


@app.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("launch", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--order", "orders", type=click.Choice(ORDERS), multiple=True, help="How blocks run; all five by default."
)
@click.option("--seed", default=0, help="Of what is drawn.")
@click.option("--json", "as_json", is_flag=True, help="Print the records.")
def run(source: Path, launch: Path, orders: tuple[str, ...], seed: int, as_json: bool) -> None:
    """Run the kernel of SOURCE that LAUNCH describes, and print faults and counts."""
    said = described(launch.read_bytes())
    outcomes: dict[str, Outcome] = {}
    for order in ORDERS:
        if not orders or order in orders:
            machine = Machine(source.read_text())
            prepared_launch, _ = prepared(machine, said)
            outcomes[order] = machine.run(prepared_launch, Adversary(order, seed))
    faults = {order: outcome.faults for order, outcome in outcomes.items()}
    tally = next(iter(outcomes.values())).tally
    if as_json:
        print(msgspec.json.encode(_Printed(faults, tally)).decode())
    else:
        _print(faults, tally)
    sys.exit(1 if any(faults.values()) else 0)


def _print(faults: dict[str, tuple[Fault, ...]], tally: Tally) -> None:
    for order, found in faults.items():
        print(f"{order}: {len(found) or 'no'} fault{'s' if len(found) != 1 else ''}")
        for fault in found:
            print(f"  {fault} ({fault.times} times)")
    print(f"{tally.total} instructions of warps, {tally.lanes / max(tally.total, 1):.1f} lanes each")
    for name, count in sorted(tally.instructions.items(), key=lambda pair: -pair[1])[:12]:
        print(f"  {count:>10}  {name}")
    for place, traffic in tally.traffic.items():
        print(
            f"{place}: {traffic.bytes} bytes by {traffic.accesses} accesses, {traffic.transactions} transactions"
            f" where {traffic.least} would do"
        )


def main() -> None:
    """Run the command; a refusal is one sentence on standard error and exit status 1."""
    try:
        app()
    except KernelsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
