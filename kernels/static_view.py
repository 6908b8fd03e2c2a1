"""A kernel as the processor's model sees it: the loop with the most arithmetic, through `osaca` when it is installed.

OSACA gives the cycles of one turn of a loop if every instruction finds its port free and its data in the first cache,
and the length of the chain that one turn hands to the next. What a measured kernel takes beyond that is memory.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from kernels.errors import KernelsError
from kernels.kernel import Kernel
from kernels.llvm.compile import assembly
from kernels.target import Target

_ARCHITECTURES = {
    "znver1": "ZEN1", "znver2": "ZEN2", "znver3": "ZEN3", "znver4": "ZEN4", "znver5": "ZEN4",
    "haswell": "HSW", "broadwell": "BDW", "skylake": "SKX", "skylake-avx512": "SKX", "cascadelake": "CSX",
    "icelake-client": "ICL", "icelake-server": "ICX", "sapphirerapids": "SPR", "neoverse-n1": "N1", "neoverse-v2": "V2",
}  # fmt: skip
_LABEL = re.compile(r"^(\.L\w+):")
_ARITHMETIC = re.compile(r"^\s*(v?f?n?m(add|sub|la|ls)|vpdpbusd|vdpbf16ps|v?(add|sub|mul|div)[ps][sd]|f(add|sub|mul))")


class NoStaticView(KernelsError):
    """`osaca` is not installed, does not know the processor, or the kernel has no loop."""


def hot_loop(listing: str) -> str:
    """The innermost loop with the most arithmetic: from a label to the jump back to it; raises NoStaticView."""
    lines = listing.splitlines()
    labels: dict[str, int] = {}
    best: tuple[int, list[str]] = (0, [])
    for number, line in enumerate(lines):
        label = _LABEL.match(line)
        if label:
            labels = {label[1]: number}  # a label inside makes the loop around it no innermost one
            continue
        jump = re.match(r"^\s*(?:j\w+|b\.\w+|cbn?z\s+\w+,)\s+(\.L\w+)", line)
        if jump and jump[1] in labels:
            body = [one for one in lines[labels[jump[1]] : number + 1] if not one.lstrip().startswith((".p2", ".cfi"))]
            weight = sum(bool(_ARITHMETIC.match(one)) for one in body)
            best = max(best, (weight, body), key=lambda one: one[0])
    if not best[1]:
        raise NoStaticView("the kernel has no loop with arithmetic.")
    return "\n".join(best[1]) + "\n"


def static_view(kernel: Kernel, target: Target, architecture: str | None = None) -> str:
    """OSACA's report on the kernel's hot loop, by the model of `architecture` or the target's; raises NoStaticView."""
    if importlib.util.find_spec("osaca") is None:
        raise NoStaticView("osaca is not installed: pip install osaca.")
    architecture = architecture or _ARCHITECTURES.get(target.cpu)
    if architecture is None:
        raise NoStaticView(f"osaca has no model of '{target.cpu}'; known are {', '.join(_ARCHITECTURES)}.")
    loop = hot_loop(assembly(kernel.module.text(), target, optimize=kernel.optimize))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{kernel.name}.s"
        path.write_text(loop)
        command = [sys.executable, "-m", "osaca", "--arch", architecture, "--ignore-unknown", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NoStaticView(f"osaca failed with its model {architecture}: {reason[0]}; name another architecture.")
    return done.stdout
