"""The static view of a kernel: which loop is looked at, and what is said when it cannot be."""

from __future__ import annotations

import importlib.util

import pytest

from kernels.llvm.compile import assembly
from kernels.static_view import NoStaticView, hot_loop, static_view
from kernels.target import host, x86_64_v3, x86_64_v4
from kernels.templates.gemm import Gemm, build, candidates


def test_the_loop_of_a_product_holds_its_multiplications_and_nothing_else() -> None:
    gemm = Gemm(64, 96, 64)
    candidate = candidates(gemm, x86_64_v4())[0]
    kernel = build(gemm, candidate, x86_64_v4())
    loop = hot_loop(assembly(kernel.module.text(), x86_64_v4()))
    assert loop.count("vfmadd") == 4 * candidate.rows * candidate.vectors  # four steps of the depth in a turn
    assert loop.count("jb") + loop.count("jl") == 1


def test_a_kernel_without_a_loop_is_refused() -> None:
    gemm = Gemm(1, 1, 1)
    kernel = build(gemm, candidates(gemm, x86_64_v3())[0], x86_64_v3())
    with pytest.raises(NoStaticView, match="no loop with arithmetic"):
        hot_loop(assembly(kernel.module.text(), x86_64_v3()))


@pytest.mark.skipif(importlib.util.find_spec("osaca") is not None, reason="osaca is installed")
def test_without_osaca_the_way_out_is_named() -> None:
    gemm = Gemm(8, 16, 8)
    with pytest.raises(NoStaticView, match="pip install osaca"):
        static_view(build(gemm, candidates(gemm, host())[0], host()), host())
