"""What measures budgets of the process: the optimum of the pipeline, the hosts, groups, and what refusals name."""

from __future__ import annotations

import itertools
import mmap
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
import models
from bench.ram import __main__ as ram
from bench.ram import disk, group, host, networks, programs
from bench.ram.host import Taken
from bench.ram.pipeline import Optimum, Panel, cut, duration, optimum
from bench.ram.rows import Row
from graphopt.program.deploy.manifest import read_manifest

Ticks = Sequence[int]


def _least_by_trial(sizes: Ticks, work: Ticks, kept: set[int], read: int, memory: int) -> int | None:
    """The least end of any schedule on whole ticks, by trying every begin of every read; a byte takes `read` ticks."""
    space = memory - sum(sizes[place] for place in kept)
    streamed = [place for place in range(len(sizes)) if place not in kept]
    horizon = sum(work) + read * sum(sizes) + 1
    best: int | None = None
    if space < max((sizes[place] for place in streamed), default=0):
        return None
    for begins in itertools.combinations_with_replacement(range(horizon), len(streamed)):
        arrived = {place: begin + read * sizes[place] for place, begin in zip(streamed, begins, strict=True)}
        if any(
            begin < arrived[before] for before, begin in zip(streamed, begins[1:], strict=False)
        ):  # one after another
            continue
        ends, now = [], 0
        for place in range(len(sizes)):
            now = max(now, arrived.get(place, 0)) + work[place]
            ends.append(now)
        held = [(begin, ends[place], sizes[place]) for place, begin in zip(streamed, begins, strict=True)]
        if all(
            sum(size for begin, end, size in held if begin <= tick < max(end, begin + 1)) <= space
            for tick in range(horizon)
        ):
            best = now if best is None else min(best, now)
    return best


@pytest.mark.parametrize("seed", range(40))
def test_a_run_is_as_short_as_the_shortest_of_all_schedules(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 3)
    sizes = [chance.randint(1, 2) for _ in range(count)]
    work = [chance.randint(1, 4) for _ in range(count)]
    kept = {place for place in range(count) if chance.random() < 0.3}
    memory, read = chance.randint(1, sum(sizes)), chance.randint(1, 2)
    panels = [Panel(size, float(one)) for size, one in zip(sizes, work, strict=True)]
    assert duration(panels, 1 / read, memory, kept) == _least_by_trial(sizes, work, kept, read, memory)


@pytest.mark.parametrize("seed", range(60))
def test_the_best_residents_lie_between_the_bound_and_what_was_found(seed: int) -> None:
    """The best of all choices of residents is tried on tiny programs; what is found is at most a quarter longer."""
    chance = random.Random(seed)
    count = chance.randint(2, 8)
    panels = [Panel(10, float(chance.choice([0, 1, 1, 2, 3, 5, 9, 20]))) for _ in range(count)]
    slots, bandwidth = chance.randint(1, count - 1), 10 / chance.choice([1, 2, 4, 8])
    choices = itertools.chain.from_iterable(itertools.combinations(range(count), some) for some in range(slots))
    best = min(taken for one in choices if (taken := duration(panels, bandwidth, 10 * slots, one)) is not None)
    found = optimum(panels, bandwidth, 10 * slots)
    assert found is not None and found.bound <= best + 1e-9 and best <= found.time + 1e-9 <= 1.25 * best + 2e-9
    assert duration(panels, bandwidth, 10 * slots, found.resident) == found.time


def test_reading_and_computing_overlap() -> None:
    """Four panels of 10 ns each way: with two places the reads hide behind the work, with one they take turns."""
    panels = [Panel(10, 10.0)] * 4
    assert duration(panels, 1.0, 20) == 50
    assert duration(panels, 1.0, 10) == 80
    assert duration(panels, 1.0, 9) is None
    assert duration(panels, 1.0, 40, {0, 1, 2, 3}) == 40
    assert duration(panels, 1.0, 20, {0}) == 60


def test_what_needs_no_reads_takes_its_work() -> None:
    panels = [Panel(10, 3.0)] * 3
    assert optimum(panels, 1.0, 30) == Optimum(9.0, 9.0, frozenset({0, 1, 2}))
    assert optimum([], 1.0, 30) == Optimum(0.0, 0.0, frozenset())
    assert optimum(panels, 1.0, 9) is None
    with pytest.raises(ValueError, match="one size"):
        optimum([Panel(1, 1.0), Panel(2, 1.0)], 1.0, 2)


def test_the_bound_is_near_where_memory_cannot_be_filled_ahead() -> None:
    """A long computation in front of large weights: what is read ahead of them takes the place of residents."""
    panels = [Panel(1, 8.0)] * 60 + [Panel(1, 0.1)] * 470
    found = optimum(panels, 1.0, 80)
    assert found is not None and found.bound <= found.time <= 1.01 * found.bound


def test_steps_are_cut_into_panels_of_one_size() -> None:
    lead, panels = cut([Panel(0, 5.0), Panel(6, 12.0), Panel(0, 1.0), Panel(6, 6.0)], 4)
    assert lead == 5
    assert panels == [Panel(4, 8.0), Panel(4, 4.0 + 1.0 + 2.0), Panel(4, 4.0)]


def test_the_least_that_a_refusal_names_is_read() -> None:
    assert programs.least_of("100 MiB do not hold the program, which takes 1,234.5 MiB at least") == 1_294_467_072
    assert programs.least_of("it takes 70,000 bytes of 64 KiB") == 70_000
    assert programs.least_of("no") is None


def test_a_refused_budget_becomes_the_least(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[int] = []

    def called(function: str, name: str, folder: str, budget: int, threads: int) -> None:
        asked.append(budget)
        if budget < 77 << 20:
            raise programs.Refused("50 MiB do not hold it; the least is 76.5 MiB.")

    monkeypatch.setattr(programs, "_called", called)
    monkeypatch.setattr(programs, "PLACE", tmp_path)
    monkeypatch.setattr(programs, "read_manifest", lambda folder: None)
    assert programs.with_budget("net", 50 << 20, 1)[1] == 77 << 20
    assert asked == [50 << 20, 77 << 20]
    with pytest.raises(programs.Refused, match="the least"):
        programs.with_budget("net", 76 << 20 | 1 << 19, 1)


@pytest.mark.parametrize(
    ("mounts", "own", "place"),
    [
        ("cgroup /m cgroup rw,memory 0 0\ncgroup2 /c cgroup2 rw 0 0", "4:memory:/a/b\n0::/", ("/m/a/b", True)),
        ("cgroup2 /c cgroup2 rw 0 0", "0::/user.slice", ("/c/user.slice", False)),
    ],
)
def test_the_own_group_is_found(
    mounts: str, own: str, place: tuple[str, bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, text in (("MOUNTS", mounts), ("OWN", own)):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(group, name, tmp_path / name)
    found, first = group._parent()
    assert (str(found), first) == place


def test_where_there_are_no_groups_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("")
    monkeypatch.setattr(group, "MOUNTS", tmp_path / "none")
    assert group.why_none() == "no memory control group can be made: no control groups are mounted"


def test_hosts_run_a_bundle_and_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both hosts in C give what the program gives in Python, and say what they cannot do."""
    monkeypatch.setattr(disk, "PLACE", tmp_path)
    file = tmp_path / "net.onnx"
    models.write("mlp_tiny", file, outside_from=64)
    compiled = graphopt.compile(file, threads=1)
    compiled.save(tmp_path / "bundle")
    feed = {"input": np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)}
    (tmp_path / "input").write_bytes(feed["input"].tobytes())
    program = read_manifest(tmp_path / "bundle").program
    sides = (host.of_bundle(tmp_path / "bundle", "ours"), host.of_runtime(file, program, "theirs"))
    wanted = compiled(**feed)["logits"]
    for side in sides:
        taken = side.run([tmp_path / "input"], threads=1, runs=3, results=tmp_path / side.program.name, limit=60)
        assert not taken.fault and len(taken.runs) == 3 and taken.created > 0 and taken.peak > 1 << 20
        given = np.frombuffer(taken.outputs[0].read_bytes(), np.float32)
        np.testing.assert_allclose(given, wanted[0], rtol=1e-4, atol=1e-5)
    ours = sides[0].run([tmp_path / "input"], threads=1, runs=1, results=tmp_path / "one", limit=60)
    assert ours.outputs[0].read_bytes() == wanted.tobytes()
    (tmp_path / "bundle" / "net.weights").write_bytes(b"short")
    assert sides[0].run([tmp_path / "input"], threads=1, runs=1, results=tmp_path / "two", limit=60).fault


def test_files_leave_the_page_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the system leaves pages, all caches are dropped, if they may be; a file that is mapped stays there."""
    dropped = tmp_path / "dropped"
    monkeypatch.setattr(disk, "PLACE", tmp_path)
    monkeypatch.setattr(disk, "DROP", dropped)
    file = tmp_path / "file"
    file.write_bytes(bytes(3 << 20))
    program = disk.Disk()
    assert (program.forget(file) > 0) == dropped.exists()  # some file systems lie in memory
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view[1 << 20] == 0
        assert program.forget(file) > 0 and dropped.read_text() == "1"
    assert program.bandwidth(file)[0] > 0


def _row(**changed: object) -> Row:
    quick = Taken(1.0, (5.0, 2.0, 2.0), 40 << 20)
    slow = Taken(1.0, (5.0, 3.0, 3.0), 40 << 20)
    values: dict[str, object] = {
        "model": "net", "workers": 1, "share": 0.5, "before": quick, "budget": 40 << 20, "refused": "", "alone": quick,
        "inside": quick, "equal": True, "runtime": slow, "mapped": slow, "optimum": Optimum(2.0, 1.9, frozenset()),
    }  # fmt: skip
    return Row(**(values | changed))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, (True, True, True)),
        ({"equal": False}, (False, True, True)),
        ({"inside": Taken(fault="killed")}, (False, True, False)),
        ({"alone": Taken(1.0, (2.0, 2.0), 49 << 20)}, (False, True, True)),
        ({"alone": Taken(1.0, (2.0, 2.3), 40 << 20)}, (True, False, True)),
        ({"alone": None, "inside": None, "equal": None, "refused": "no"}, (False, False, False)),
        ({"runtime": Taken(fault="killed")}, (True, True, True)),
        ({"mapped": Taken(1.0, (9.0, 1.5), 1)}, (True, True, False)),
    ],
)
def test_bars_say_no(changed: dict[str, object], met: tuple[bool, ...]) -> None:
    found = ram.bars_of([_row(), _row(**changed)], None)
    assert tuple(bar.met for bar in found) == met
    assert [bar.label for bar in found] == ["r1", "r2", "r3"]


def test_bars_without_rows_or_groups() -> None:
    assert [bar.met for bar in ram.bars_of([_row(inside=None)], "no group")] == [True, True, None]
    assert [bar.met for bar in ram.bars_of([], None)] == [None, None, None]


def test_steps_read_weights_once_and_rows_of_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A table counts with the rows that are gathered; work of steps that overlap makes the wall."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (int64[4] ids) => (float[4, 32] y) { x = Gather <axis = 0> (table, ids) y = MatMul (x, w) }
    """)
    draw = np.random.default_rng(0).standard_normal
    model.graph.initializer.append(onnx.numpy_helper.from_array(draw((1000, 64), np.float32), "table"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(draw((64, 32), np.float32), "w"))
    graphopt.compile(model, threads=1).save(tmp_path / "net")
    bundle = programs.Bundle(tmp_path / "net", read_manifest(tmp_path / "net"))
    monkeypatch.setattr(programs, "_called", lambda *_: [3.0, 7.0])
    assert programs.steps("net", bundle, 1, 1) == [Panel(4 * 64 * 4, 3.0), Panel(64 * 32 * 4, 4.0)]
    monkeypatch.setattr(programs, "_called", lambda *_: [7.0, 6.0])
    assert [step.work for step in programs.steps("net", bundle, 2, 1)] == [7.0, 0.0]


@pytest.mark.parametrize("bits", [32, 4])
def test_a_small_decoder_is_written_and_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, bits: int) -> None:
    """The generated decoder, made small: its program gives what ONNX Runtime gives, which `compile` looks at."""
    small = networks.Sizes(50, 32, heads=4, key_heads=2, head=8, inner=48, layers=2, bits=bits)
    monkeypatch.setattr(networks, "DECODERS", {networks.LLAMA: small})
    monkeypatch.setattr(networks, "PAST", 5)
    monkeypatch.setattr(networks, "PLACE", tmp_path)
    known = networks.given(networks.LLAMA)
    if bits == 32:  # codes of so small products stay in the model's file
        assert networks.data_of(known.file).stat().st_size > 4 * 2 * 3 * 32 * 48
    assert known.file.stat().st_size < 40_000
    given = graphopt.compile(known.file, feeds=[known.feed], threads=1)(**known.feed)
    assert given["logits"].shape == (1, 1, 50) and given["present_key_1"].shape == (1, 2, 6, 8)
    assert np.isfinite(given["logits"]).all() and given["logits"].std() > 0.1
    assert networks.given(networks.LLAMA).file == known.file
