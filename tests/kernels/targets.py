"""The targets that tests build for: those whose code this machine runs, and all that have a name."""

from __future__ import annotations

from kernels.target import Target, aarch64, host, why_not_here, x86_64_v3, x86_64_v4, x86_64_v4_256

NAMED: tuple[Target, ...] = (x86_64_v4(), x86_64_v4_256(), x86_64_v3(), aarch64())
NAMES = ("v4", "v4 of 32 bytes", "v3", "arm")
HERE: tuple[Target, ...] = (host(), *(one for one in (x86_64_v3(), x86_64_v4_256()) if why_not_here(one) is None))
