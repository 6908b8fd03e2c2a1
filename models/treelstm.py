"""A binary tree-LSTM as a model, its cells unrolled: what each level computes side by side lies apart in the graph.

Tai, Socher, Manning, "Improved semantic representations from tree-structured long short-term memory networks", 2015,
equations 9 to 14 for two children; leaves have an input, inner nodes have none.
"""

from __future__ import annotations

import onnx

from models.families.network import Network

WIDTH, LEAVES, CLASSES = 256, 32, 5


def build(seed: int = 0, leaves: int = LEAVES, width: int = WIDTH) -> onnx.ModelProto:
    """The network for a tree whose leaves are paired until one node is left; its state is classified."""
    net = Network("treelstm", seed)
    x = net.input("x", [leaves, width])
    words = [net.op("Gather", x, net.ints(leaf), axis=0) for leaf in range(leaves)]
    shared = net.normal((width, 3 * width), width**-0.5)
    nodes = [_leaf(net, net.op("MatMul", word, shared)) for word in words]
    weights, bias = net.normal((2 * width, 5 * width), (2 * width) ** -0.5), net.normal((5 * width,), 0.1)
    while len(nodes) > 1:
        pairs = zip(nodes[::2], nodes[1::2], strict=True)
        nodes = [_inner(net, left, right, weights, bias) for left, right in pairs]
    return net.model(classes=(net.gemm(nodes[0][0], width, CLASSES), [1, CLASSES]))


def _leaf(net: Network, gates: str) -> tuple[str, str]:
    """A leaf's h and c."""
    put, out, candidate = net.ops("Split", gates, outputs=3, axis=1)
    cell = net.op("Mul", net.op("Sigmoid", put), net.op("Tanh", candidate))
    return net.op("Mul", net.op("Sigmoid", out), net.op("Tanh", cell)), cell


def _inner(net: Network, left: tuple[str, str], right: tuple[str, str], weights: str, bias: str) -> tuple[str, str]:
    """The h and c of a node with two children; each child has a forget gate of its own."""
    both = net.op("Concat", left[0], right[0], axis=1)
    gates = net.op("Add", net.op("MatMul", both, weights), bias)
    put, first, second, out, candidate = net.ops("Split", gates, outputs=5, axis=1)
    cell = net.op("Mul", net.op("Sigmoid", put), net.op("Tanh", candidate))
    for gate, child in ((first, left), (second, right)):
        cell = net.op("Add", cell, net.op("Mul", net.op("Sigmoid", gate), child[1]))
    return net.op("Mul", net.op("Sigmoid", out), net.op("Tanh", cell)), cell
