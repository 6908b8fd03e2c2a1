"""What kernels are chosen by: the core of a machine's record, or a known one by its name."""

from __future__ import annotations

from dataclasses import replace

from graphopt.errors import OptionError
from graphopt.machine.record import MachineRecord
from graphopt.model.text import nearest
from kernels.cores import KNOWN, Core, WayToAsk, by_vectors, known_core
from kernels.measure.products import ROWS, WAYS
from kernels.target import Target

CLEARLY = 1.1  # times as fast: what readings differ by is less


def with_core(target: Target, machine: MachineRecord | str | None) -> Target:
    """The target with the core of a record, or with a known one by LLVM's name; as it is with None.

    Raises OptionError for an unknown name.
    """
    if machine is None:
        return target
    if isinstance(machine, MachineRecord):
        return replace(target, core=by_vectors(_core(machine), machine.vector_bytes, target.vector_bytes))
    core = known_core(machine, target.vector_bytes)
    if core is None:
        raise OptionError(f"there is no machine '{machine}'; {nearest(machine, list(KNOWN))}.")
    return replace(target, core=core)


def _core(machine: MachineRecord) -> Core:
    """A record's core. What lies in no entry is as it is one level farther."""
    clock = machine.entries["clock"].value

    def rate(level: str, otherwise: float) -> float:
        found = machine.by_ns(f"{level}_read")
        return otherwise if found is None else found / clock

    def figure(name: str, otherwise: float) -> float:
        found = machine.value(name)
        return otherwise if found is None else found

    products, stored = figure("multiply_adds", 1.0), machine.by_ns("l1_write")
    stores = Core(1, 1, 1).stores if stored is None else stored / clock / machine.vector_bytes
    loads = figure("loads", products)
    memory = rate("memory", 0.0)
    last = rate("l3", memory)
    second = rate("l2", last)
    return Core(
        products, loads, figure("broadcasts", loads), stores,
        rate("l1", loads * machine.vector_bytes), second, last, memory,
        figure("tile_call", Core(1, 1, 1).call), clock, figure("memory_latency", Core(1, 1, 1).latency),
        figure("tile_products", Core(1, 1, 1).tile_products), figure("dot_products", products / 2),
        *(_way_to_ask(machine, rows) for rows in ROWS),
    )  # fmt: skip


def _way_to_ask(machine: MachineRecord, rows: str) -> WayToAsk:
    """The way in which a tile's weights came fastest; into the first cache unless another one is clearly faster."""
    rates = {way: machine.value(f"{rows}_{way}") or 0.0 for way in WAYS}
    best = max(WAYS, key=lambda way: rates[way])
    return best if rates[best] > CLEARLY * rates[WAYS[0]] else WAYS[0]
