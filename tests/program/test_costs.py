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
from kernels.dtype import DType
from kernels.kernel import Kernel, Operand
from kernels.llvm.module import Module
from kernels.target import host
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


def test_what_moves_elements_takes_the_time_of_the_target_s_caches() -> None:
    """As the estimates of templates do; a record of a machine is believed."""
    operands = Operand("x", "input", DType.F32, 1000), Operand("y", "output", DType.F32, 500)
    kernel = Kernel("copy", Module(host()), operands, 1)
    target = host()
    wanted = 2 * 4 * 500 / (target.core.l2 * target.core.gigahertz)
    assert ESTIMATED.beside(target).time(kernel) == pytest.approx(wanted)
    measured = costs_of(record("l3_read", *BETWEEN_CORES))
    assert measured.beside(target) is measured


def compiled(machine: MachineRecord | None) -> graphopt.Compiled:
    return graphopt.compile(model(), target="x86-64-v3", threads=2, machine=machine)


def test_costs_are_those_of_the_record() -> None:
    assert costs_of(record()) == Costs(
        0.6 * 192e9,
        30e9,
        200.0,
        10_000.0,
        1 << 20,
        1 / 20 - 1 / 120,
        cache_read=120e9,
        cache_write=60e9,
        disk=2e9,
    )
    alone = costs_of(record("l3_read", *BETWEEN_CORES))
    assert alone == Costs(
        0.6 * 192e9,
        12e9,
        ESTIMATED.wait_ns,
        ESTIMATED.wake_ns,
        1 << 20,
        0.0,
        cache_read=120e9,
        cache_write=60e9,
        disk=2e9,
    )
    assert costs_of(record("disk_read")).disk == ESTIMATED.disk
    assert costs_of(None) is ESTIMATED


def test_results_of_others_take_longer_to_read_where_they_are_in_a_cache() -> None:
    costs = Costs(1.0, 1.0, 0.0, 0.0, cache=1000, crossing_ns=0.5)
    assert costs.crossing([1000, 600], 2) == 0.5 * 1600 / 2 and costs.crossing([600], 4) == 0.5 * 600 * 3 / 4
    assert costs.crossing([1001], 2) == costs.crossing([600], 1) == 0.0
    assert ESTIMATED.crossing([600], 2) == 0.0, "no machine was measured"
    assert costs_of(record("l2_read")).crossing_ns == costs_of(record("other_read")).crossing_ns == 0.0
    assert costs_of(record(other_read=200.0)).crossing_ns == 0.0, "not faster than out of the own cache"


def kernel(flops: int, blocks: int = 2, **sizes: int) -> Kernel:
    """One with operands of so many bytes."""
    roles = {"x": "input", "w": "constant", "y": "output"}
    operands = tuple(Operand(name, roles[name], DType.U8, size) for name, size in sizes.items())  # type: ignore[arg-type]
    return Kernel("k", Module(host()), operands, blocks, flops=flops)


def test_a_kernel_takes_its_operations_or_its_bytes() -> None:
    costs = Costs(1e9, 1e9, 0.0, 0.0, cache=1000, cache_read=4e9, cache_write=2e9)
    assert costs.time(kernel(5000, x=400, y=400)) == 5000
    assert costs.time(kernel(1, x=400, w=300, y=400)) == pytest.approx(400 / 4 + 300 + 400 / 2)
    assert costs.time(kernel(1, x=2000, y=400)) == pytest.approx(2000 + 400 / 2), "not in the cache"
    assert costs.time(kernel(0, x=400, y=4000)) == pytest.approx(400 / 4 + 400 / 2), "there are gaps in what it writes"
    usual = Costs(1e9, 1e9, 0.0, 0.0, cache=1000)
    assert usual.time(kernel(1, x=400, y=400)) == pytest.approx(800)


def test_workers_that_share_a_run_read_what_all_need() -> None:
    costs = Costs(1e9, 1e9, 0.0, 0.0)
    assert costs.again(kernel(1, 8, x=400, w=300, y=1), 3) == pytest.approx(2 * 300)
    assert costs.again(kernel(1, 2, x=100, w=300, y=1), 3) == pytest.approx(100), "one more has a block"
    assert costs.again(kernel(1, 1, x=100, w=300, y=1), 3) == costs.again(kernel(1, 8, x=100, y=1), 3) == 0.0


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
