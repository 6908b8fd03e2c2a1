"""Objects in this process: loaded without a linker, and kept on disk by their content."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import llvmlite
from llvmlite import binding as llvm

from kernels.errors import KernelsError
from kernels.llvm.compile import compile_object, machine
from kernels.target import Target


class MissingSymbol(KernelsError):
    """A loaded object has no function of the wanted name."""


class Loaded:
    """Objects in the memory of this process, which may call one another. Their functions live as long as this does."""

    def __init__(self, code: bytes | Sequence[bytes], target: Target) -> None:
        machine(target)
        empty = llvm.parse_assembly(f'target triple = "{target.triple}"\n')
        found = llvm.Target.from_triple(target.triple)
        generator = found.create_target_machine(
            cpu=target.cpu, features=",".join(target.features), opt=3, jit=True, codemodel="jitdefault"
        )
        self._engine = llvm.create_mcjit_compiler(empty, generator)
        codes = [code] if isinstance(code, bytes) else code
        self._objects = [llvm.ObjectFileRef.from_data(one) for one in codes]
        for one in self._objects:
            self._engine.add_object_file(one)
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where an exported function or variable starts; raises MissingSymbol."""
        found: int = self._engine.get_function_address(name) or self._engine.get_global_value_address(name)
        if not found:
            raise MissingSymbol(f"the object has no symbol '{name}'.")
        return found


class ObjectCache:
    """Objects by the hash of all that decides them, in a folder that several processes may share, or with None here.

    What is begun is compiled by a thread, one text after the other: LLVM does not hold Python's lock, so that whoever
    began it goes on at the same time.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._objects: dict[str, Future[bytes]] = {}
        self._compiler: ThreadPoolExecutor | None = None

    def begin(self, text: str, target: Target) -> None:
        """Have the object for a text made, if it is not there."""
        key = _cache_key(text, target)
        if key not in self._objects:
            if self._compiler is None:
                self._compiler = ThreadPoolExecutor(1, "compiler")
            self._objects[key] = self._compiler.submit(self._made, key, text, target)

    def get(self, text: str, target: Target) -> bytes:
        """The object for a text, compiled here when it is not there and the thread has not come to it."""
        key = _cache_key(text, target)
        known = self._objects.get(key)
        if known is None or known.cancel():
            known = self._objects[key] = Future()
            known.set_result(self._made(key, text, target))
        return known.result()

    def only(self, wanted: Collection[tuple[str, Target]]) -> None:
        """Forget what was begun, is not wanted and does not lie there; returns when none of it is being compiled."""
        keys = {_cache_key(text, target) for text, target in wanted}
        under_way = [key for key, one in self._objects.items() if key not in keys and not one.done()]
        for one in [one for one in map(self._objects.pop, under_way) if not one.cancel()]:
            one.exception()

    def _made(self, key: str, text: str, target: Target) -> bytes:
        if self.folder is None:
            return compile_object(text, target)
        path = self.folder / f"{key}.o"
        try:
            return path.read_bytes()
        except FileNotFoundError:
            code = compile_object(text, target)
        self.folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        os.replace(name, path)  # whole or not at all, whoever else writes it
        return code


def _cache_key(text: str, target: Target) -> str:
    """The hash of a text, what the target says of instructions, and the version of LLVM."""
    parts = (
        text,
        repr((target.triple, target.cpu, target.features)),
        llvmlite.__version__,
        str(llvm.llvm_version_info),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
