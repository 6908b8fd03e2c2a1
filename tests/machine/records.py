"""A made-up record of a machine."""

from __future__ import annotations

from graphopt.machine.record import ALL, Key, MachineRecord, Measured

KEY = Key("Some CPU", "somelake", (32 << 10, 1 << 20, 16 << 20), "22.1.0")
VALUES = {
    "clock": 3.0, "multiply_adds": 2.0, "loads": 2.0, "broadcasts": 1.75, "tile_products": 0.06,
    "dot_products": 1.0, "tile_call": 4.5, "l1_read": 100.0,
    "l1_write": 50.0, "l2_read": 40.0, "l2_write": 20.0, "l3_read": 30.0, "l3_write": 25.0, "memory_read": 12.0,
    "memory_write": 8.0, "memory_latency": 120.0,
    "few_near": 6.0, "few_far": 6.0, "few_half": 6.0, "tall_near": 5.0, "tall_far": 5.0, "tall_half": 5.0,
    "other_read": 20.0, "signal": 100.0, "wait": 200.0, "wake": 10_000.0,
    "compute_beside": 0.9, "memory_beside": 0.75, "disk_read": 2.0, "disk_write": 1.0,
}  # fmt: skip
BETWEEN_CORES = ("other_read", "signal", "wait", "wake", "compute_beside", "memory_beside")


def record(*without: str, key: Key = KEY, workers: int = 2, **changed: float) -> MachineRecord:
    """A machine of two cores, without some of its entries, or with other figures."""
    values = {name: changed.get(name, value) for name, value in VALUES.items() if name not in without}
    entries = {name: Measured(value, ALL[name].unit, 0.02) for name, value in values.items()}
    return MachineRecord(key, workers, 64, 8 << 30, 100 << 30, entries)
