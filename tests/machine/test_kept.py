"""Where a record is kept, when the machine is measured, and whose record is not used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import graphopt
from graphopt.errors import OptionError, SaveError
from graphopt.flows import machine as flow
from graphopt.flows.machine import check_machine, compared
from graphopt.machine import disk, kept
from graphopt.machine.record import MachineRecord
from kernels.target import x86_64_v4
from tests.machine.records import BETWEEN_CORES, KEY, record

OWN = kept.own_key()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "graphopt"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[MachineRecord]:
    """What the machine gives when it is measured, the last one first."""
    given = [record(key=OWN, clock=clock) for clock in (3.2, 3.1, 3.0)]
    monkeypatch.setattr(kept, "_measured", lambda _: given.pop())
    return given


def test_the_machine_is_measured_once(folder: Path, measured: list[MachineRecord]) -> None:
    said: list[str] = []
    first = graphopt.machine(progress=said.append)
    assert said == ["measuring this machine (once per installation)"]
    assert graphopt.machine(progress=said.append) == first and len(said) == 1 and len(measured) == 2
    assert [path.name for path in folder.iterdir()] == [kept.kept_file(OWN, folder).name]
    again = graphopt.machine(again=True)
    assert again.value("clock") == 3.1 and graphopt.machine() == again and len(measured) == 1


def test_a_record_of_another_processor_is_not_used(folder: Path, measured: list[MachineRecord]) -> None:
    for changed in ({"cpu": "Other"}, {"caches": (1 << 15, 1 << 20, 1 << 22)}, {"llvm": "1.0"}, {"core": "other"}):
        other = msgspec.structs.replace(OWN, **changed)
        assert kept.kept_file(other, folder) != kept.kept_file(OWN, folder)
    folder.mkdir()
    kept.keep(record(), folder)
    kept.kept_file(KEY, folder).rename(kept.kept_file(OWN, folder))  # under our name, and of another machine
    assert kept.find(OWN, folder) is None
    assert graphopt.machine().key == OWN and kept.find(OWN, folder) is not None


def test_a_kept_record_that_is_damaged_is_measured_again(folder: Path, measured: list[MachineRecord]) -> None:
    folder.mkdir()
    place = kept.kept_file(OWN, folder)
    place.write_text("damaged")
    with pytest.raises(OptionError, match="is no TOML"):
        kept.find(OWN, folder)
    assert graphopt.machine() == kept.find(OWN, folder)
    with pytest.raises(OptionError, match="is no TOML"):  # a file that somebody names is not ours to write
        place.write_text("damaged")
        graphopt.machine(place)
    with pytest.raises(OptionError, match="a file is read, not measured"):
        graphopt.machine(place, again=True)


@pytest.mark.parametrize("entry", ["tile_products", "dot_products"])
def test_a_record_of_a_version_that_knew_fewer_instructions_is_made_again(
    entry: str, folder: Path, measured: list[MachineRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = x86_64_v4()
    folder.mkdir()
    kept.keep(record(entry, key=OWN), folder)
    monkeypatch.setattr(flow, "host", lambda: plain)  # which has neither
    assert graphopt.machine().value(entry) is None and len(measured) == 3
    more = ("+avx512bf16", "+amx-bf16", "+amx-tile")
    monkeypatch.setattr(flow, "host", lambda: replace(plain, features=(*plain.features, *more)))
    assert graphopt.machine().value(entry) is not None and len(measured) == 2


def test_a_record_of_one_core_is_not_kept_to_by_several(
    folder: Path, measured: list[MachineRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir()
    kept.keep(record(*BETWEEN_CORES, key=OWN, workers=1), folder)
    monkeypatch.setattr(flow.os, "sched_getaffinity", lambda _: {3})
    assert graphopt.machine().workers == 1
    monkeypatch.setattr(flow.os, "sched_getaffinity", lambda _: {0, 3})
    assert graphopt.machine().workers == 2 and len(measured) == 2
    kept.keep(record("other_read", key=OWN), folder)  # by a version that did not measure it
    assert graphopt.machine().value("other_read") == 20.0 and len(measured) == 1
    kept.keep(record("few_near", key=OWN), folder)  # nor this, which one core can measure
    monkeypatch.setattr(flow.os, "sched_getaffinity", lambda _: {3})
    assert graphopt.machine().value("few_near") == 6.0 and not measured


def test_readings_that_are_not_believed_are_taken_again_and_then_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [record(key=OWN), record(key=OWN, memory_read=0.001), record(l3_read=900.0), record(wake=1.0)]
    monkeypatch.setattr(kept, "_measured", lambda _: given.pop())
    with pytest.raises(OptionError, match="this machine: 'l3_read' is 900 bytes/ns and faster than 'l2_read', which"):
        graphopt.machine()
    assert not list(folder.iterdir())
    assert graphopt.machine().value("memory_read") == 12.0 and not given


def test_where_nothing_can_be_kept_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: list[MachineRecord]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(SaveError, match=r"no record can be kept in '.*file/graphopt': Not a directory; set XDG_CACHE"):
        graphopt.machine()
    assert len(measured) == 3


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/somewhere")
    assert kept.cache_folder() == Path("/somewhere/.cache/graphopt")


def test_a_check_tells_how_far_each_entry_is(folder: Path, measured: list[MachineRecord]) -> None:
    found = {line.name: line for line in check_machine(record(clock=2.0)).entries}
    assert found["clock"].difference == 0.5 and (found["clock"].kept, found["clock"].now) == (2.0, 3.0)
    assert found["l1_read"].difference == 0 and found["l1_read"].kept_spread == 0.02
    assert not folder.exists(), "nothing is kept"
    lines = {line.name: line for line in compared(record("l3_read"), record("l3_read", *BETWEEN_CORES)).entries}
    assert "l3_read" not in lines and lines["wait"].kept == 200.0
    assert lines["wait"].now is lines["wait"].difference is lines["wait"].now_spread is None


def test_a_disk_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "BYTES", disk.BLOCK)
    monkeypatch.setattr(disk, "ROUNDS", 2)
    found = disk.measure_disk(tmp_path)
    assert set(found) in ({"disk_read", "disk_write"}, set()) and not list(tmp_path.iterdir())
    assert all(reading.value > 0 for reading in found.values())
    assert disk.measure_disk(tmp_path / "absent") == {}
