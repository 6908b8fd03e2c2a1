"""`graphopt machine`, and the record that `compile` plans with: kept, of a file, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

import graphopt
from graphopt.errors import OptionError
from graphopt.machine import kept
from graphopt.machine.file import written
from graphopt.machine.record import MachineRecord, Measured
from tests.cli.shell import Shell
from tests.machine.records import BETWEEN_CORES, VALUES, record

OWN = kept.own_key()
ONCE = "measuring this machine (once per installation)\n"
COMPILE = ("compile", "in.onnx", "b", "--dim", "batch=2")


@pytest.fixture
def measured(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> list[MachineRecord]:
    """What the machine gives when it is measured, the last one first; nothing is kept yet."""
    monkeypatch.delenv("GRAPHOPT_MACHINE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(shell.folder / "cache"))
    given = [record(key=OWN, clock=clock) for clock in (4.5, 3.3, 3.0)]
    monkeypatch.setattr(kept, "_measured", lambda _: given.pop())
    return given


def test_the_record_is_a_table(shell: Shell, measured: list[MachineRecord]) -> None:
    answer = shell.run("machine")
    assert answer.status == 0 and answer.err == ONCE
    lines = answer.out.splitlines()
    assert lines[0] == f"{OWN.cpu}, 2 workers" and all(any(one.startswith(name) for one in lines) for name in VALUES)
    row = next(line.split() for line in lines if line.startswith("multiply_adds "))
    assert row[-4:] == ["2", "/cycle", "6", "2.0%"]
    assert "float32       192 Gflop/s of one core, 345.6 of all" in lines
    place = kept.kept_file(OWN, shell.folder / "cache" / "graphopt")
    assert lines[-1] == f"kept          in {place}" and place.exists()
    again = shell.run("machine", "--json")
    assert again.err.splitlines() == lines and len(measured) == 2
    assert again.json["entries"]["wait"] == {"value": 200.0, "unit": "ns", "spread": 0.02}
    assert again.json["schema"] == "graphopt.machine/2"


def test_a_machine_of_one_core(shell: Shell) -> None:
    (shell.folder / "one.toml").write_text(written(record(*BETWEEN_CORES, workers=1)))
    answer = shell.run("machine", "--machine", "one.toml")
    assert answer.out.startswith("Some CPU, 1 worker\n") and "kept" not in answer.out and "beside" not in answer.out


def test_entries_that_were_disturbed_are_named(shell: Shell) -> None:
    found = record()
    found.entries["wait"] = Measured(200.0, "ns", 3.0)
    (shell.folder / "busy.toml").write_text(written(found))
    lines = shell.run("machine", "--machine", "busy.toml").out.splitlines()
    assert "disturbed     wait: measure again when the machine has less to do" in lines


def test_it_is_measured_again_when_that_is_asked(shell: Shell, measured: list[MachineRecord]) -> None:
    assert shell.run("machine").status == 0
    assert shell.run("machine", "--measure", "--json").json["entries"]["clock"]["value"] == 3.3
    assert shell.run("machine", "--json").json["entries"]["clock"]["value"] == 3.3
    answer = shell.run("machine", "--check")
    row = next(line.split() for line in answer.out.splitlines() if line.startswith("clock"))
    assert row == ["clock", "/ns", "3.3", "4.5", "+36.4%", "2.0%", "2.0%"]
    assert "within 10 %   29 of 30 entries" in answer.out.splitlines()
    assert shell.run("machine", "--json").json["entries"]["clock"]["value"] == 3.3, "a check keeps nothing"


def test_a_check_names_another_processor(shell: Shell, measured: list[MachineRecord]) -> None:
    (shell.folder / "other.toml").write_text(written(record("wait")))
    found = shell.run("machine", "--machine", "other.toml", "--check", "--json")
    assert f"the record is of another processor: Some CPU; this is {OWN.cpu}" in found.err
    lines = {line["name"]: line for line in found.json["entries"]}
    assert lines["wait"]["kept"] is None and lines["wait"]["difference"] is None and lines["wake"]["difference"] == 0
    assert found.json["schema"] == "graphopt.machine-check/1"


def test_a_file_that_is_no_record_is_refused(shell: Shell) -> None:
    assert shell.run("machine", "--machine", "in.onnx").error.startswith("the machine file 'in.onnx' is no")
    (shell.folder / "bad.toml").write_text(written(record(l1_read=1e6)))
    assert (
        "'l1_read' is 1e+06 bytes/cycle; believed are 1 to 2000" in shell.run(*COMPILE, "--machine", "bad.toml").error
    )
    assert not (shell.folder / "b").exists()
    with pytest.raises(OptionError, match="a file is read, not measured"):
        graphopt.machine("bad.toml", again=True)
    assert shell.run("machine", "--machine", "bad.toml", "--measure").status == 1


def test_the_first_compile_measures_and_says_so(shell: Shell, measured: list[MachineRecord]) -> None:
    first = shell.run(*COMPILE)
    assert first.status == 0 and first.err == ONCE and len(list((shell.folder / "cache" / "graphopt").iterdir())) == 1
    assert f"chosen        by the record of {OWN.cpu}" in first.out.splitlines()
    again = shell.run(*COMPILE, "--json")
    assert ONCE not in again.err and again.json["machine"] == OWN.cpu and len(measured) == 2
    assert shell.run(*COMPILE, "--machine", "znver4", "--json").json["machine"] == "znver4"
    usual = shell.run(*COMPILE, "--machine", "none").out.splitlines()
    assert "chosen        by the figures of a usual server" in usual


@pytest.mark.parametrize(
    "words", [("--machine", "znver4"), ("--target", "x86-64-v3"), ("--machine", "none"), ("--machine", "given.toml")]
)
def test_compile_does_not_measure_where_nothing_asks(
    shell: Shell, measured: list[MachineRecord], words: tuple[str, str]
) -> None:
    """For a known core, for another processor, without a record, with that of a file."""
    (shell.folder / "given.toml").write_text(written(record()))
    answer = shell.run(*COMPILE, *words)
    assert answer.status == 0 and answer.err == "" and len(measured) == 3 and not (shell.folder / "cache").exists()


def test_a_machine_that_is_not_believed_does_not_stop_compile(
    shell: Shell, measured: list[MachineRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured[:] = [record(key=OWN, wake=1.0)] * 2
    answer = shell.run(*COMPILE)
    assert answer.status == 0
    assert answer.err.splitlines()[1] == (
        "planned without a record of this machine: this machine: 'wake' is 1 ns; believed are 100 to 1e+07."
    )


def test_the_environment_names_a_record_too(
    shell: Shell, measured: list[MachineRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHOPT_MACHINE", "absent.toml")
    file = Path.cwd() / "absent.toml"
    assert shell.run(*COMPILE).error == f"the machine file '{file}' cannot be read: No such file or directory."


def test_a_folder_is_compiled_with_one_measure(shell: Shell, measured: list[MachineRecord]) -> None:
    """Before the processes of its models ask."""
    models = shell.folder / "models"
    models.mkdir()
    (shell.folder / "in.onnx").rename(models / "a.onnx")
    answer = shell.run("compile", "models", "out", "--dim", "batch=2", "--json")
    assert answer.status == 0 and answer.err.startswith(ONCE) and len(measured) == 2
    assert answer.json["results"][0]["status"] == "done"
