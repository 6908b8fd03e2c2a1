"""Templates as records: each has a name of its own, and builds the likely best of its candidates."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import kernels.templates
from kernels.dtype import DType
from kernels.target import host
from kernels.templates.gemm import GEMM, Gemm
from kernels.templates.scan import CUMULATIVE_SUM, CumulativeSum
from kernels.templates.template import MANY, SOME, Template
from tests.kernels.guard import run_guarded
from tests.kernels.recorded.cases import FAMILIES, Case

# Of others, whose names they share.
VARIANTS = {
    "EXACT_CONVOLUTION", "COMPUTED_PRODUCT", "COMPUTED_WEIGHTS", "UNIT_CONVOLUTION", "UNIT_PRODUCT", "DOT_PRODUCT",
    "DOT_CONVOLUTION", "BITS_DOTS", "BITS_ROW", "BITS_OF_ANY_ROWS",
}  # fmt: skip


def all_templates() -> dict[str, Template]:
    """The templates by the names that modules export them under."""
    found = {}
    for info in pkgutil.walk_packages(kernels.templates.__path__, "kernels.templates."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, Template):
                found[name] = value
    return found


def test_each_template_has_a_name_of_its_own() -> None:
    templates = all_templates()
    names = [template.name for exported, template in templates.items() if exported not in VARIANTS]
    assert len(names) == len(set(names)) >= 18
    assert all(templates[one].name in names for one in VARIANTS)


def test_whoever_builds_kernels_has_a_template() -> None:
    exported = {template.build.__module__ for template in all_templates().values()}
    for info in pkgutil.walk_packages(kernels.templates.__path__, "kernels.templates."):
        module = importlib.import_module(info.name)
        build = vars(module).get("build")
        if inspect.isfunction(build) and build.__module__ == info.name:
            templates = [one for one in vars(module).values() if isinstance(one, Template)]
            assert templates or info.name in exported, info.name


def test_the_likely_best_candidate_is_built() -> None:
    gemm = Gemm(20, 40, 30)
    first = GEMM.candidates(gemm, host())[0]
    kernel = GEMM.kernel(gemm, host(), "twenty")
    assert (kernel.name, kernel.candidate) == ("twenty", str(first))
    assert kernel.module.text() == GEMM.build(gemm, first, host(), "twenty").module.text()
    assert GEMM.kernel(gemm, host()).name == "product"


def test_estimates_order_candidates() -> None:
    gemm = Gemm(20, 40, 30)
    assert GEMM.estimate is not None
    nanoseconds = [GEMM.estimate(gemm, one, host()) for one in GEMM.candidates(gemm, host())]
    assert nanoseconds == sorted(nanoseconds) and nanoseconds[0] > 0


def test_a_template_with_one_way_has_one_candidate_and_no_estimate() -> None:
    problem = CumulativeSum((3, 4), 1, DType.I32)
    assert CUMULATIVE_SUM.candidates(problem, host()) == (None,)
    assert CUMULATIVE_SUM.estimate is None
    assert CUMULATIVE_SUM.kernel(problem, host()).name == "cumulative_sum"


SHARED = {f"{case.template.name}: {case.name}": case for family in FAMILIES.values() for case in family()
          if case.template.share is not None}  # fmt: skip


@pytest.mark.parametrize("case", SHARED.values(), ids=SHARED)
def test_blocks_for_several_workers_compute_the_same(case: Case) -> None:
    """More of them, over the same operands, with the same bits; many blocks need no others."""
    kernel = case.template.kernel(case.problem, host(), "one")
    assert kernel.name == "one"
    if kernel.shared is None:
        return
    generator = np.random.default_rng(0)
    inputs = {one.name: generator.standard_normal(one.elements).astype(one.dtype.numpy)
              for one in kernel.operands if one.role != "output"}  # fmt: skip
    outputs = {one.name: np.zeros(one.elements, one.dtype.numpy) for one in kernel.operands if one.role == "output"}
    assert kernel.shared.name == "one_shared" and kernel.shared.operands == kernel.operands
    assert kernel.blocks < kernel.shared.blocks and kernel.blocks < MANY
    assert kernel.blocks < SOME or kernel.module.agrees(kernel.shared.module)
    alone, several = (run_guarded(each, inputs | outputs) for each in (kernel, kernel.shared))
    assert alone.keys() == outputs.keys()
    assert all(alone[name].tobytes() == several[name].tobytes() for name in outputs)


def test_some_problems_have_blocks_for_several_workers_and_some_need_none() -> None:
    found = [case.template.kernel(case.problem, host()) for case in SHARED.values()]
    assert {kernel.shared is None for kernel in found} == {False, True}
