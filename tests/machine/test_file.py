"""Records as TOML: written and read back, read by the libraries, and refused where they are damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graphopt.errors import OptionError
from graphopt.machine.file import parse, read, written
from memplan.tiers.machine import machine as memory_machine
from scheduler.device import device
from tests.machine.records import BETWEEN_CORES, record


def changed(old: str, new: str) -> str:
    text = written(record())
    assert text.count(old) == 1, old
    return text.replace(old, new)


@pytest.mark.parametrize("found", [record(), record(*BETWEEN_CORES, workers=1), record("l3_read", "disk_read")])
def test_a_record_is_read_back_and_written_alike(found: object) -> None:
    text = written(found)  # type: ignore[arg-type]
    assert parse(text, "it") == found and written(parse(text, "it")) == text


def test_what_follows_from_the_entries() -> None:
    found = record()
    assert found.core_flops == 192e9 and found.peak_flops == 2 * 0.9 * 192e9 and found.bandwidth == 18e9
    assert found.by_ns("l1_read") == 300 and found.by_ns("tile_call") == 1.5 and found.by_ns("wait") == 200
    alone = record(*BETWEEN_CORES, workers=1)
    assert alone.peak_flops == alone.core_flops and alone.bandwidth == 12e9 and alone.value("wait") is None


def test_the_libraries_read_the_file(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(written(record()))
    cpu = device(file)
    assert (cpu.name, cpu.multiprocessors, cpu.signal_ns, cpu.is_gpu) == ("Some CPU, 2 workers", 2, 100.0, False)
    assert cpu.peak_flops == record().peak_flops and cpu.bandwidth == record().bandwidth
    memory = memory_machine(file)
    assert [(tier.name, tier.capacity) for tier in memory.tiers] == [("dram", 8 << 30), ("disk", 100 << 30)]
    assert memory.tier("dram").read_bandwidth == 18e9 and memory.tier("dram").write_bandwidth == 12e9
    link = memory.link("disk", "dram")
    assert link is not None and link.sync_bandwidth == 2e9 and link.async_bandwidth is None
    file.write_text(written(record("disk_write", *BETWEEN_CORES, workers=1)))
    assert len(memory_machine(file).tiers) == 1 and device(file).signal_ns == 0


DAMAGED: dict[str, tuple[Callable[[], str], str]] = {
    "no TOML": (lambda: "clock = ", "it is no TOML: .*; write it again with graphopt machine --measure"),
    "another version": (
        lambda: changed('"graphopt.machine/2"', '"graphopt.machine/9"'),
        "it is no record of this version: its schema is 'graphopt.machine/9', not 'graphopt.machine/2'",
    ),
    "cut off": (lambda: written(record())[:200], "it: .*missing required field `vector_bytes`|it: .*key|it is no TOML"),
    "without a key": (lambda: changed("[key]", "[other]"), "it: .*missing required field `key`"),
    "a text for a number": (lambda: changed("value = 10000.0", 'value = "slow"'), r"it: .*`\$.measured"),
    "an unknown entry": (lambda: changed("[measured.clock]", "[measured.clok]"), "it has an entry 'clok'"),
    "implausible": (
        lambda: written(record(l1_read=3e5)),
        "it: 'l1_read' is 300000 bytes/cycle; believed are 1 to 2000",
    ),
    "negative": (lambda: written(record(wake=-1.0)), "it: 'wake' is -1 ns; believed are 100 to"),
    "no number": (lambda: changed("value = 12.0", "value = nan"), "it: 'memory_read' is nan bytes/ns"),
    "another unit": (
        lambda: changed('value = 10000.0\nunit = "ns"', 'value = 10000.0\nunit = "us"'),
        "it: 'wake' is told in 'us'; it is counted in 'ns'",
    ),
    "a spread": (
        lambda: changed(
            'value = 12.0\nunit = "bytes/ns"\nspread = 0.02', 'value = 12.0\nunit = "bytes/ns"\nspread = -1'
        ),
        "it: 'memory_read' has a spread of -1",
    ),
    "an entry that is needed": (
        lambda: changed('[measured.memory_write]\nvalue = 8.0\nunit = "bytes/ns"\nspread = 0.02\n', ""),
        "it lacks 'memory_write'; measure again with graphopt machine --measure",
    ),
    "no workers": (lambda: written(record(workers=0)), "it: workers is 0; it is at least 1"),
    "a far level that is faster": (
        lambda: written(record(l2_read=4.0)),
        "it: 'l3_read' is 30 bytes/ns and faster than 'l2_read', which is nearer, with 12",
    ),
    "edited beside the entries": (
        lambda: changed("signal_ns = 100.0", "signal_ns = 5.0"),
        "it: 'device' does not follow from the measured entries",
    ),
    "a part taken out": (lambda: changed("[device]", "[devices]"), "it: 'device' does not follow"),
}


@pytest.mark.parametrize("fault", DAMAGED)
def test_what_is_damaged_or_not_believed_is_refused(fault: str) -> None:
    make, said = DAMAGED[fault]
    with pytest.raises(OptionError, match=said):
        parse(make(), "it")


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"the machine file '.*absent.toml' cannot be read: No such file"):
        read(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OptionError, match=r"the machine file '.*binary.toml' is no text"):
        read(tmp_path / "binary.toml")
