"""The machine that code is generated for: instruction set, vector registers, caches.

Nothing in the package assumes a width or a feature: a template asks its `Target`. `host()` describes the machine that
runs; the named targets describe levels of an architecture that a deployed object may rely on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from llvmlite import binding as llvm

from kernels.dtype import DType
from kernels.errors import KernelsError

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


class UnknownTarget(KernelsError):
    """A machine that no code is generated for."""


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set and the sizes that decide tiles."""

    triple: str
    cpu: str
    features: tuple[str, ...]  # as LLVM names them, each with + or -
    vector_bytes: int
    vector_registers: int
    l1: int = 32 << 10  # bytes of data cache, per core
    l2: int = 1 << 20  # bytes, per core
    l3: int = 16 << 20  # bytes, of all cores together
    line: int = 64  # bytes

    def lanes(self, dtype: DType = DType.F32) -> int:
        """How many elements one vector register holds."""
        return self.vector_bytes // dtype.bytes

    def has(self, feature: str) -> bool:
        """Whether the machine has a feature, by LLVM's name without the sign: "avx512vnni"."""
        return f"+{feature}" in self.features

    @property
    def is_x86(self) -> bool:
        """Whether this is a 64-bit x86."""
        return self.triple.startswith("x86_64")

    @property
    def is_arm(self) -> bool:
        """Whether this is a 64-bit ARM."""
        return self.triple.startswith("aarch64")


_V3 = ("+avx", "+avx2", "+bmi", "+bmi2", "+f16c", "+fma", "+lzcnt", "+movbe", "+popcnt", "+sse4.2")
_V4 = (*_V3, "+avx512f", "+avx512bw", "+avx512cd", "+avx512dq", "+avx512vl")


def x86_64_v3() -> Target:
    """x86-64 with AVX2 and FMA: 16 registers of 32 bytes."""
    return Target("x86_64-unknown-linux-gnu", "x86-64-v3", _V3, 32, 16)


def x86_64_v4() -> Target:
    """x86-64 with AVX-512: 32 registers of 64 bytes."""
    return Target("x86_64-unknown-linux-gnu", "x86-64-v4", _V4, 64, 32)


def aarch64() -> Target:
    """64-bit ARM with NEON: 32 registers of 16 bytes."""
    return Target("aarch64-unknown-linux-gnu", "generic", ("+neon", "+fp-armv8"), 16, 32, l1=64 << 10)


@functools.cache
def host() -> Target:
    """The machine this process runs on; raises UnknownTarget for one that is neither x86-64 with AVX2 nor ARM64."""
    triple, cpu = llvm.get_default_triple(), llvm.get_host_cpu_name()
    features = dict(llvm.get_host_cpu_features())
    named = tuple(f"{'+' if present else '-'}{name}" for name, present in sorted(features.items()))
    caches = {"l1": _cache(1, 32 << 10), "l2": _cache(2, 1 << 20), "l3": _cache(3, 16 << 20)}
    if triple.startswith("x86_64") and features.get("avx512f") and features.get("avx512vl"):
        return Target(triple, cpu, named, 64, 32, **caches)
    if triple.startswith("x86_64") and features.get("avx2") and features.get("fma"):
        return Target(triple, cpu, named, 32, 16, **caches)
    if triple.startswith("aarch64"):
        return Target(triple, cpu, named, 16, 32, **caches)
    raise UnknownTarget(f"no code is generated for '{triple}' with the CPU '{cpu}': x86-64 needs AVX2 and FMA.")


TargetName = Literal["host", "x86-64-v3", "x86-64-v4", "aarch64"]
_MAKERS: dict[TargetName, Callable[[], Target]] = {
    "host": host,
    "x86-64-v3": x86_64_v3,
    "x86-64-v4": x86_64_v4,
    "aarch64": aarch64,
}


def named(name: TargetName) -> Target:
    """A target by its name; raises UnknownTarget."""
    if name not in _MAKERS:
        raise UnknownTarget(f"there is no target '{name}'; known are {', '.join(_MAKERS)}.")
    return _MAKERS[name]()


def why_not_here(target: Target) -> str | None:
    """Why this machine cannot run code for a target, as a clause; None where it can. Such code ends the process."""
    here = host()
    wanted, architecture = (one.triple.partition("-")[0] for one in (target, here))
    if wanted != architecture:
        return f"this machine cannot run {wanted}: it is {architecture}"
    lacking = [one[1:] for one in target.features if one.startswith("+") and not here.has(one[1:])]
    return f"this machine cannot run {target.cpu}: it lacks {', '.join(lacking)}" if lacking else None


def _cache(level: int, otherwise: int) -> int:
    """Bytes of a data cache as the kernel lists it; `otherwise` where it lists none."""
    for entry in sorted(_CACHES.glob("index*")):
        try:
            kind, found = (entry / "type").read_text().strip(), int((entry / "level").read_text())
            size = (entry / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if found == level and kind in ("Data", "Unified") and size.endswith("K"):
            return int(size[:-1]) << 10
    return otherwise
