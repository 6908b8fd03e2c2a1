"""From regions to a listing: lifetimes, places, weights stored once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from graphopt.program.listing import link
from graphopt.program.regions.lower import lower
from kernels.target import host
from tests import support


def test_a_chain_of_layers() -> None:
    weight = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    proto = support.model(
        """g (float[4,16] x) => (float[4,16] y) {
            a = MatMul(x, w) b = MatMul(a, v) c = MatMul(b, w) y = MatMul(c, v)
        }""",
        18, w=weight, v=weight.copy(),
    )  # fmt: skip
    linked = link(lower(ir.from_proto(proto), host()), "chain")
    listing = linked.listing
    assert len(listing.runs) == 4 and len(listing.kernels) == 1, "four equal products share a kernel"
    assert listing.weights_bytes == weight.nbytes, "equal weights are stored once"
    assert linked.plan.arena_size == linked.plan.lower_bound == 2 * 4 * 16 * 4, "two of three temporaries at a time"
    spaces = [[place.space for place in run.operands] for run in listing.runs]
    assert spaces[0] == ["input", "weights", "arena"] and spaces[-1] == ["arena", "weights", "output"]
    assert linked.weights[: weight.nbytes].size == weight.nbytes


def test_the_same_graph_gives_the_same_listing() -> None:
    proto = support.model(
        "g (float[4,8] x) => (float[4,8] y) { a = Softmax(x) b = Transpose(a) c = Exp(b) y = Transpose(c) }"
    )
    first, second = (link(lower(ir.from_proto(proto), host()), "g") for _ in range(2))
    assert first.listing.runs == second.listing.runs
    assert [k.module.text() for k in first.listing.kernels] == [k.module.text() for k in second.listing.kernels]
