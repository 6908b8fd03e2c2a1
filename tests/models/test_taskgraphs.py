"""Networks with branches as task graphs: what is in them, and what blocks need of each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from models.taskgraphs import GRAPHS, Net, Value, concatenated, read_operators, read_wiring
from scheduler.device import device
from scheduler.errors import InvalidTaskGraph
from scheduler.tasks import needed_blocks

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


def test_a_convolution_waits_for_the_rows_near_its_own() -> None:
    net = Net("rows", V100)
    a = net.conv("a", [Value((16, 112, 112))], 64, (3, 3))
    net.conv("b", [a], 64, (3, 3))
    (need,) = net.graph().needs
    assert need.pattern == "near"
    positions = 112 * 112
    for source in net.graph().regions[0].kernels:
        for target in net.graph().regions[1].kernels:
            for block in range(target.blocks):
                # A block's outputs lie in tiles of at most 128 positions that begin in the block's share of the map.
                begin = block * positions // target.blocks - 128 - 112 - 1
                end = -(-(block + 1) * positions // target.blocks) + 128 + 112 + 1
                wanted = [
                    one
                    for one in range(source.blocks)
                    if (one + 1) * positions / source.blocks > max(0, begin) and one * positions / source.blocks < end
                ]
                some = needed_blocks(need, source.blocks, target.blocks, block)
                assert some.start <= wanted[0]
                assert wanted[-1] < some.stop


def test_small_maps_and_concatenations_need_all() -> None:
    net = Net("small", V100)
    x = Value((64, 8, 8))
    net.conv("c", [concatenated([net.conv("a", [x], 64), net.conv("b", [x], 64)])], 64, (3, 3))
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
