"""Machine files: presets, units, and what is refused in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from memplan.tiers.machine import InvalidMachine, Machine, Tier, machine, parse_bytes, presets

TIER = '[[memory.tier]]\nname = "{}"\ncapacity = {}\nread_bandwidth = {}\nwrite_bandwidth = 1e9\n'


@pytest.mark.parametrize("name", ["dram+cxl", "dram+nvme", "dram+pmem", "hbm+host", "sram+flash"])
def test_presets_are_whole(name: str) -> None:
    assert name in presets()
    target = machine(name)
    assert target.name == name and target.peak_flops is not None
    fast, slow = target.tiers
    assert fast.capacity < slow.capacity
    for source, other in ((fast, slow), (slow, fast)):
        link = target.link(source.name, other.name)
        assert link is not None and link.async_bandwidth is not None and link.async_bandwidth <= link.sync_bandwidth


def test_the_machine_of_autotm_has_its_figures() -> None:
    target = machine("dram+pmem")
    assert target.tier("dram").capacity == 192 * 2**30 and target.tier("pmem").capacity == 1536 * 2**30
    down, up = target.link("dram", "pmem"), target.link("pmem", "dram")
    assert down is not None and (down.sync_bandwidth, down.async_bandwidth) == (1.2e10, 2.5e9)
    assert up is not None and (up.sync_bandwidth, up.async_bandwidth) == (2.9e10, 2.0e9)


def test_a_capacity_is_replaced() -> None:
    assert machine("dram+pmem").with_capacity("dram", 4096).tier("dram").capacity == 4096
    with pytest.raises(InvalidMachine, match=r"^machine 'dram\+pmem' has no tier 'hbm', only dram, pmem\.$"):
        machine("dram+pmem").with_capacity("hbm", 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [(4096, 4096), ("4096", 4096), ("192GiB", 192 * 2**30), ("1.5 GB", 1_500_000_000), ("3 kb", 3000), ("2KiB", 2048)],
)
def test_capacities_are_read_with_their_units(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 parsec", "-3 GB", "1e9"])
def test_what_is_no_number_of_bytes_is_refused(text: str) -> None:
    with pytest.raises(InvalidMachine) as raised:
        parse_bytes(text)
    assert str(raised.value) == f"'{text}' is no number of bytes, such as 4096, 192GiB or 1.5GB."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name = ", "is no TOML"),
        ('name = "m"', "Object missing required field `memory`"),
        ("[memory]\ntier = []", "machine 'machine' has no tier of memory."),
        ('[[memory.tier]]\nname = "a"', "Object missing required field `capacity` - at `$.memory.tier[0]`"),
        (TIER.format("a", 1, 1e9) + TIER.format("b", 1, 2e9), "tier 'b' is faster than 'a', which stands before it"),
        (TIER.format("a", 1, 1e9) + TIER.format("a", 1, 1e9), "two tiers named 'a'"),
        (TIER.format("a", -1, 1e9), "tier 'a' holds -1 bytes; a capacity is not negative."),
        (TIER.format("a", 1, 0.0), "tier 'a' has a bandwidth of 0.0 bytes/s; it must be positive."),
        (TIER.format("a", '"1 ell"', 1.0), "'1 ell' is no number of bytes"),
        (
            TIER.format("a", 1, 1e9) + '[[memory.link]]\nfrom = "a"\nto = "b"\nsync_bandwidth = 1.0\n',
            "a link names the tier 'b'; there are a.",
        ),
        (
            TIER.format("a", 1, 1e9) + '[[memory.link]]\nfrom = "a"\nto = "a"\nsync_bandwidth = 1.0\n',
            "the link from 'a' to 'a' is there twice or to itself.",
        ),
        (
            TIER.format("a", 1, 1e9)
            + TIER.format("b", 1, 1e9)
            + '[[memory.link]]\nfrom = "a"\nto = "b"\nsync_bandwidth = -1.0\n',
            "the link from 'a' to 'b' copies -1.0 bytes/s; it must be positive.",
        ),
    ],
)
def test_files_are_refused_by_what_is_wrong(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(content)
    with pytest.raises(InvalidMachine) as raised:
        machine(file)
    assert message in str(raised.value)


def test_a_name_that_is_neither_file_nor_preset_lists_the_presets() -> None:
    with pytest.raises(InvalidMachine) as raised:
        machine("abacus")
    assert str(raised.value) == (
        "'abacus' is neither a file that can be read nor one of the machines dram+cxl, dram+nvme, dram+pmem, hbm+host, "
        "sram+flash."
    )


def test_other_tables_of_a_machine_file_are_for_others(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text('[target]\nisa = "avx2"\n[device]\nworkers = 4\n' + TIER.format("a", '"1MiB"', 1e9))
    assert machine(file) == Machine("machine", (Tier("a", 2**20, 1e9, 1e9),))
