"""Seeded faults in the PTX of tasks and programs: the machine reports them, or results differ, or nothing changes."""

from __future__ import annotations

import re
from functools import cache

import pytest

from bench.gpu import mutants
from bench.gpu.mutants import PLACES, Mutant, Subject
from tests.kernels.ptx.tasks.samples import samples
from tests.program.gpu.test_recurrent import layer

WAITING = ("signal", "wait", "fence")


@cache
def task(name: str) -> Subject:
    return mutants.of_task(name, samples()[name])


@cache
def steps() -> Subject:
    proto = layer("GRU", (2, 2, 3, 6), "bidirectional", ("y", "y_h"), linear_before_reset=1)
    return mutants.of_model("steps", proto)


@pytest.mark.parametrize("name", ["tile", "recurrent", "attention"])
def test_a_barrier_less_is_noticed(name: str) -> None:
    """All but one that nothing needs: the first of an attention of one turn."""
    found = [one for one in mutants.mutants(task(name).text) if one.place == "barrier"]
    verdicts = {str(one): task(name).verdict(one) for one in found}
    assert len(found) >= 2 and all(verdict == "reported" for verdict, _ in verdicts.values()), verdicts


def test_whatever_orders_blocks_is_noticed_where_it_is_missing() -> None:
    """Signals, waits and fences of a program whose blocks wait for one another."""
    found = [one for one in steps().drawn(36, 1) if one.place in WAITING]
    assert {one.place for one in found} == set(WAITING) and len(found) >= 8
    for one in found:
        verdict, words = steps().verdict(one)
        assert verdict in ("reported", "never executed"), f"{one}: {verdict} {words}"


@pytest.mark.parametrize("name", ["convolution", "softmax"])
def test_addresses_and_tails(name: str) -> None:
    """Most are noticed; those that change nothing are compared with all results under all adversaries."""
    found = [one for one in task(name).drawn(16, 2) if one.place in ("address", "tail")]
    verdicts = [task(name).verdict(one)[0] for one in found]
    assert len(found) >= 8 and verdicts.count("silent") <= len(found) // 2


def test_faults_are_drawn_alike_for_a_seed_and_none_twice() -> None:
    some = task("tile").drawn(30, 5)
    assert some == task("tile").drawn(30, 5) and len({(one.number, one.new) for one in some}) == 30
    assert {one.place for one in some} == {"barrier", "address", "tail"} and set(PLACES) >= {one.place for one in some}
    for one in some:
        assert one.of(task("tile").text).count("\n") == task("tile").text.count("\n")


def test_a_fault_says_what_it_changes() -> None:
    one = Mutant("fence", 3, "\tfence.acq_rel.gpu;", "")
    assert str(one) == "fence, line 4: fence.acq_rel.gpu; -> nothing"
    assert re.fullmatch("a\nb\nc\n\ne", one.of("a\nb\nc\n\tfence.acq_rel.gpu;\ne"))
