"""The lines of `graphopt check`."""

from __future__ import annotations

from graphopt.flows.records.checked import BundleChecked
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen


def print_checked(screen: Screen, record: BundleChecked) -> None:
    """A line for each thing that was looked at."""
    weights = binary_size(record.weights_bytes)
    if record.made_bytes:
        weights += f", and {binary_size(record.made_bytes)} made of them when a model is created"
    sizes = "" if record.points == 1 else f", each for {several(record.points, 'size')}"
    here = f"{record.here} runs here, with the weights' checksum as it should be"
    if record.why_not is not None:
        here = f"not run here: {record.why_not}"
    for label, text in (
        ("files", f"{several(record.files, 'file')} as the manifest says"),
        ("made by", f"{record.producer}, ABI {record.abi}"),
        ("model", record.model or "not known"),
        ("weights", weights),
        ("code for", f"{', '.join(record.levels)}{sizes}"),
        ("library", here),
        ("checked", record.bundle),
    ):
        screen.line(f"{label:<13} {text}")
