"""What models that are lowered one after the other share: kernels, and what was estimated of their problems."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from graphopt.program.regions.kernels import Kernels
from graphopt.program.regions.lower import lower
from kernels.target import named
from tests import support

TARGET = named("x86-64-v3")
ROWS = "g (float[2,8] x) => (float[2,8] y) { y = Softmax(x) }"


def test_a_problem_is_estimated_once() -> None:
    asked: list[object] = []

    def estimate(problem: object, candidate: object, target: object) -> float:
        asked.append(problem)
        return 7.0

    ((known, problem),) = lower(_model(), TARGET).problems.values()
    template, kernels = replace(known, estimate=estimate), Kernels()
    assert [kernels.likely(template, problem, TARGET) for _ in range(3)] == [7.0] * 3
    assert asked == [problem]
    kernels.likely(replace(template, variant="other"), problem, TARGET)
    assert len(asked) == 2, "another template's candidates are others"


def test_equal_problems_of_two_models_share_a_kernel() -> None:
    kernels = Kernels()
    first, second = (lower(_model(), TARGET, kernels=kernels).regions[0].kernel for _ in range(2))
    assert first is second
    assert lower(_model(), TARGET).regions[0].kernel is not first


def _model() -> ir.Model:
    return ir.from_proto(support.model(ROWS, 18, unused=np.array(0)))
