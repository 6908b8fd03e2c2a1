"""Persistent programs as PTX: what is emitted keeps the rules of signalling, and assembles where ptxas is installed."""

from __future__ import annotations

import re

import pytest

from kernels.ptx.emit import NotEmitted, assemble, assembler, ptx
from kernels.ptx.persistent import KERNELS, THREADS, module

PROCESSORS = ("sm_75", "sm_80", "sm_90")


@pytest.fixture(scope="module")
def text() -> str:
    return ptx(module())


def body(text: str, name: str) -> list[str]:
    """The instructions of one function."""
    found = re.search(rf"(?:\.entry|\.func)[^{{;]*\b{name}\b[^{{;]*\{{(.*?)\n\}}", text, re.DOTALL)
    assert found is not None, f"there is no {name}"
    return [line.strip() for line in found[1].splitlines() if line.strip()]


def test_every_kernel_is_there_with_its_threads(text: str) -> None:
    assert set(re.findall(r"\.entry (\w+)", text)) == set(KERNELS)
    assert text.count(f".reqntid {THREADS}") == len(KERNELS)


def test_nothing_is_read_through_the_non_coherent_cache(text: str) -> None:
    assert "ld.global.nc" not in text and "ld.acquire.gpu" in text


def test_a_signal_is_a_barrier_and_a_fence_and_then_additions(text: str) -> None:
    lines = body(text, "signal")
    barrier, fence, addition = (
        next(number for number, line in enumerate(lines) if line.startswith(what))
        for what in ("bar.sync", "fence.acq_rel.gpu", "atom.global.add")
    )
    assert barrier < fence < addition
    assert "st.release" not in text and "red.global" not in text, "nobody publishes in another way"


def test_every_addition_that_publishes_stands_behind_a_fence(text: str) -> None:
    lines = body(text, "meet")
    fence = next(number for number, line in enumerate(lines) if line.startswith("fence.acq_rel.gpu"))
    adds = [number for number, line in enumerate(lines) if line.startswith("atom.global.add")]
    assert fence < min(adds)


def test_a_wait_ends_in_a_barrier_before_anything_is_read(text: str) -> None:
    for kernel in ("pinned", "ticketed", "pingpong", "look", "meet"):
        written = re.search(rf"ptx_kernel void @{kernel}\(.*?\n\}}", module(), re.DOTALL)
        assert written is not None
        behind = written[0].split("together:\n")
        assert len(behind) == 2 and behind[1].lstrip().startswith("call void @llvm.nvvm.barrier.cta.sync"), kernel
        assert any(line.startswith("bar.sync") for line in body(text, kernel)), "and the backend leaves it"


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.skipif(assembler() is None, reason="ptxas is not installed")
def test_it_assembles_and_a_multiprocessor_holds_many_blocks(processor: str) -> None:
    found = assemble(ptx(module(), processor), processor)
    assert set(found) == set(KERNELS)
    assert all(one.registers <= 64 and one.barriers <= 1 for one in found.values())


def test_what_llvm_cannot_select_ends_another_process() -> None:
    with pytest.raises(NotEmitted, match="LLVM makes no PTX for sm_90"):
        ptx("define void @f() { ret i32 1 }")
