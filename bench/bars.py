"""All bars in one table: what is promised, today's figure, and whether it is met."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import (
    attention,
    byte_models,
    capabilities,
    certify,
    choices,
    convolution_chains,
    cores,
    custom_ops,
    decoding,
    external_data,
    kills,
    layout,
    light,
    machine,
    mutations,
    native,
    node_programs,
    node_tests,
    ort_latency,
    ort_models,
    ort_target,
    peaks,
    pool,
    precision,
    programs,
    quantize,
    quantized,
    quantized_regions,
    random_models,
    recurrent,
    scale,
    sides,
    sizes,
    speed,
    targets,
    tuning,
    under_load,
    webassembly,
    whole,
    zoo,
)
from bench import kept as results
from bench.bar import Bar, Sheet, console
from bench.gpu import assembled as gpu_assembled
from bench.gpu import counts as gpu_counts
from bench.gpu import simulated as gpu_simulated
from bench.gpu import whole as gpu_whole
from bench.gradients import __main__ as gradients
from bench.gradients import budgets as step_budgets
from bench.gradients import checkpoints, depth, mapped, train
from bench.gradients import steps as gradient_steps
from bench.gradients import workers as step_workers
from bench.kernels import all as kernels
from bench.kernels import bits, bits_decoder
from bench.memory import all as memory
from bench.mutants import sweep as mutants
from bench.newcomer import __main__ as newcomers
from bench.ram import __main__ as ram
from bench.real import __main__ as real
from bench.scheduling import all as scheduling
from bench.scheduling import budgets, coplaced
from bench.script import Measure

MEASURES: dict[str, Measure] = {
    "1": light.measure,
    "2": ort_models.measure,
    "3": zoo.measure,
    "4": capabilities.measure,
    "5": node_tests.measure,
    "6": scale.measure,
    "7": random_models.measure,
    "8": layout.measure,
    "9": attention.measure,
    "10": recurrent.measure,
    "11": quantized.measure,
    "12": speed.measure,
    "13": ort_latency.measure,
    "14": ort_target.measure,
    **kernels.MEASURES,
    "p": programs.measure,
    **memory.MEASURES,
    **scheduling.MEASURES,
    "e1": external_data.measure,
    "e2": kills.measure,
    "e3": mutations.measure,
    "e4": under_load.measure,
    "e5": mutants.measure,
    "e6": real.measure,
    "u2": newcomers.measure,
    "c2": cores.measure,
    "c5": pool.measure,
    "c7": certify.measure,
    "c8": budgets.measure,
    "c9": coplaced.measure,
    "c12": machine.measure,
    "c15": convolution_chains.measure,
    "n1": native.measure,
    "n2": choices.measure,
    "n5": tuning.measure,
    "o1": node_programs.measure,
    "o2": whole.measure,
    "o4": quantized_regions.measure,
    "d1": sizes.measure,
    "d2": decoding.measure,
    "d3": peaks.measure,
    "d4": targets.measure,
    "d5": custom_ops.measure,
    "d9": webassembly.measure,
    "d10": sides.measure,
    "r1": ram.measure,
    "g1": gradients.measure,
    "g2": train.measure,
    "g3": step_budgets.measure,
    "g4": depth.measure,
    "g5": checkpoints.measure,
    "g6": gradient_steps.measure,
    "g7": step_workers.measure,
    "g8": mapped.measure,
    "x2": gpu_whole.measure,
    "x3": gpu_assembled.measure,
    "x4": gpu_counts.measure,
    "x5": gpu_simulated.measure,
    "l1": precision.measure,
    "l3": byte_models.measure,
    "l4": bits.measure,
    "l4t": bits_decoder.measure,
    "l5": quantize.measure,
    "l6": sizes.measure_rounded,
}


def bars(
    only: Annotated[list[str] | None, typer.Option(help="Only this bar (3, k1, ...); may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(envvar="GRAPHOPT_DATA", help="Folder of models from outside.")] = None,
    quick: Annotated[bool, typer.Option(help="Smaller sweeps.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the bars and every table behind them here.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep the figures among the results of this processor.")] = False,
) -> None:
    """Measure the bars and print them. Ends with 1 if a bar that was measured is not met."""
    screen = console()
    name = results.processor()  # before a measure pins this process to one core
    if keep and quick:
        raise typer.BadParameter("Smaller sweeps are not kept: leave --quick or --keep.")
    quiet = Sheet(Console(file=io.StringIO()))  # the scripts' own tables go to the JSON only
    found: list[Bar] = []
    for number in only or MEASURES:
        if number not in MEASURES:
            raise typer.BadParameter(f"There is no bar {number}; there are {', '.join(MEASURES)}.")
        with screen.status(f"bar {number}: {MEASURES[number].__doc__}"):
            found += MEASURES[number](quiet, data=data, quick=quick)
        if keep:
            results.keep(found, name=name)
    Sheet(screen).bars(found)
    if json:
        quiet.write(json, found)
    if any(bar.met is False for bar in found):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(bars)
