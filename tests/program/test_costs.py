"""What plans for several workers are made with: a record's figures or usual ones; the same record, the same plan."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.machine.file import parse, written
from graphopt.machine.record import MachineRecord
from graphopt.program.costs import ESTIMATED, Costs, costs_of
from tests import support
from tests.machine.records import BETWEEN_CORES, record

# Four products side by side, and one of them all: about 10 us of work on a core of 100 Gflop/s.
TEXT = """g (float[64,128] x) => (float[64,128] y) {
    a = MatMul(x, w) b = MatMul(x, v) c = Softmax(a) d = Softmax(b) e = Add(c, d) y = MatMul(e, w)
}"""


def model() -> onnx.ModelProto:
    draw = np.random.default_rng(0)
    return support.model(
        TEXT, 18, **{name: draw.standard_normal((128, 128)).astype(np.float32) for name in ("w", "v")}
    )  # fmt: skip


def compiled(machine: MachineRecord | None) -> graphopt.Compiled:
    return graphopt.compile(model(), target="x86-64-v3", threads=2, machine=machine)


def test_costs_are_those_of_the_record() -> None:
    assert costs_of(record()) == Costs(0.6 * 192e9, 30e9, 200.0, 10_000.0, 1 << 20, 1 / 20 - 1 / 120)
    alone = costs_of(record("l3_read", *BETWEEN_CORES))
    assert alone == Costs(0.6 * 192e9, 12e9, ESTIMATED.wait_ns, ESTIMATED.wake_ns, 1 << 20, 0.0)
    assert costs_of(None) is ESTIMATED


def test_results_of_others_take_longer_to_read_where_they_are_in_a_cache() -> None:
    costs = Costs(1.0, 1.0, 0.0, 0.0, cache=1000, crossing_ns=0.5)
    assert costs.crossing([1000, 600], 2) == 0.5 * 1600 / 2 and costs.crossing([600], 4) == 0.5 * 600 * 3 / 4
    assert costs.crossing([1001], 2) == costs.crossing([600], 1) == 0.0
    assert ESTIMATED.crossing([600], 2) == 0.0, "no machine was measured"
    assert costs_of(record("l2_read")).crossing_ns == costs_of(record("other_read")).crossing_ns == 0.0
    assert costs_of(record(other_read=200.0)).crossing_ns == 0.0, "not faster than out of the own cache"


@pytest.mark.parametrize("machine", [None, record()], ids=["usual", "record"])
def test_the_same_record_gives_the_same_bundle(machine: MachineRecord | None, tmp_path: Path) -> None:
    digests = []
    for name in ("one", "other"):
        again = None if machine is None else parse(written(machine), "it")
        compiled(again).save(tmp_path / name)
        files = sorted((tmp_path / name).iterdir())
        digests.append([(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files])
    assert digests[0] == digests[1]


def test_the_record_decides_whether_several_are_worth_it() -> None:
    """Where waking takes longer than the work, one worker does it alone."""
    quick = compiled(record(wait=10.0, wake=100.0, multiply_adds=0.3))
    slow = compiled(record(wait=10.0, wake=1e6, multiply_adds=0.3))
    assert quick.linked.listing.ticketed is not None and slow.linked.listing.ticketed is None
