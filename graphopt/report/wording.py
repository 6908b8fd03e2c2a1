"""How figures are put into words: sizes, counts, errors and the verdict of a verification."""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.check.tolerance import LIMITS, MULTIPLE
from graphopt.check.verification import Verification
from graphopt.model.text import several


def quantity(count: int) -> str:
    """A large count with its prefix: 3.5 M."""
    number = float(count)
    for prefix in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5 or prefix == " T":
            return str(count) if not prefix else f"{number:.3g}{prefix}"
        number /= 1000
    raise AssertionError("the last prefix returns")


def change(before: float, after: float) -> str:
    """How much less or more, in percent."""
    if before == after:
        return ""
    if before == 0:
        return "new"
    percent = 100 * (after - before) / before
    return f"{percent:+.1f}%" if abs(percent) < 10 else f"{percent:+.0f}%"


def verdict(verification: Verification) -> str:
    """The result of a check in a few words: verified (4 feeds, max error 2e-06)."""
    if verification.status == "verified":
        if not verification.feeds:
            return "already optimal for this level; nothing was changed"
        feeds = several(verification.feeds, "feed")
        rounded = beyond(verification.rounded_feeds, verification.max_rel, verification.rounding)
        return f"verified ({feeds}, max error {error(verification.plain_rel)}{rounded})"
    if verification.status == "off":
        return "off: nothing was checked"
    return f"{verification.status}: {verification.reason}"


def beyond(feeds: int, max_rel: float, rounding: float) -> str:
    """How far results are apart on feeds on which the model's own rounding decides, to stand behind the others'."""
    told = f"; on {feeds} on which rounding decides {error(max_rel)}, {rounding:.2g} x the model's own rounding"
    return told if feeds else ""


def error(number: float) -> str:
    """A relative error with one digit: 2e-06, and 0 for none."""
    return f"{number:.0e}" if number else "0"


def tolerances(allowed: Mapping[str, float]) -> str:
    """The limits under which outputs counted as equal, by type."""
    if not allowed:
        return "outputs must be equal: none is a number with a fraction"
    if allowed == dict.fromkeys(LIMITS, given := next(iter(allowed.values()))):
        return f"allowed: {given:.0e}, as asked"
    limits = ", ".join(f"{limit:.0e} ({kind})" for kind, limit in allowed.items())
    return f"allowed: {limits}; beyond that {MULTIPLE:.0f} x the model's own rounding"


def remarks(verification: Verification) -> tuple[str, ...]:
    """What a reader of the verdict should know: the engine, outputs left out, a check that was cut short."""
    found = []
    if verification.feeds:
        found.append(f"compared in {verification.engine}{_reached(verification)}")
        found.append(tolerances(verification.tolerance))
    if verification.excluded:
        found.append(f"not compared, because they are random: {', '.join(verification.excluded)}")
    if verification.limited is not None and verification.feeds:
        found.append(f"the check is not complete: {verification.limited}")
    return tuple(found)


def _reached(verification: Verification) -> str:
    """What the feeds had in them and reached: sizes, kinds of values, branches, masks."""
    names = dict.fromkeys(name for sizes in verification.sizes for name in sizes)
    spans = []
    for name in names:
        taken = [sizes[name] for sizes in verification.sizes]
        spans.append(f"{name} {min(taken)} to {max(taken)}" if min(taken) < max(taken) else f"{name} {taken[0]}")
    parts = [", ".join(spans)] if spans else []
    parts.append(f"values {', '.join(verification.draws)}")
    if verification.branches[1]:
        parts.append(f"{verification.branches[0]} of {verification.branches[1]} branches")
    if verification.shut_rows is not None:
        parts.append(f"mask rows shut: {'yes' if verification.shut_rows else 'no'}")
    return f"; {'; '.join(parts)}"
