"""Lifting: a model of each operator at an old opset says the same at every newer one."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

import graphopt
from graphopt.errors import OptionError
from graphopt.passes.versions.lift import NEWEST
from tests import support

ONE = "float[2, 3, 4, 6] x"
FOUR = "float[n, 3, 4, 6]"


def lifted(proto: onnx.ModelProto, opset: int, **dims: int) -> onnx.ModelProto:
    """The model at the opset, otherwise left alone; it gives the same, bit for bit unless a sum is done anew."""
    result = graphopt.optimize(proto, opset=opset, level=0)
    assert not result.rolled_back, result.rolled_back
    found = result.to_proto()
    assert {entry.domain: entry.version for entry in found.opset_import}[""] == opset
    onnx.checker.check_model(found, full_check=True)
    support.assert_equal(proto, found, rtol=1e-6, **dims)
    return found


def attributes(proto: onnx.ModelProto, op_type: str) -> dict[str, object]:
    """The attributes of the first node of the type."""
    node = next(node for node in proto.graph.node if node.op_type == op_type)
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


OLD = {
    "unsqueeze": (11, f"g ({ONE}) => (float[2, 1, 3, 4, 6, 1] y) {{ y = Unsqueeze <axes = [1, 5]> (x) }}"),
    "squeeze": (11, "g (float[1, 3, 1, 2] x) => (float[3, 2] y) { y = Squeeze <axes = [0, 2]> (x) }"),
    "squeeze of every 1": (11, "g (float[1, 3, 1, 2] x) => (float[3, 2] y) { y = Squeeze (x) }"),
    "split": (11, f"g ({ONE}) => (float[2, 1, 4, 6] y, float[2, 2, 4, 6] z) "
              "{ y, z = Split <axis = 1, split = [1, 2]> (x) }"),
    "equal split": (13, f"g ({ONE}) => (float[2, 3, 4, 3] y, float[2, 3, 4, 3] z) {{ y, z = Split <axis = 3> (x) }}"),
    "slice": (9, f"g ({ONE}) => (float[2, 2, 4, 3] y) "
              "{ y = Slice <axes = [1, 3], starts = [1, -4], ends = [9, -1]> (x) }"),
    "slice of the first axes": (7, f"g ({ONE}) => (float[1, 3, 4, 6] y) "
                                "{ y = Slice <starts = [1], ends = [2]> (x) }"),
    "top": (9, f"g ({ONE}) => (float[2, 3, 4, 2] y, int64[2, 3, 4, 2] i) {{ y, i = TopK <k = 2> (x) }}"),
    "clip": (7, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = Clip <min = -0.5, max = 0.25> (x) }}"),
    "clip from above": (10, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = Clip <max = 0.25> (x) }}"),
    "pad": (10, f"g ({ONE}) => (float[2, 3, 6, 6] y) "
            "{ y = Pad <pads = [0, 0, 1, 0, 0, 0, 1, 0], value = 2.5> (x) }"),
    "reflecting pad": (7, f"g ({ONE}) => (float[2, 3, 6, 6] y) "
                       '{ y = Pad <pads = [0, 0, 1, 0, 0, 0, 1, 0], mode = "reflect"> (x) }'),
    "dropout": (9, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = Dropout <ratio = 0.4> (x) }}"),
    "upsample": (7, f"g ({ONE}) => (float[2, 3, 8, 18] y) {{ y = Upsample <scales = [1.0, 1.0, 2.0, 3.0]> (x) }}"),
    "linear upsample": (8, f"g ({ONE}) => (float[2, 3, 8, 12] y) "
                        '{ y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]> (x) }'),
    "softmax over the last axis": (11, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = Softmax <axis = 3> (x) }}"),
    "softmax over all but the first": (11, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = Softmax (x) }}"),
    "softmax of any batch": (9, f"g ({FOUR} x) => ({FOUR} y) {{ y = Softmax <axis = 2> (x) }}"),
    "softmax over axes of 1": (11, "g (float[2, 5, 1, 1] x) => (float[2, 5, 1, 1] y) { y = Softmax <axis = 1> (x) }"),
    "log softmax": (7, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = LogSoftmax <axis = 2> (x) }}"),
    "sum": (11, f"g ({ONE}) => (float[2, 3, 4] y) {{ y = ReduceSum <axes = [-1], keepdims = 0> (x) }}"),
    "mean": (13, f"g ({ONE}) => (float[2, 3, 1, 1] y) {{ y = ReduceMean <axes = [2, 3]> (x) }}"),
    "mean of everything": (7, f"g ({ONE}) => (float[1, 1, 1, 1] y) {{ y = ReduceMean (x) }}"),
    "group normalization": (18, "g (float[2, 4, 3] x, float[2] a, float[2] b) => (float[2, 4, 3] y) "
                            "{ y = GroupNormalization <num_groups = 2> (x, a, b) }"),
    "normalization of each channel": (8, f"g ({ONE}, float[3] s, float[3] b, float[3] m, float[3] v) => "
                                      "(float[2, 3, 4, 6] y) { w = Abs (v) y = BatchNormalization (x, s, b, m, w) }"),
    "normalization that says so": (8, f"g ({ONE}, float[3] s, float[3] b, float[3] m, float[3] v) => "
                                   "(float[2, 3, 4, 6] y) "
                                   "{ w = Abs (v) y = BatchNormalization <spatial = 1> (x, s, b, m, w) }"),
    "scatter": (10, f"g ({ONE}, float[2, 3, 4, 1] u) => (float[2, 3, 4, 6] y) "
                "{ a = Shape (u) i = ConstantOfShape <value = int64[1] {2}> (a) y = Scatter <axis = 3> (x, i, u) }"),
    "softmax over the last axis of any rank": (11, "g (float[n, 3, 1] x) => (float[a, b] y) "
                                               "{ r = Squeeze (x) y = Softmax <axis = -1> (r) }"),
    "softmax of one axis": (11, "g (float[5] x) => (float[5] y) { y = Softmax <axis = 0> (x) }"),
    "softmax over two axes of any size": (11, "g (float[2, n, 1, 3] x) => (float[2, n, 1, 3] y) "
                                          "{ y = Softmax <axis = 1> (x) }"),
    "hardmax": (11, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y = Hardmax <axis = 2> (x) }}"),
    "cubic grid": (16, "g (float[1, 2, 4, 4] x, float[1, 3, 3, 2] i) => (float[1, 2, 3, 3] y) "
                   '{ y = GridSample <mode = "bicubic"> (x, i) }'),
    "nearest grid": (16, "g (float[1, 2, 4, 4] x, float[1, 3, 3, 2] i) => (float[1, 2, 3, 3] y) "
                     '{ y = GridSample <mode = "nearest"> (x, i) }'),
    "dropout with a mask that nothing reads": (9, f"g ({ONE}) => (float[2, 3, 4, 6] y) {{ y, m = Dropout (x) }}"),
    "grid": (16, "g (float[1, 2, 4, 4] x, float[1, 3, 3, 2] i) => (float[1, 2, 3, 3] y) "
             '{ y = GridSample <mode = "bilinear"> (x, i) }'),
    "transform": (17, "g (float[1, 8, 1] x) => (float[1, 8, 2] y) { y = DFT <axis = 1> (x) }"),
    "product with a bias": (7, "g (float[2, 3] x, float[3, 4] w, float[4] b) => (float[2, 4] y) "
                            "{ y = Gemm (x, w, b) }"),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_an_operator_of_an_old_opset_says_the_same_at_the_newest(name: str) -> None:
    opset, text = OLD[name]
    if name in ("group normalization", "transform"):  # the runtime has no kernel for the old form
        result = graphopt.optimize(support.model(text, opset), opset=23, level=0)
        assert result.verification.passed and not result.rolled_back
        return
    proto = support.model(text, opset)
    for wanted in (13, 18, 23):
        if wanted >= opset:
            lifted(proto, wanted, n=2)


def test_what_was_an_attribute_is_an_input() -> None:
    proto = support.model(OLD["unsqueeze"][1], 11)
    result = lifted(proto, 13)
    assert attributes(result, "Unsqueeze") == {} and len(result.graph.node[-1].input) == 2


def test_regions_keep_their_half_pixels() -> None:
    proto = support.model(
        f"""g ({ONE}, float[2, 4] r) => (float[2, 3, 2, 2] y) {{ f = Abs (r) i = Constant <value = int64[2] {{0, 1}}> ()
            y = RoiAlign <output_height = 2, output_width = 2, spatial_scale = 0.5> (x, f, i) }}""",
        10,
    )
    assert attributes(lifted(proto, 16), "RoiAlign")["coordinate_transformation_mode"] == b"output_half_pixel"


def test_a_softmax_over_several_axes_runs_over_a_flat_one() -> None:
    proto = support.model(OLD["softmax over all but the first"][1], 11)
    assert support.op_types(lifted(proto, 13)) == ["Flatten", "Softmax", "Reshape"]
    last = support.model(OLD["softmax over the last axis"][1], 11)
    assert support.op_types(lifted(last, 13)) == ["Softmax"]


@pytest.mark.fires("lift-opset")
def test_pixels_that_shrink_are_taken_from_behind() -> None:
    proto = support.model(
        f"g ({ONE}) => (float[2, 3, 2, 3] y) {{ y = Resize (x, s) }}", 10, s=np.array([1, 1, 0.5, 0.5], np.float32)
    )
    assert attributes(lifted(proto, 11), "Resize")["nearest_mode"] == b"ceil"


def test_a_normalization_that_trains_is_refused() -> None:
    text = """g (float[2, 3, 4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[2, 3, 4] y) {
        y, o, p, q, r = BatchNormalization (x, s, b, m, v) }"""
    with pytest.raises(OptionError, match="its outputs are those of a training"):
        graphopt.optimize(support.model(text, 9), opset=15, level=0)


def test_each_opset_is_one_change_and_a_run_can_stop_between() -> None:
    proto = support.model(OLD["split"][1], 11)
    whole = graphopt.optimize(proto, opset=18, level=0)
    assert [change.rule for change in whole.rewrites] == [f"lift-to-opset-{version}" for version in range(12, 19)]
    half = graphopt.optimize(proto, opset=18, level=0, stop_after=3).to_proto()
    assert half.opset_import[0].version == 14
    support.assert_equal(proto, half)


def test_nodes_keep_their_names_and_the_file_gets_the_version_it_needs() -> None:
    proto = support.model(OLD["split"][1], 11, 6)
    proto.graph.node[0].name = "halves"
    result = lifted(proto, 23)
    assert [node.name for node in result.graph.node] == ["halves"]
    assert result.ir_version == onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", 23]


def test_subgraphs_are_lifted_too() -> None:
    text = """g (bool c, float[2, 3] x) => (float[2, 1, 3] y) {
        y = If (c) <
            then_branch = t () => (float[2, 1, 3] a) { a = Unsqueeze <axes = [1]> (x) },
            else_branch = e () => (float[2, 1, 3] b) { n = Neg (x) b = Unsqueeze <axes = [1]> (n) }> }"""
    lifted(support.model(text, 11), 23)


def test_functions_are_lifted_with_their_own_imports() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 11, "own" : 1]>
        g (float[2, 3] x) => (float[2, 1, 3] y) { a = Relu (x) y = own.wide (a) }
        <domain: "own", opset_import: ["" : 11]>
        wide (v) => (w) { w = Unsqueeze <axes = [1]> (v) }""")
    result = lifted(proto, 23)
    assert [entry.version for entry in result.functions[0].opset_import if entry.domain == ""] == [23]


def test_what_the_caller_of_a_function_decides_cannot_be_lifted() -> None:
    proto = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 11, "own" : 1]>
        g (float[2, 3] x) => (float[2, 1, 3] y) { y = own.wide <where = [1]> (x) }
        <domain: "own", opset_import: ["" : 11]>
        wide <where> (v) => (w) { w = Unsqueeze <axes: ints = @where> (v) }""")
    with pytest.raises(OptionError, match="given by the function's caller"):
        graphopt.optimize(proto, opset=13)


def test_no_lift_is_refused_with_the_operators_name() -> None:
    text = "g (float[2, 3] x) => (float[2, 3] y, float[2, 3] m) { y, m = Dropout (x) }"
    with pytest.raises(OptionError, match=r"opset=23: Dropout 'y' changes with opset 10.*its mask is read"):
        graphopt.optimize(support.model(text, 9), opset=23)


def test_an_older_opset_and_one_that_nothing_runs_are_refused() -> None:
    proto = support.model("g (float[2] x) => (float[2] y) { y = Relu (x) }", 17)
    with pytest.raises(OptionError, match="the model is at opset 17, and is only ever lifted"):
        graphopt.optimize(proto, opset=13)
    with pytest.raises(OptionError, match=f"runs opsets up to {NEWEST}"):
        graphopt.optimize(proto, opset=NEWEST + 1)


def test_the_newest_opset_is_the_newest_that_the_runtime_takes() -> None:
    proto = support.model("g (float[2] x) => (float[2] y) { y = Relu (x) }", 17)
    lifted(proto, NEWEST)
