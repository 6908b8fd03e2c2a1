"""The cyclic collector, paused while graphs are worked on and left as it was."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import numpy as np
import pytest

from graphopt.gradient.differentiate import LossRequest, differentiate
from graphopt.gradient.optimizers import Optimizer
from graphopt.gradient.step import make_step
from graphopt.model.collection import importing, paused_collection
from graphopt.model.load import load
from tests import support


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_rests_inside_and_is_left_as_it_was(on: bool) -> None:
    before = gc.isenabled()
    try:
        gc.enable() if on else gc.disable()
        with pytest.raises(KeyError), paused_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is on
    finally:
        gc.enable() if before else gc.disable()


def test_a_model_is_differentiated_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def watched(*given: Any, **named: Any) -> object:
        seen.append(gc.isenabled())
        return differentiate(*given, **named)

    monkeypatch.setattr(sys.modules[make_step.__module__], "differentiate", watched)
    model = support.model("g (float[2, 3] x) => (float[2, 2] y) { y = MatMul(x, w) }", w=np.ones((3, 2), np.float32))
    make_step(load(model), LossRequest("mse"), Optimizer())
    assert seen == [False] and gc.isenabled()


def test_what_is_imported_is_old_and_what_becomes_garbage_of_it_is_found() -> None:
    class Node:
        other: Node

    gc.collect()
    with importing():
        node = Node()
        node.other = node
        seen = weakref.ref(node)
        assert not gc.isenabled()
    assert gc.isenabled() and not gc.get_freeze_count()
    del node
    gc.collect(1)
    assert seen() is not None
    gc.collect()
    assert seen() is None


def test_what_others_have_frozen_stays_so() -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with importing():
            pass
        assert gc.get_freeze_count() > 0.99 * frozen, "some are freed by whoever has them, threads among them"
    finally:
        gc.unfreeze()
