"""Every identity that a rule of algebra or elimination applies is proved, and its false neighbor refuted."""

from __future__ import annotations

import pytest
import z3

from graphopt.passes import algebra, elimination
from graphopt.passes.algebra import expand
from graphopt.passes.pipeline import rules
from tests.proofs.statement import Proof
from tests.proofs.table import PROOFS, UNDECIDED, covered


@pytest.mark.parametrize("proof", PROOFS, ids=lambda proof: proof.title)
def test_the_identity_holds_and_its_condition_is_needed(proof: Proof) -> None:
    assert proof.premise_can_hold() == z3.sat
    assert proof.holds() == z3.unsat
    assert proof.refuted() == z3.sat


def test_every_rule_is_proved_or_said_to_be_undecided() -> None:
    asked = {rule.name for rule in (*algebra.RULES, *expand.RULES, *elimination.RULES)}
    assert asked - covered() - set(UNDECIDED) == set()


def test_the_table_names_rules_that_exist_and_none_twice() -> None:
    known = {rule.name for rule in rules()}
    assert covered() | set(UNDECIDED) <= known
    assert covered() & set(UNDECIDED) == set()


def test_what_is_undecided_has_a_reason() -> None:
    for name, reason in UNDECIDED.items():
        assert len(reason.split()) > 4, name
