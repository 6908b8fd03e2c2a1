"""Devices: occupancy as NVIDIA's own header computes it, presets, and files that are refused."""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.device import PRESETS, Device, Resources, cpu, device, presets
from scheduler.errors import InvalidDevice

VOLTA = device("v100")
HOPPER = device("h200")
AMPERE = replace(
    HOPPER, name="a100", multiprocessors=108, shared_memory=167936, shared_memory_per_block=166912,
    compute_capability=(8, 0),
)  # fmt: skip


def by_name(name: str) -> Device:
    return VOLTA if name == "V100" else AMPERE if name == "A100" else HOPPER


def test_occupancy_is_that_of_nvidias_header() -> None:
    with (Path(__file__).parent / "data" / "occupancy.csv").open() as file:
        rows = list(csv.DictReader(file))
    wrong = []
    for row in rows:
        block = Resources(
            int(row["threads"]), int(row["registers"]), int(row["shared_memory"]), row["opt_in"] == "1",
            int(row["barriers"]),
        )  # fmt: skip
        if by_name(row["device"]).occupancy(block) != int(row["blocks"]):
            wrong.append(row)
    assert len(rows) == 400 and not wrong


def test_what_limits_a_block() -> None:
    assert HOPPER.occupancy(Resources(1024)) == 2  # 64 warps
    assert HOPPER.occupancy(Resources(32)) == 32  # the most blocks
    assert HOPPER.occupancy(Resources(256, registers=255)) == 1
    assert HOPPER.occupancy(Resources(256, shared_memory=100_000)) == 0, "more than the default is not asked for"
    assert HOPPER.occupancy(Resources(256, shared_memory=100_000, opt_in=True)) == 2
    assert HOPPER.resident(Resources(1024)) == 264


def test_a_cpus_workers_hold_one_block_each() -> None:
    assert device("cpu") == cpu(len(os.sched_getaffinity(0)))
    assert device("cpu:3").resident(Resources(4096, 9999, 1 << 30)) == 3 and not cpu(3).is_gpu


def test_of_a_cpu_a_file_tells_workers_and_costs(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text("name = 'this'\n[device]\nmultiprocessors = 4\nsignal_ns = 150\n")
    assert device(file) == replace(cpu(4), name="this", signal_ns=150.0, wait_ns=0.0)
    file.write_text("name = 'this'\n[device]\nmultiprocessors = 4\n[target]\npeak_flops = 1e12\n")
    assert device(file) == replace(cpu(4), name="this", signal_ns=0.0, wait_ns=0.0, peak_flops=1e12)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("cpu:0", None, "a CPU with 0 workers runs nothing"),
        ("cpu:many", None, "'cpu:many' is no device: write cpu:2"),
        ("h900", None, r"there is no device 'h900'; known are h200, v100, cpu, cpu:N, or a TOML file"),
        ("a.toml", "x = ", "is no TOML"),
        ("b.toml", "name = 'b'\n", "missing required field `device`"),
        ("c.toml", "name = 'c'\n[device]\nmultiprocessors = 0\n", "device 'c' has 0 multiprocessors"),
        ("d.toml", "name = 'd'\n[device]\nsignal_ns = 5\n", "missing required field `multiprocessors`"),
        (
            "e.toml",
            "name = 'e'\n[device]\nmultiprocessors = 9\n[target]\ncompute_capability = '9.0'\n",
            "missing required field `max_threads`",
        ),
    ],
)
def test_what_is_no_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: str | None, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InvalidDevice, match=said):
        device(name)
    assert presets() == ("h200", "v100")


@pytest.mark.parametrize("time", ["launch_ns", "signal_ns", "wait_ns", "block_fixed_ns"])
def test_a_time_is_read_from_the_file_and_not_negative(tmp_path: Path, time: str) -> None:
    written = (PRESETS / "h200.toml").read_text()
    line = next(line for line in written.splitlines() if line.startswith(f"{time} "))
    file = tmp_path / "mine.toml"
    file.write_text(written.replace(line, f"{time} = 7"))
    assert getattr(device(file), time) == 7 != getattr(HOPPER, time)
    file.write_text(written.replace(line, ""))
    assert getattr(device(file), time) == 0
    file.write_text(written.replace(line, f"{time} = -7"))
    with pytest.raises(InvalidDevice, match=rf"{time} is -7.*; a time is nanoseconds, 0 or more"):
        device(file)


def test_a_device_without_multiprocessors_is_refused() -> None:
    with pytest.raises(InvalidDevice, match="'h200' has 0 multiprocessors"):
        replace(HOPPER, multiprocessors=0)
