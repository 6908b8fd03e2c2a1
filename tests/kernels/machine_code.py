"""Reading assembly: the loop with the most arithmetic, and vector registers that went to the stack."""

from __future__ import annotations

import re

_SPILL = re.compile(
    r"v?mov[aund]*p[sd]\w*\s+%[xyz]mm\d+, -?\d*\(%r[sb]p\)"  # x86: a vector register to the stack
    r"|st[rp]\s+q\d+,(?: q\d+,)? \[(?:sp|x29)"  # ARM
)
_LABEL = re.compile(r"^(\.L\w+):")
_ARITHMETIC = re.compile(r"^\s*(v?f?n?m(add|sub|la|ls)|vpdpbusd|vdpbf16ps|v?(add|sub|mul|div)[ps][sd]|f(add|sub|mul))")


def spills(listing: str) -> int:
    """How many times a vector register is stored to the stack: more than a few in a tiled kernel halve its speed."""
    return len(_SPILL.findall(listing))


def hot_loop(listing: str) -> str:
    """The innermost loop with the most arithmetic: from a label to the jump back to it."""
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
            body = [
                text for text in lines[labels[jump[1]] : number + 1] if not text.lstrip().startswith((".p2", ".cfi"))
            ]
            weight = sum(bool(_ARITHMETIC.match(text)) for text in body)
            best = max(best, (weight, body), key=lambda loop: loop[0])
    assert best[1], "the kernel has a loop with arithmetic"
    return "\n".join(best[1]) + "\n"
