"""What is read of objects of either width: what they define, and what they ask for."""

from __future__ import annotations

import pytest

from kernels.llvm.compile import compile_object
from kernels.llvm.elf import defined, outside, sections
from kernels.llvm.function import Function
from kernels.llvm.module import Module
from kernels.target import Target, aarch64, thumbv7em, x86_64_v3


def _object(target: Target, name: str, called: str, size: int) -> bytes:
    module = Module(target)
    module.variable("held", f"internal global [{size} x i8] zeroinitializer, align 16")
    module.variable("kept", 'constant [3 x i8] c"abc", align 32')
    module.declare(called, "void", ["ptr", "ptr"])
    f = Function(module, name, (), exported=True)
    f.line(f"call void @{called}(ptr @held, ptr @kept)")
    f.finish()
    return compile_object(module.text(), target)


@pytest.mark.parametrize("target", (x86_64_v3(), aarch64(), thumbv7em()), ids=("x86", "arm", "thumb"))
def test_symbols_and_sections(target: Target) -> None:
    one, other = _object(target, "first", "second", 160), _object(target, "second", "third", 16)
    assert sorted(defined(one)) == ["first", "kept"]
    assert outside([one]) == ("second",) and outside([one, other]) == ("third",)
    assert [part.size for part in sections(one) if part.in_memory] == [160]
    kept = [part for part in sections(one) if part.in_flash and one[part.offset : part.offset + 3] == b"abc"]
    assert [(part.size, part.alignment) for part in kept] == [(3, 32)]
