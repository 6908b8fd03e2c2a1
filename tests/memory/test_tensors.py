"""A model as memory sees it: sizes, views, results in place, slices, constants."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import graphopt
import models
from graphopt.errors import OptionError
from graphopt.memory.measured import use_in_onnxruntime
from graphopt.memory.plan import given
from graphopt.memory.tensors import ModelMemory, Sharing, Tensor, model_memory
from graphopt.model.load import load
from graphopt.model.origin import Provenance
from memplan.bounds import live_peak
from memplan.graph import Share
from memplan.lifetimes import memory_problem
from tests import support


def read(text: str, **weights: np.ndarray) -> ModelMemory:
    return model_memory(load(support.model(text, **weights)))


def sizes(memory: ModelMemory) -> dict[str, tuple[int, str]]:
    return {value.name: (value.size, value.kind) for value in memory.graph.values}


def test_inputs_and_weights_are_the_callers_and_the_rest_is_ours() -> None:
    memory = read(
        "g (float[2,4] x) => (float[2,3] y) { a = MatMul(x, w) b = Relu(a) y = Add(b, b) }",
        w=np.ones((4, 3), np.float32),
    )
    assert sizes(memory) == {
        "x": (32, "constant"), "w": (48, "constant"), "a": (24, "temporary"), "b": (24, "temporary"),
        "y": (24, "output"),
    }  # fmt: skip
    assert (memory.weights_bytes, memory.input_bytes) == (48, 32)
    assert [operator.inputs for operator in memory.graph.operators] == [("x", "w"), ("a",), ("b",)]
    assert memory.tensors["b"].shape == (2, 3) and memory.tensors["b"].dtype == "float32"


def test_what_is_computed_from_weights_alone_is_a_weight() -> None:
    memory = read("g (float[4] x) => (float[4] y) { t = Exp(w) u = Neg(t) y = Add(x, u) }", w=np.ones(4, np.float32))
    assert [operator.outputs for operator in memory.graph.operators] == [("y",)]
    assert sizes(memory)["u"] == (16, "constant") and memory.weights_bytes == 2 * 16  # w and u; t is gone by then


def test_copies_of_a_weight_have_no_bytes_of_their_own() -> None:
    """As exporters write layers that share weights."""
    memory = read(
        """g (float[2,4] x) => (float[2,4] y) {
            dims = Constant<value_ints=[4, 4]>() v = Identity(w) u = Reshape(v, dims)
            a = MatMul(x, w) b = MatMul(a, v) y = MatMul(b, u)
        }""",
        w=np.eye(4, dtype=np.float32),
    )
    assert memory.weights_bytes == 64 and {"w", "v", "u"} <= memory.weights


def test_what_is_computed_from_weights_that_a_caller_may_give_is_computed_in_a_run() -> None:
    proto = support.model("g (float[4] x) => (float[4] y) { t = Exp(w) y = Add(x, t) }", w=np.ones(4, np.float32))
    proto.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4]))
    memory = model_memory(load(proto))
    assert [operator.outputs for operator in memory.graph.operators] == [("t",), ("y",)]
    assert sizes(memory)["t"] == (16, "temporary") and memory.weights_bytes == 16 and "w" in memory.weights


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("g (float[256,1024] x) => (float[256,1024] y) { z = Sub(x, x) c = Greater(x, z) y = Where(c, x, z) }",
         2 << 20),
        ("g (float[2,8,64,64] x, float[8,4,3,3] w) => (float[2,4,66,66] y) { y = ConvTranspose(x, w) }",
         4 * 9 * 64 * 64 * 4),
    ],
)  # fmt: skip
def test_large_scratch_of_onnx_runtimes_kernels_counts_in_plans_for_it(text: str, taken: int) -> None:
    model = load(support.model(text, 18))
    for sharing in (False, "in place"):
        assert model_memory(model, sharing=sharing).graph.operators[-1].workspace == taken
    for sharing in (True, "strided"):
        assert model_memory(model, sharing=sharing).graph.operators[-1].workspace == 0
    uses = use_in_onnxruntime((model,), contract=True, rounds=0)
    if uses is not None:
        planned = given(model_memory(model, sharing=False)).packing.arena_size
        assert planned <= uses[0].tensors <= 1.02 * planned + (64 << 10)


def test_views_results_in_place_and_slices_are_offered() -> None:
    memory = read(
        """g (float[1,2,6] x) => (float[1,4,6] y, float[1,24] z) {
            a = Exp(x) b = Exp(a) c = Relu(b)
            y = Concat<axis = 1>(a, c)
            s = Constant<value = int64[2] {1, 24}>()
            z = Reshape(y, s)
        }"""
    )
    assert set(memory.graph.shares) == {
        Share("a", "x", overwrites=True), Share("b", "a", overwrites=True), Share("c", "b", overwrites=True),
        Share("a", "y", 0), Share("c", "y", 48), Share("z", "y"),
    }  # fmt: skip


def test_parts_that_do_not_lie_in_one_piece_are_not_offered() -> None:
    joined = "g (float[2,3] x) => (float[2,6] y) { a = Exp(x) b = Exp(a) y = Concat<axis = 1>(a, b) }"
    assert not [share for share in read(joined).graph.shares if share.of == "y"]


def test_in_a_program_parts_lie_along_any_axis_and_outputs_elsewhere() -> None:
    text = "g (float[2,8] x) => (float[2,8] y) { a, b = Split<axis = 1, num_outputs = 2>(x) c = Neg(a) d = Exp(b) "
    text += "e = Concat<axis = 1>(c, d) y = Softmax(e) }"
    graph = model_memory(load(support.model(text, 18)), sharing="strided").graph
    assert {(one.value, one.of, one.at) for one in graph.shares if one.of == "e"} == {("c", "e", 0), ("d", "e", 32)}
    assert next(one.size for one in graph.values if one.name == "y") == 0


def test_in_a_program_other_strides_are_views_but_for_images() -> None:
    text = """g (float[1,8] x) => (float[8,8] y) {
        a = Exp(x) b = Expand(a, dims) c = Transpose(b) d = Slice(c, low, high) y = Softmax(d)
    }"""
    arrays = {"dims": np.array([8, 8]), "low": np.array([0]), "high": np.array([4])}
    model = load(support.model(text.replace("float[8,8] y", "float[4,8] y"), **arrays))
    graph = model_memory(model, sharing="strided", strides=True).graph
    assert {(one.value, one.of) for one in graph.shares if not one.overwrites} == {("b", "a"), ("c", "b"), ("d", "c")}
    assert next(one.size for one in graph.values if one.name == "b") == 32, "as many bytes as it reads"
    images = """g (float[1,4,4,4] x) => (float[1,4,4,4] y) {
        a = MaxPool<kernel_shape = [1, 1]>(x) b = Transpose<perm = [0, 1, 3, 2]>(a) y = Softmax(b)
    }"""
    shares = model_memory(load(support.model(images)), sharing="strided", strides=True).graph.shares
    assert not [one for one in shares if one.value == "b"]


@pytest.mark.parametrize(
    ("kernel", "inside"),
    [("MaxPool<kernel_shape = [1, 1]>(w)", ["a", "c"]), ("Softmax(w)", ["a", "b", "c"])],  # of images, of others
)
def test_no_part_of_images_begins_within_a_block_of_channels(kernel: str, inside: list[str]) -> None:
    """Parts of 8, 8, 12 and 12 channels: the last one begins at channel 28, blocks have 8."""
    text = f"""g (float[1,8,3,3] x, float[1,12,3,3] y) => (float[1,40,3,3] z) {{
        a = Exp(x) b = Exp(y) c = Neg(x) w = Concat<axis = 1>(a, c, y, b) z = {kernel}
    }}"""
    memory = model_memory(load(support.model(text)), sharing="strided", vector=8)
    assert sorted(one.value for one in memory.graph.shares if one.of == "w" and one.value != "y") == inside


def test_a_subgraphs_tensors_are_its_nodes_workspace() -> None:
    memory = read(
        """g (bool c, float[8] x) => (float[8] y) {
            y = If (c) <
                then_branch = then () => (float[8] t) { p = Exp(x) q = Exp(p) t = Add(p, q) },
                else_branch = other () => (float[8] e) { e = Neg(x) }
            >
        }"""
    )
    (operator,) = memory.graph.operators
    assert operator.workspace == 3 * 32 + 32 and operator.inputs == ("c", "x")


def test_a_dim_without_a_value_is_named() -> None:
    with pytest.raises(OptionError, match=r"the size of 'x' depends on the dim 'N': give 'N' a value, dims=\{'N': 1\}"):
        read("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")


def test_sizes_that_only_a_run_tells_are_seen_in_one_and_said_to_be() -> None:
    memory = read("g (float[6] x) => (int64[1,K] y) { y = NonZero(x) }")
    assert sizes(memory)["y"][0] % 8 == 0
    assert memory.notes == ("the sizes of 1 tensors were seen in a run, inference cannot tell them",)


@pytest.mark.parametrize(
    ("name", "apart", "in_place"),
    [("resnet50", 9.19, 6.89), ("mobilenet_v2", 9.19, 5.74), ("vit_s16_legacy", 3.75, 2.6), ("bert_base", 4.94, 3.44)],
)
def test_live_peaks_are_those_that_others_counted(name: str, apart: float, in_place: float) -> None:
    # Counted by hand-written liveness over ONNX Runtime's shapes: views free, then results in place as well (MiB).
    memory = model_memory(load(models.load(name)))
    held = ("temporary", "output")
    counted = live_peak(memory_problem(memory.graph, kinds=held, in_place=False, slices=False)) / 2**20
    assert counted == pytest.approx(apart, abs=0.01)
    assert live_peak(memory_problem(memory.graph, kinds=held, slices=False)) / 2**20 == pytest.approx(
        in_place, abs=0.01
    )


def test_the_model_is_left_as_it_is() -> None:
    proto = support.model("g (float[4] x) => (float[4] y) { a = Exp(x) y = Relu(a) }")
    model = load(proto)
    model_memory(model)
    assert ir.to_proto(model).graph.SerializeToString() == ir.to_proto(load(proto)).graph.SerializeToString()


def told(text: str, sharing: bool = True, **weights: np.ndarray) -> list[str]:
    """A line for each operator: what it reads and makes, its nanoseconds and workspace; then the shares."""
    memory = model_memory(load(support.model(text, **weights)), sharing=sharing)
    lines = [
        f"{one.name}: {' '.join(one.inputs)} -> {' '.join(one.outputs)}, {one.time:g} ns"
        + (f", {one.workspace} bytes" if one.workspace else "")
        + ("" if one.recomputable else ", once")
        for one in memory.graph.operators
    ]
    shares = [f"{one.value} in {one.of} at {one.at}{'!' if one.overwrites else ''}" for one in memory.graph.shares]
    return [*lines, *shares]


# Each value counts once and results only where they are read, 20 bytes to the nanosecond. The product of 192 flops
# takes 1.92 ns, and its 272 bytes 13.6.
TOLD: list[tuple[str, dict[str, np.ndarray], list[str]]] = [
    (
        "g (float[4,8] x) => (float[4,3] y) "
        "{ p = MatMul(x, w) q, r = Split<axis = 0>(p, n) y = Concat<axis = 0>(r, q) }",
        {"w": np.ones((8, 3), np.float32), "n": np.array([1, 3])},
        [
            "MatMul:p: x w -> p, 13.6 ns", "Split:q: p n -> q r, 5.6 ns", "Concat:y: r q -> y, 4.8 ns",
            "q in p at 0", "r in p at 12", "r in y at 0", "q in y at 36",
        ],
    ),
    (  # a part that nobody reads takes no part; the next one lies behind its bytes all the same
        "g (float[4,3] x) => (float[3,3] y) { p = Sin(x) q, r = Split<axis = 0>(p, n) y = Cos(r) }",
        {"n": np.array([1, 3])},
        ["Sin:p: x -> p, 4.8 ns", "Split:q: p n -> r, 5 ns", "Cos:y: r -> y, 3.6 ns",
         "p in x at 0!", "r in p at 12", "y in r at 0!"],
    ),
    (  # a value that is joined twice cannot lie in both places
        "g (float[4,8] x) => (float[12,8] y) { p = Exp(x) n = Neg(x) y = Concat<axis = 0>(p, n, p) }", {},
        ["Exp:p: x -> p, 12.8 ns", "Neg:n: x -> n, 12.8 ns", "Concat:y: p n -> y, 32 ns",
         "p in x at 0!", "n in x at 0!", "n in y at 128"],
    ),
    (  # only an operand of the result's size is overwritten
        "g (float[4,8] x, float[8] b) => (float[4,8] y) { y = Add(x, b) }", {},
        ["Add:y: x b -> y, 14.4 ns", "y in x at 0!"],
    ),
    (  # rows of one: an axis counted from behind, before which every dim is 1
        "g (float[1,2,6] x) => (float[1,4,6] y) { a = Exp(x) b = Sin(x) y = Concat<axis = -2>(a, b) }", {},
        ["Exp:a: x -> a, 4.8 ns", "Sin:b: x -> b, 4.8 ns", "Concat:y: a b -> y, 9.6 ns",
         "a in x at 0!", "b in x at 0!", "a in y at 0", "b in y at 48"],
    ),
    (
        "g (float[6] x) => (float[4] y) { y = RandomNormal<shape = [4]>() }", {},
        ["RandomNormal:y:  -> y, 0.8 ns, once"],
    ),
    (  # what nobody reads is made all the same: one result of each node
        "g (float[4,8] x) => (float[4,8] y) { v, i = TopK(x, k) y = Neg(x) }", {"k": np.array([2])},
        ["TopK:v: x k -> v, 6.8 ns", "Neg:y: x -> y, 12.8 ns", "y in x at 0!"],
    ),
    (  # k2 takes a byte; p, then q in turn, r and t: at most three of 32 bytes live in the body
        """g (int64 n, bool c, float[8] x) => (float[8] y) { y = Loop (n, c, x) <body = b (int64 i, bool k, float[8] s)
            => (bool k2, float[8] t) { k2 = Identity(k) p = Exp(s) q = Exp(p) r = Neg(q) t = Add(p, r) }> }""", {},
        ["Loop:y: n c x -> y, 3.65 ns, 97 bytes"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "weights", "expected"), TOLD)
def test_operators_and_what_they_offer_in_full(text: str, weights: dict[str, np.ndarray], expected: list[str]) -> None:
    assert told(text, **weights) == expected


def test_without_sharing_only_views_lie_in_others() -> None:
    text = """g (float[1,2,6] x) => (float[1,24] z) {
        a = Exp(x) b = Sin(a) y = Concat<axis = 1>(a, b) z = Reshape(y, s)
    }"""
    shares = {sharing: told(text, sharing, s=np.array([1, 24]))[4:] for sharing in (True, False)}
    assert shares == {
        True: ["a in x at 0!", "b in a at 0!", "a in y at 0", "b in y at 48", "z in y at 0"],
        False: ["z in y at 0"],
    }


def test_a_planner_that_counts_bytes_itself_gets_the_time_of_flops_alone() -> None:
    model = load(
        support.model("g (float[4,8] x) => (float[4,3] y) { y = MatMul(x, w) }", w=np.ones((8, 3), np.float32))
    )
    (operator,) = model_memory(model, peak_flops=1e12, bandwidth=None).graph.operators
    assert operator.time == pytest.approx(2 * 4 * 8 * 3 / 1e12 * 1e9)
    (slower,) = model_memory(model, peak_flops=1e9).graph.operators
    assert slower.time == pytest.approx(2 * 4 * 8 * 3)


def test_what_a_report_says_of_tensors() -> None:
    memory = read(
        "g (float[4,8] x, float[4] unused) => (float[4,3] y) { p = MatMul(x, w) q = Exp(p) y = Add(p, q) }",
        w=np.ones((8, 3), np.float32),
    )
    none = Provenance("", "")
    assert memory.tensors["x"] == Tensor("float32", (4, 8), "", ("MatMul:p",), none)
    assert memory.tensors["p"] == Tensor("float32", (4, 3), "MatMul:p (MatMul)", ("Exp:q", "Add:y"), none)
    assert memory.tensors["unused"] == Tensor("float32", (4,), "", (), none) and sizes(memory)["unused"] == (
        16,
        "constant",
    )
    assert memory.weights_bytes == 96 and memory.input_bytes == 128 + 16


def test_sizes_seen_in_a_run_count_like_those_that_are_known() -> None:
    memory = read(
        """g (float[6] x) => (float[6] y) {
            n = NonZero(x) f = Cast<to = 1>(n) t = Transpose(f) s = ReduceSum<keepdims = 0>(t) y = Add(x, s)
        }"""
    )
    assert [memory.tensors[name].dtype for name in "nft"] == ["int64", "float32", "float32"]
    assert memory.tensors["n"].shape == (1, 6) and memory.tensors["t"].shape == (6, 1)
    assert [sizes(memory)[name][0] for name in "nfts"] == [48, 24, 24, 4]


def test_what_cannot_be_run_has_no_sizes() -> None:
    """Row 9 of a table of four: ONNX Runtime stops there, and only a run would tell how much is not zero."""
    text = (
        "g (float[4] x) => (int64[1,K] y) <int64 nine = {9}> { a = Gather(x, nine) b = Unsqueeze(a, i) y = NonZero(b) }"
    )
    with pytest.raises(OptionError, match=r"the size of 'y' \(made by .*NonZero.*\) is known only when the model runs"):
        read(text, i=np.array([0]))


def test_tensors_larger_than_any_machine_are_refused() -> None:
    with pytest.raises(OptionError, match="takes 4,611,686,018,427,387,904 bytes, more than any machine has"):
        read(f"g (float[{1 << 30},{1 << 30}] x) => (float[{1 << 30},{1 << 30}] y) {{ y = Exp(x) }}")


def test_texts_count_no_bytes() -> None:
    memory = read("g (string[4] x, float[2] z) => (string[4] y, float[2] w) { y = Identity(x) w = Exp(z) }")
    assert sizes(memory) == {"x": (0, "constant"), "z": (8, "constant"), "y": (0, "output"), "w": (8, "output")}
    assert memory.notes == tuple(f"'{name}' is no tensor of numbers; it counts 0 bytes" for name in "xy")


def test_what_only_a_run_tells_inside_a_subgraph_counts_as_one_element() -> None:
    memory = read(
        """g (bool c, float[8] x) => (float[8] y) {
            y = If (c) <
                then_branch = then () => (float[8] t) {
                    p = Exp(x) n = NonZero(p) f = Cast<to = 1>(n) m = ReduceSum<keepdims = 0>(f) t = Add(p, m)
                },
                else_branch = other () => (float[8] e) { e = Neg(x) }
            >
        }"""
    )
    (operator,) = memory.graph.operators
    assert operator.workspace == 32 + 32 + 4 + 32, "p, m and t in one branch; e in the other"
    assert memory.notes == ("tensors inside If, Loop and Scan whose size only a run can tell count as one element",)


def test_results_in_place_may_be_counted_on_without_slices() -> None:
    """ONNX Runtime writes a Relu over its operand and copies what it joins."""
    text = "g (float[1,4] x) => (float[1,8] y) { a = Sin(x) b = Relu(a) c = Sin(b) y = Concat<axis = 1>(b, c) }"
    model = load(support.model(text))

    def shared(sharing: Sharing) -> set[tuple[str, str]]:
        return {(share.value, share.of) for share in model_memory(model, sharing=sharing).graph.shares}

    assert shared("in place") == {("a", "x"), ("b", "a"), ("c", "b")} and not shared(False)
    assert shared(True) - shared("in place") == {("b", "y"), ("c", "y")}


def test_sizes_seen_in_a_run_say_what_may_lie_in_what() -> None:
    """n has 12 places of 8 bytes, c one of them: their sum takes the place of n."""
    text = """g (float[6] x) => (int64[1,K] y, int64[2,L] z) <bool[1] k = {1}, int64[1] first = {0}> {
        n = NonZero(x) c = Compress<axis = 1>(n, k) y = Add(n, c) m = NonZero(x) z = Concat<axis = 0>(n, m)
    }"""
    assert told(text)[5:] == ["y in n at 0!", "n in z at 0", "m in z at 48"]


def test_an_operator_of_another_domain_takes_no_time_that_anybody_knows() -> None:
    model = load(onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[4] x) => (float[4] y) { a = com.microsoft.Gelu(x) y = Neg(a) }"""
    ))  # fmt: skip
    assert [one.time for one in model_memory(model).graph.operators] == [0, pytest.approx(1.6)]


@pytest.mark.parametrize(
    ("dim", "reason"),
    [
        ("N", r"the size of 'x' depends on the dim 'N': give 'N' a value, dims=\{'N': 1\} for example"),
        ("", "the size of 'x' is known only when the model runs, and it cannot be run"),
    ],
)
def test_a_dim_that_only_the_caller_knows_is_asked_for(dim: str, reason: str) -> None:
    proto = support.model("g (float[N,4] x) => (float[N,4] y) { y = Relu(x) }")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].Clear()
        if dim:
            value.type.tensor_type.shape.dim[0].dim_param = dim
    with pytest.raises(OptionError, match=reason):
        model_memory(load(proto))


def test_what_a_training_step_carries_lies_where_the_caller_keeps_it() -> None:
    """Weights of 64 KiB are changed; the step's own values are a few numbers beside them."""
    text = "g (float[2,128] x) => (float[2,128] y) <float[128,128] w> { y = MatMul(x, w) }"
    proto = support.model(text, 17, w=np.ones((128, 128), np.float32))
    step = graphopt.train_step(proto, loss="mse")
    memory = model_memory(load(step.to_proto()))
    values = {value.name: value for value in memory.graph.values}
    assert values["w_new"].kind == "output" and values["w_new"].size == 0
    assert not any("w_new" in (share.value, share.of) for share in memory.graph.shares)
    assert memory.notes == ("weights and state that a step gives count as the caller's memory",)
    assert given(memory).packing.arena_size < 3 * 64 << 10
    uses = use_in_onnxruntime((load(step.to_proto()),), contract=True, rounds=0)
    if uses is not None:
        assert 64 << 10 <= uses[0].heap < 3 * 64 << 10, "the gradient alone"
