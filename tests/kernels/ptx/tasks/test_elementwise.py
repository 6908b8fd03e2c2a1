"""Chains of elementwise operations as tasks on the PTX machine, beside the processor's kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.dtype import DType
from kernels.ptx.tasks.elementwise import elementwise
from kernels.templates.elementwise import ELEMENTWISE, Elementwise, Output
from kernels.templates.streams import inputs_of
from kernels.tensor import storage
from kernels.tensor.expression import Buffer, Variable, gelu
from tests.kernels.ptx.tasks.running import SM_80, SM_90, Array, beside, check
from tests.kernels.templates.test_elementwise import chains

TOLERANCES = {DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 4e-6}


@settings(deadline=None, max_examples=4)
@given(st.lists(chains(), min_size=6, max_size=6), st.sampled_from([SM_80, SM_90]))
def test_chains_of_any_shape(some: list[tuple[Elementwise, dict[str, Array]]], target: Any) -> None:
    cases = []
    for number, (problem, arrays) in enumerate(some):
        buffers = {one.name: one for one in inputs_of(problem.values)}
        stored = {
            name: storage.store(buffers[name], _normal(array)) for name, array in arrays.items() if name in buffers
        }
        tolerance = TOLERANCES.get(problem.outputs[0].buffer.dtype, 0.0)
        cases.append(beside(ELEMENTWISE, problem, f"chain_{number}", 0, tolerance, target, **stored))
    check(cases, target)


def _normal(array: Array) -> Array:
    """Zeros for subnormal numbers, which the processor's kernels read as such and the GPU's as they are."""
    if array.dtype != np.float32:
        return array
    return np.where(np.abs(array) < np.finfo(np.float32).tiny, np.float32(0), array)


def test_threads_have_several_elements_where_there_are_many() -> None:
    i, j = axes = (Variable("i", 300), Variable("j", 41))
    x, y = Buffer("x", DType.F32, (300, 41)), Buffer("y", DType.F32, (300, 41))
    problem = Elementwise(axes, (Output(y, gelu(x[i, j])),))
    few = replace(SM_90, workers=2)
    assert elementwise(problem, few, "chain").blocks < elementwise(problem, SM_90, "chain").blocks
    check([beside(ELEMENTWISE, problem, "chain", 1, 4e-6, few)])


def test_of_nothing_there_are_no_blocks() -> None:
    (i,) = axes = (Variable("i", 0),)
    x, y = Buffer("x", DType.F32, (0,)), Buffer("y", DType.F32, (0,))
    case = beside(ELEMENTWISE, Elementwise(axes, (Output(y, x[i] + x[i]),)), "chain", 0, 0.0, x=np.zeros(0, np.float32))
    assert case.kernel.blocks == 0
    check([case])
