"""How figures are put into words: sizes, counts, errors and the verdict of a verification."""

from __future__ import annotations

from graphopt.check.verification import Verification
from graphopt.report.records import VerificationRecord

Checked = Verification | VerificationRecord
UNITS = ("B", "kB", "MB", "GB", "TB")


def size(count: int) -> str:
    """Bytes with a decimal unit: 14.2 MB."""
    number = float(count)
    for unit in UNITS:
        if abs(number) < 999.5 or unit == UNITS[-1]:
            return f"{count} B" if unit == "B" else f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError("the last unit returns")


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


def verdict(verification: Checked) -> str:
    """The result of a check in a few words: verified (4 feeds, max error 2e-06)."""
    if verification.status == "verified":
        if not verification.feeds:
            return "verified (nothing was rewritten)"
        feeds = "1 feed" if verification.feeds == 1 else f"{verification.feeds} feeds"
        return f"verified ({feeds}, max error {error(verification.max_rel)})"
    if verification.status == "off":
        return "off: nothing was checked"
    return f"{verification.status}: {verification.reason}"


def error(number: float) -> str:
    """A relative error with one digit: 2e-06, and 0 for none."""
    return f"{number:.0e}" if number else "0"


def tolerances(verification: Checked) -> str:
    """The limits under which outputs counted as equal."""
    limits = ", ".join(f"{kind} {limit:.0e}" for kind, limit in verification.tolerance.items())
    return f"largest error allowed: {limits}; integers, booleans and strings must be equal"


def remarks(verification: Checked) -> tuple[str, ...]:
    """What a reader of the verdict should know: the engine, outputs left out, a check that was cut short."""
    found = []
    if verification.feeds:
        found.append(f"compared in {verification.engine}{_sizes(verification)}")
        found.append(tolerances(verification))
    if verification.excluded:
        found.append(f"not compared, because they are random: {', '.join(verification.excluded)}")
    if verification.limited is not None and verification.feeds:
        found.append(f"the check is not complete: {verification.limited}")
    return tuple(found)


def _sizes(verification: Checked) -> str:
    texts = [", ".join(f"{name}={size}" for name, size in sizes.items()) for sizes in verification.sizes if sizes]
    return f" with {' and with '.join(texts)}" if texts else ""
