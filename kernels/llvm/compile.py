"""Text to object: parse, verify, generate machine code for a target; and the same code as assembly."""

from __future__ import annotations

import functools

from llvmlite import binding as llvm

from kernels.errors import KernelsError
from kernels.llvm.module import OPTIMIZED
from kernels.target import Target


class CompileError(KernelsError):
    """LLVM refused a text that a template wrote."""


@functools.cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # for an instruction that has no intrinsic, in code for this machine


def machine(target: Target) -> llvm.TargetMachine:
    """LLVM's code generator for a target.

    Code is position independent, so that an object also links into a library; without a system beneath it lies where
    it is linked, so that tables with addresses are constants.
    """
    return _machine(target.triple, target.cpu, target.features, "static" if target.architecture.is_bare else "pic")


@functools.cache
def _machine(triple: str, cpu: str, features: tuple[str, ...], reloc: str) -> llvm.TargetMachine:
    _initialize()
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(cpu=cpu, features=",".join(features), opt=3, reloc=reloc, codemodel="small")


def compile_object(text: str, target: Target) -> bytes:
    """Machine code as an ELF object; raises CompileError.

    Templates arrive in the form in which they shall run and skip LLVM's optimizer: half of the time, the same speed.
    Routines are plain loops, which it works on.
    """
    found: bytes = machine(target).emit_object(_parse(text, target))
    return found


def assembly(text: str, target: Target) -> str:
    """The same code as assembly text."""
    found: str = machine(target).emit_assembly(_parse(text, target))
    return found


def _parse(text: str, target: Target) -> llvm.ModuleRef:
    tiled, _, plain = text.partition(OPTIMIZED)
    module = _part(tiled, target)
    if plain:
        module.link_in(_optimized(_part(plain, target), target))
    return module


def _part(text: str, target: Target) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM does not accept the generated text: {error}") from error
    module.data_layout = str(machine(target).target_data)
    return module


def _optimized(module: llvm.ModuleRef, target: Target) -> llvm.ModuleRef:
    """What LLVM makes of plain loops: vectors where it can, and no variable in memory."""
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.loop_interleaving = True
    builder = llvm.create_pass_builder(machine(target), options)
    builder.getModulePassManager().run(module, builder)
    return module
