"""The demo: a handful of the zoo optimized and verified, one table, then the commands as a user would type them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
from rich import box
from rich.console import Console
from rich.table import Table

import graphopt
import models

SHOWN = ("resnet50_legacy_keepbn", "bert_base_dyn_legacy", "swin_tiny", "gru_unrolled", "vit_s16_legacy", "lstm_bi_op")
TYPED = "mobilenet_v2_legacy"  # the model of the command line
COMPILED = ("resnet18", "gru_op", "bert_small_rawdynamo")  # to native programs, beside ONNX Runtime


def main() -> None:
    """Optimize the shown models, print the table, and run the command once."""
    console = Console(width=108)
    table = Table(title="graphopt on real exporter graphs (seeded weights)", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for column in ("nodes", "after", "MiB", "after", "seconds", "feeds", "max error"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("result", no_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in SHOWN:
            source = Path(folder) / f"{name}.onnx"
            onnx.save(models.load(name), source)
            with console.status(f"optimizing {name}"):
                table.add_row(*_row(name, source))
            source.unlink()
        console.print(table)
        source, output = Path(folder) / f"{TYPED}.onnx", Path(folder) / f"{TYPED}.opt.onnx"
        onnx.save(models.load(TYPED), source)
        command = Path(sys.executable).parent / "graphopt"
        console.print(f"[bold]$ graphopt optimize {source.name} {output.name}[/bold]")
        subprocess.run([command, "optimize", source.name, output.name], cwd=folder, check=True)
        sources = [f"{name}.onnx" for name in COMPILED]
        for name, file in zip(COMPILED, sources, strict=True):
            onnx.save(models.load(name), Path(folder) / file)
        console.print(f"[bold]$ graphopt bench {' '.join(sources)}[/bold]")
        subprocess.run([command, "bench", *sources], cwd=folder, check=True)


def _row(name: str, source: Path) -> tuple[str, ...]:
    started = time.perf_counter()
    result = graphopt.optimize(source)
    seconds = time.perf_counter() - started
    output = source.with_suffix(".opt.onnx")
    result.save(output)
    before, after = _figures(source), _figures(output)
    output.unlink()
    return (
        name, f"{before[0]:,}", f"{after[0]:,}", f"{before[1]:.1f}", f"{after[1]:.1f}", f"{seconds:.1f}",
        str(result.verification.feeds), f"{result.verification.max_rel:.0e}", result.verification.status,
    )  # fmt: skip


def _figures(file: Path) -> tuple[int, float]:
    """Nodes, those of subgraphs included, and MiB."""
    return sum(_nodes(node) for node in onnx.load(file).graph.node), file.stat().st_size / 2**20


def _nodes(node: onnx.NodeProto) -> int:
    graphs = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return 1 + sum(_nodes(inner) for graph in graphs for inner in graph.node)


if __name__ == "__main__":
    main()
