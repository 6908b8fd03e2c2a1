"""What lowering and planning choose for small graphs on named processors, recorded so that a change of it is seen.

A copy too many, a buffer more or another order computes the same: comparing results does not notice it. RECORD=1 writes
the files anew; their difference says what a change of the code changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from graphopt.errors import NotLowered
from graphopt.program.deploy.cutting import cut
from graphopt.program.deploy.hybrid import make_hybrid, without_kernels
from graphopt.program.order import region_graph
from graphopt.program.plan import plan_together
from graphopt.program.regions.lower import has_lowering, lower
from graphopt.program.regions.scope import Scope
from graphopt.program.tasks import Tasks, tasks_of
from kernels.target import host, named
from scheduler.device import device
from tests import support
from tests.golden.texts import TARGETS, listing_text
from tests.program.recorded.graphs import GRAPHS, graph
from tests.program.regions.images.test_small import NETWORKS, TOLERANCE, network
from tests.program.regions.running import compare
from tests.program.regions.test_lower import CHAINS, chain_model

FOLDER = Path(__file__).parent


def assert_recorded(name: str, lines: Sequence[str]) -> None:
    """Compare with the file of a name."""
    path, text = FOLDER / f"{name}.txt", "\n".join(lines) + "\n"
    if os.environ.get("RECORD") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"{path.name} differs; RECORD=1 writes it anew"


@pytest.mark.parametrize("name", GRAPHS)
def test_small_networks_compute_what_they_say(name: str) -> None:
    compare(graph(name), tolerance=TOLERANCE)


@pytest.mark.parametrize("target", TARGETS)
def test_listings_of_small_networks(target: str) -> None:
    lines = [f"{name}\n{listing_text(ir.from_proto(graph(name)), target)}" for name in GRAPHS]
    assert_recorded(f"graphs.{target}", lines)


@pytest.mark.parametrize("target", TARGETS)
def test_listings_of_chains(target: str) -> None:
    lines = [f"{text}\n{listing_text(ir.from_proto(chain_model(text)), target)}" for text in CHAINS]
    assert_recorded(f"chains.{target}", lines)


@pytest.mark.parametrize("target", TARGETS)
def test_listings_of_images(target: str) -> None:
    lines = [f"{text}\n{listing_text(ir.from_proto(network(text)), target)}" for text in NETWORKS]
    assert_recorded(f"images.{target}", lines)


def test_names_of_regions_and_buffers() -> None:
    lines = []
    for name in GRAPHS:
        lowered = lower(ir.from_proto(graph(name)), named("x86-64-v3"))
        lines.append(name)
        for region in lowered.regions:
            places = ", ".join(
                f"{operand.name}={place.buffer.role} {place.buffer.name}+{place.offset}"
                for operand, place in zip(region.kernel.operands, region.places, strict=True)
            )
            lines.append(f"  {'; '.join(map(str, region.nodes)) or 'copy'}: {places}")
    assert_recorded("names", lines)


def test_region_graphs() -> None:
    """Times are those of a fixed machine: a region's flops or its bytes, whichever takes longer."""
    lines = []
    for name in GRAPHS:
        made = region_graph(lower(ir.from_proto(graph(name)), named("x86-64-v3")))
        lines += [name, *(f"  {value.name} {value.size}" for value in made.values)]
        lines += [
            f"  {one.name}: {', '.join(one.inputs)} -> {', '.join(one.outputs)} in {one.time:.3f} ns"
            f"{' again' if one.recomputable else ''}{f' after {one.after}' if one.after else ''}"
            for one in made.operators
        ]
        lines += [f"  {share.value} in place of {share.of}" for share in made.shares]
    assert_recorded("order", lines)


# Hardmax has no kernel there.
PARTS = {
    "nothing is left out": "a = Relu(x) b = Exp(a) y = MatMul(b, m)",
    "in the middle": "a = Relu(x) b = MatMul(a, m) c = Hardmax(b) d = Softmax(c) y = Exp(d)",
    "between two": "a = Hardmax(x) b = Cast<to = 6>(a) c = Neg(b) d = Cast<to = 1>(c) y = Hardmax(d)",
    "movement alone": "a = Transpose(x) b = Hardmax(a) c = Transpose(b) y = Identity(c)",
    "work between two": "a = Hardmax(x) b = Softmax(a) c = Softmax<axis = 0>(b) y = Hardmax(c)",
    "work that is given out": "a = Hardmax(x) z = Softmax(a) b = Neg(z) y = Hardmax(b)",
    "beside each other": "a = MatMul(x, m) b = Hardmax(x) d = Softmax(b) e = Softmax(a) y = Add(d, e)",
    "what only the runtime reads": "k = Transpose(m) a = MatMul(x, k) b = Softmax(a) c = Hardmax(b) y = Add(c, m)",
}


@pytest.mark.usefixtures("some_lack_kernels")
def test_parts() -> None:
    lines = []
    for name, text in PARTS.items():
        more = ", float[4,4] z" if " z = " in text else ""
        proto = support.model(f"g (float[4,4] x) => (float[4,4] y{more}) {{ {text} }}", 18, m=np.eye(4, dtype="f4"))
        model = ir.from_proto(proto)
        scope = Scope(model, named("x86-64-v3"))
        outside = {node for node in model.graph if not has_lowering(node)}
        lines.append(name)
        for segment in cut(scope, model.graph, outside):
            nodes = " ".join(node.op_type for node in segment.nodes)
            inputs, outputs = (",".join(one.name or "" for one in side) for side in (segment.inputs, segment.outputs))
            lines.append(f"  {'kernels' if segment.native else 'runtime'}: {inputs} -> {nodes} -> {outputs}")
    assert_recorded("parts", lines)


@pytest.mark.usefixtures("some_lack_kernels")
def test_parts_ready_to_run() -> None:
    lines = []
    for name, text in PARTS.items():
        more = ", float[4,4] z" if " z = " in text else ""
        proto = support.model(f"g (float[4,4] x) => (float[4,4] y{more}) {{ {text} }}", 18, m=np.eye(4, dtype="f4"))
        try:
            made = make_hybrid(ir.from_proto(proto), host(), "g")
        except NotLowered as error:
            lines += [name, f"  {error}"]
            continue
        lines += [name, f"  without a kernel: {', '.join(made.missing)}; in the runtime: {', '.join(made.fallback)}"]
        lines += [
            f"  {'kernels' if one.native else 'runtime'}: {one.inputs} -> {one.operators} -> {one.outputs}, done with "
            f"{one.done_with}"
            for one in made.parts
        ]
        x = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
        for found, wanted in zip(made.run(None, {"x": x}), support.session(proto).run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert_recorded("hybrids", lines)


@pytest.mark.parametrize(("count", "said"), [(1, "N0 has"), (12, "N11 have"), (13, "N11 and 1 more have")])
def test_no_more_operators_are_named_than_a_person_reads(count: int, said: str) -> None:
    text = without_kernels([f"N{number}" for number in range(count)])
    assert text.endswith(f"{said} no kernel yet") and text.count(",") == min(count, 12) - 1


def _tasks(name: str, place: str) -> Tasks:
    return tasks_of(ir.from_proto(graph(name)), device(place), named("x86-64-v3"), "g")


@pytest.mark.parametrize("place", ["cpu:2", "v100"])
def test_tasks(place: str) -> None:
    lines = []
    for name in ("dense block", "branches of products", "joined uneven", "heads"):
        found = _tasks(name, place)
        lines += [name, f"  sizes {dict(found.sizes)}", f"  kept {sorted(found.kept)}"]
        for region in found.graph.regions:
            lines.append(f"  {region.name} reads {found.reads[region.name]} writes {found.writes[region.name]}")
            lines += [f"    {kernel}" for kernel in region.kernels[:1]]
        lines += [f"  {need.source} -> {need.target}{' reuse' if need.reuse else ''}" for need in found.graph.needs]
    assert_recorded(f"tasks.{place.replace(':', '')}", lines)


def test_schedules_with_memory() -> None:
    place = device("cpu:2")
    lines = []
    for name in ("dense block", "branches of products", "two regions apart"):
        lines.append(name)
        for way in plan_together(_tasks(name, "cpu:2"), place, work=200_000):
            lines.append(
                f"  {way.way}: {way.scheduled.makespan:.1f} ns, {way.packing.arena_size} bytes, {way.added_waits} waits"
            )
            lines.append(f"    {dict(sorted(way.packing.offsets.items()))}")
    assert_recorded("plans", lines)
