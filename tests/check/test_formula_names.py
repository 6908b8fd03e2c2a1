"""Dims whose names are formulas of others: they follow from those, and a model that keeps them so is run."""

from __future__ import annotations

import numpy as np

import graphopt
from graphopt.check.inputs import inputs_of
from graphopt.check.sizes import first_sizes, more_sizes
from graphopt.model.load import load
from tests import support

MASKED = """g (float[batch,past,4] cache, float[batch,new,4] x, int64[batch,"past+new"] mask) => (float[batch,all] y) {
    both = Concat<axis = 1>(cache, x) sums = ReduceSum<keepdims = 0>(both, last) shown = Cast<to = 1>(mask)
    made = Mul(sums, shown) y = Identity(made)
}""".replace('"past+new"', "together")


def model(name: str) -> graphopt.Source:
    proto = support.model(MASKED, 18, last=np.array([2]))
    proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = name
    return proto


def test_a_formula_follows_the_dims_that_it_names() -> None:
    inputs = inputs_of(load(model("past + new")))
    first = next(iter(first_sizes(inputs)))
    assert first["past + new"] == first["past"] + first["new"]
    for several in more_sizes(inputs, first).values():
        assert all(one["past + new"] == one["past"] + one["new"] for one in several)


def test_a_name_that_is_not_honest_is_tried_with_other_sizes_too() -> None:
    tried = list(first_sizes(inputs_of(load(model("past + new")))))
    assert any(one["past + new"] != one["past"] + one["new"] for one in tried)


def test_a_decoder_whose_mask_is_as_long_as_all_is_verified() -> None:
    found = graphopt.optimize(model("past+new")).verification
    assert found is not None and found.status == "verified" and len(found.sizes) > 1
