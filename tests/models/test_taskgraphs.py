"""Networks with branches as task graphs: what is in them, and what blocks need of each other."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from models.regions import Net, Value, concatenated
from models.taskgraphs import GRAPHS, read_operators, read_wiring
from scheduler.device import device
from scheduler.errors import InvalidTaskGraph
from scheduler.tasks import Kernel, needed_blocks

V100 = device("v100")


@pytest.mark.parametrize(("name", "regions"), [("inception_v3", 109), ("nasnet_like", 487), ("randwire", 200)])
def test_networks_are_built(name: str, regions: int) -> None:
    graph = GRAPHS[name](V100)
    graph.check()
    assert len(graph.regions) == regions
    read = {need.source for need in graph.needs}
    assert [region.name for region in graph.regions if region.name not in read] == ["classes"]


def test_regions_of_one_shape_share_kernels_and_key() -> None:
    net = Net("two", V100)
    x = Value((64, 28, 28))
    net.conv("a", [x], 64, (3, 3))
    net.conv("b", [x], 64, (3, 3))
    net.conv("c", [x], 32, (3, 3))
    a, b, c = net.graph().regions
    assert a.kernels == b.kernels
    assert a.batch == b.batch != c.batch


def positions_of(kernel: Kernel, positions: int, channels: int) -> list[set[int]]:
    """By block the positions whose outputs it makes: tile after tile, those of the same positions beside each other."""
    sides = re.fullmatch(r"tile(\d+)x(\d+)(?:s\d)?", kernel.name)
    if sides is None:
        every = positions * channels
        return [
            set(range(block * every // kernel.blocks // channels,
                      -(-(block + 1) * every // kernel.blocks // channels)))
            for block in range(kernel.blocks)
        ]  # fmt: skip
    rows, columns = int(sides[1]), int(sides[2])
    tiles = [
        set(range(begin, min(begin + rows, positions)))
        for begin in range(0, positions, rows) for _ in range(0, channels, columns)
    ]  # fmt: skip
    together = -(-len(tiles) // kernel.blocks)
    return [set().union(*tiles[at : at + together]) for at in range(0, len(tiles), together)]


@pytest.mark.parametrize("side", [112, 57, 40])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_window_waits_for_all_blocks_that_write_what_it_reads(side: int, pooled: bool) -> None:
    net = Net("rows", V100)
    a = net.conv("a", [Value((16, side, side))], 96, (3, 3))
    if pooled:
        net.pool("b", [a], (3, 3), (1, 1))
    else:
        net.conv("b", [a], 96, (3, 3))
    (need,) = net.graph().needs
    assert need.pattern == "near"
    for source in net.graph().regions[0].kernels:
        written = positions_of(source, side * side, 96)
        for target in net.graph().regions[1].kernels:
            for block, made in enumerate(positions_of(target, side * side, 96)):
                window = {one + side * down + right for one in made for down in (-1, 0, 1) for right in (-1, 0, 1)}
                wanted = {number for number, some in enumerate(written) if some & window}
                assert wanted <= set(needed_blocks(need, source.blocks, target.blocks, block))


def test_a_pointwise_convolution_waits_for_less_than_a_window() -> None:
    halos = []
    for kernel in ((1, 1), (3, 3), (7, 7)):
        net = Net("rows", V100)
        net.conv("b", [net.conv("a", [Value((64, 64, 64))], 64)], 64, kernel)
        halos.append(net.graph().needs[0].halo)
    assert halos[0] < 1 / 8
    assert halos[1] - halos[0] <= 2 / 64
    assert halos == sorted(halos)


def test_small_maps_and_concatenations_need_all() -> None:
    net = Net("small", V100)
    x = Value((64, 8, 8))
    net.conv("c", [concatenated([net.conv("a", [x], 256), net.conv("b", [x], 256)])], 256, (3, 3))
    assert [(need.source, need.target, need.pattern) for need in net.graph().needs] == [
        ("a", "c", "all"), ("b", "c", "all"),
    ]  # fmt: skip


def test_a_file_of_operators_is_read(tmp_path: Path) -> None:
    conv = {"type": "conv", "kernel": [3, 3], "stride": [1, 1], "padding": [1, 1], "groups": 1, "act": "relu"}
    nodes = [
        {**conv, "name": "1", "inputs": [[["0", 0, 3]]], "out_channels": 8, "output_shape": [8, 32, 32]},
        {**conv, "name": "2", "inputs": [[["1", 0, 4]]], "out_channels": 8, "output_shape": [8, 32, 32]},
    ]
    last = {"type": "identity", "name": "3", "inputs": [[["1", 0, 8]], [["2", 0, 8]]], "output_shape": [16, 32, 32]}
    start = {"type": "placeholder", "name": "0", "output_shape": [3, 32, 32]}
    block = {"inner_nodes": nodes, "exit_node": last}
    pool = {"type": "pool", "name": "4", "inputs": [[["3", 0, 16]]], "kernel": [32, 32], "stride": [1, 1],
            "output_shape": [16, 1, 1]}  # fmt: skip
    file = tmp_path / "net.json"
    file.write_text(
        json.dumps({"name": "net", "input": start, "blocks": [block, {"inner_nodes": [], "exit_node": pool}]})
    )
    graph = read_operators(file, V100)
    assert [region.name for region in graph.regions] == ["1", "2", "4"]
    assert [(need.source, need.target) for need in graph.needs] == [("1", "2"), ("1", "4"), ("2", "4")]


def test_what_is_no_network_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "net.json"
    file.write_text("{}")
    with pytest.raises(InvalidTaskGraph, match=r"'net\.json' is no network of blocks with nodes"):
        read_operators(file, V100)
    with pytest.raises(InvalidTaskGraph, match="cannot be read: No such file"):
        read_operators(tmp_path / "none.json", V100)


def test_a_wiring_is_read(tmp_path: Path) -> None:
    file = tmp_path / "ws.txt"
    file.write_text("4\n3\n0 1\n0 2\n1 3\n")
    assert sorted(read_wiring(file).edges) == [(0, 1), (0, 2), (1, 3)]
    file.write_text("four\n")
    with pytest.raises(InvalidTaskGraph, match=r"'ws\.txt' is no wiring of nodes and edges"):
        read_wiring(file)
