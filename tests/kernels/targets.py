"""The targets that tests build for: those whose code this machine runs, and all that have a name."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kernels.target
from kernels.target import Target, aarch64, host, why_not_here, x86_64_v3, x86_64_v4, x86_64_v4_256

NAMED: tuple[Target, ...] = (x86_64_v4(), x86_64_v4_256(), x86_64_v3(), aarch64())
NAMES = ("v4", "v4 of 32 bytes", "v3", "arm")
HERE: tuple[Target, ...] = (host(), *(one for one in (x86_64_v3(), x86_64_v4_256()) if why_not_here(one) is None))


def changed_host(monkeypatch: pytest.MonkeyPatch, **change: bool) -> Target:
    """This machine's instructions, for code of an architecture that differs: without fused multiply-adds, or bare."""
    target = host()
    one = replace(target.architecture, **change)
    monkeypatch.setattr(kernels.target, "ARCHITECTURES", {one.name: one})
    return target
