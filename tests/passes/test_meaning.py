"""What a docstring says, taken apart; every change of a run finds its own."""

from __future__ import annotations

import numpy as np

import graphopt
from graphopt.passes import pipeline
from graphopt.passes.meaning import meaning, meanings, why
from tests import support


def test_the_drawing_and_the_sentences() -> None:
    said = meaning("""Gelu(x)  -->  y      (opset 20 on;
        of any kind)

        Erf(x)  -->  z

        Leaves doubles
        alone.
        """)
    assert said.drawing == "Gelu(x)  -->  y      (opset 20 on;\nof any kind)\n\nErf(x)  -->  z"
    assert said.short == "Gelu(x) --> y (opset 20 on; of any kind)"
    assert said.prose == "Leaves doubles alone."
    assert said.since == 20


def test_no_opset_where_none_is_stated() -> None:
    assert meaning("x + 0  -->  x\n\nSince opset 8 both broadcast.").since is None


def test_every_rule_and_every_function_draws_something_short() -> None:
    said = meanings()
    for name in (*(rule.name for rule in pipeline.rules()), *(s.name for s in pipeline.every_pass() if s.run)):
        assert "-->" in said[name].short, name


def test_a_change_with_a_name_of_its_own_is_explained_by_its_pass() -> None:
    text = "g (float[n] x) => (float[n] y) { d = Add(x, w) y = Relu(x) }"
    result = graphopt.optimize(support.model(text, w=np.ones(1, np.float32)))
    (removed,) = [item for item in result.rewrites if item.rule == "remove-unused-initializers"]
    assert removed.before == ("initializer 'w'",)
    assert why(meanings(), removed) == meanings()["remove-unused-definitions"]
