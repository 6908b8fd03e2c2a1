"""The lines of `graphopt compile`."""

from __future__ import annotations

from graphopt.flows.records.compilation import CompileRecord
from graphopt.model.text import binary_size, several
from graphopt.report.screen import Screen
from graphopt.report.wording import beyond, error, tolerances

THREADS = 256  # of a block on a GPU
ROOMY = 1.1  # times the tensors of the model, and so many bytes more: what a program's weights take without a word
SLACK = 1 << 20


def _others(record: CompileRecord) -> str:
    """What else the library has programs for."""
    others = [f"as for {cpu}" for cpu in record.levels[1:]]
    if record.points > 1:
        others.append(f"for each of {record.points} sizes")
    return f"; {', '.join(others)}" if others else ""


def _precision(record: CompileRecord) -> str:
    """What is rounded, and how far each output is off for it."""
    errors = ", ".join(f"'{name}' by {error:.1e}" for name, error in record.errors.items()) or "not measured"
    regions = f"{record.rounded_regions:,} of {record.roundable_regions:,} products and convolutions"
    return f"{record.precision} in {regions}; off, in shares of the largest element: {errors}"


def _allowed(record: CompileRecord) -> str:
    """The limits that the comparison kept."""
    if record.precision == "float32" or not record.tolerance:
        return tolerances(record.tolerance)
    return f"allowed: {error(max(record.tolerance.values()))} of an output's largest element"


def print_compile(screen: Screen, record: CompileRecord) -> None:
    """A few lines."""
    absolute = "" if record.rounded_feeds else f"; at most {record.max_abs:.1e} absolute"
    compared = (
        f"within {record.plain_rel:.1e} of ONNX Runtime on {several(record.feeds, 'feed')} (relative to the elements "
        f"beside{absolute}){beyond(record.rounded_feeds, record.max_rel, record.rounding)}"
    )
    if record.precision != "float32":
        compared = f"with ONNX Runtime on {several(record.feeds, 'feed')}; at most {record.max_abs:.1e} absolute"
    if record.remade is not None:
        compared += f"; made again with exact kernels, as the first program was not ({record.remade})"
    if record.not_compared is not None:
        compared = f"not: {record.not_compared}"
    least = "the least there is"
    if record.arena_bytes != record.arena_bound_bytes:
        least = f"at least {binary_size(record.arena_bound_bytes)} are needed"
    weights = binary_size(record.weights_bytes)
    if record.made_bytes:
        weights += f"; {binary_size(record.made_bytes)} more are made of them at creation, none with --small"
    if record.weights_bytes > ROOMY * record.model_bytes + SLACK:
        weights += (
            f"; {binary_size(record.model_bytes)} in the model; kernels keep some in larger forms, fewer with --exact"
        )
    precision = [("precision", _precision(record))] if record.precision != "float32" else []
    if record.not_rounded is not None:
        precision = [("precision", f"float32: {record.not_rounded}")]
    threads = "one: several would gain nothing, or --threads 1 was given"
    if record.shared_arena_bytes is not None:
        threads = f"any number, with an arena of {binary_size(record.shared_arena_bytes)} for several"
    chosen = f"by the record of {record.machine}" if record.machine else "by the figures of a usual server"
    if record.gpu_workers:
        chosen = "by estimates for the usual GPU of that capability"
        pinned = f"{record.gpu_workers:,} blocks of {THREADS} threads at once, or any number that claim their work"
        threads = f"{pinned}; an arena of {binary_size(record.shared_arena_bytes or 0)}"
    memory = []
    if record.flash_bytes:
        threads, chosen = "one, and no system beneath it", "by the figures of a Cortex-M4"
        outside = f"; it calls {', '.join(record.outside)}" if record.outside else ""
        memory.append(("flash", f"{binary_size(record.flash_bytes)}, code and weights{outside}"))
        memory.append(("memory", f"{binary_size(record.memory_bytes)}: inputs, arena, scratch and outputs"))
    if record.ram_bytes is not None:
        read = f"; each run reads {binary_size(record.fetched_bytes)} of weights" if record.fetched_bytes else ""
        if record.spilled_bytes:
            read += f"; each run writes {binary_size(record.spilled_bytes)} to a temporary file and reads them back"
        threads = several(record.ram_workers, "thread") + " at the most"
        memory.append(("process", f"{binary_size(record.ram_bytes)} for the program in all{read}"))
    left = [("left", f"to ONNX Runtime: {', '.join(record.fallback)}")] if record.fallback else []
    for label, text in (
        (
            "regions",
            f"{record.regions:,}, {several(record.kernels, 'different kernel')}, for {record.level}{_others(record)}",
        ),
        *left,
        ("weights", weights),
        ("arena", f"{binary_size(record.arena_bytes)}, {least}"),
        *memory,
        ("threads", threads),
        ("chosen", chosen),
        *precision,
        ("compared", compared),
        ("written", f"{record.output} in {record.seconds:.1f} s"),
    ):
        screen.line(f"{label:<13} {text}")
        if label == "compared" and record.not_compared is None:
            screen.small(_allowed(record))
