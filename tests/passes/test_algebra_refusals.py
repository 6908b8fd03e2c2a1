"""What each condition of the rules of algebra refuses: one graph for each, and the reason that is given."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.passes.algebra_checks import build, ints
from tests.passes.refusing import refusal, refuses

ONE = np.float32(1)
SMALL = ("float[2,3] x", "float[A,B] y")


def two(first: str, second: str, given: str = "float[2,3] x", result: str = "float[A,B] y", opset: int = 17, /,
        **constants: object) -> onnx.ModelProto:  # fmt: skip
    """Two operators in a row: a from the inputs, y from a."""
    return build(f"g ({given}) => ({result}) {{ a = {first}  y = {second} }}", opset, **constants)


def single(text: str, given: str = "float[2,3] x", result: str = "float[A,B] y", opset: int = 17, /,
           **constants: object) -> onnx.ModelProto:  # fmt: skip
    """One operator."""
    return build(f"g ({given}) => ({result}) {{ y = {text} }}", opset, **constants)


CLAMPS = [
    refusal("merge-clamps", "a bound is NaN",
            two("ConstantOfShape<value = float[1] {nan}>(many)", "Max(x, a)", "float[200] x", "float[A] y",
                                                 many=ints(200))),
    refusal("merge-clamps", "all operands are constant", two("Max(b, c)", "Add(x, a)", b=ONE, c=ONE)),
    refusal("merge-clamps", "the bound may widen the value",
            single("Max(x, c)", "float[2,3] x", "float[1,2,3] y", c=np.ones((1, 1, 1), np.float32))),
    refusal("merge-clamps", "the bounds cross, the result is constant",
            two("Min(x, b)", "Max(a, c)", b=ONE, c=3 * ONE)),
    refusal("merge-clamps", "the bounds cross, the result is constant",
            two("Max(x, c)", "Min(a, b)", b=ONE, c=3 * ONE)),
    refusal("merge-clamps", "before opset 8 Max and Min do not broadcast",
            two("Max(x, c)", "Max(a, d)", *SMALL, 7, c=np.ones((2, 3), np.float32), d=np.full((2, 3), 2, np.float32))),
    refusal("merge-clamps", "before opset 6 Clip is another operator",
            two("Clip<min = 0.0, max = 6.0>(x)", "Clip<min = 1.0, max = 5.0>(a)", *SMALL, 5)),
    refusal("merge-clamps", "Clip does not take elements of type double everywhere",
            two("Max(x, b)", "Min(a, c)", "double[2,3] x", "double[A,B] y", 8, b=np.float64(0.1), c=np.float64(0.7))),
    refusal("max-with-zero", "before opset 8 Max does not broadcast",
            single("Max(x, c)", *SMALL, 7, c=np.zeros((2, 3), np.float32))),
    refusal("merge-clamps", "Max 'y' has not two operands", single("Max(x, x, x)")),
    refusal("merge-clamps", "no operand of Max 'y' is constant", single("Max(x, x)")),
    refusal("expand-after-elementwise", "there are more than two operands", single("Max(x, x, x)")),
]  # fmt: skip

EINSUM = [
    refusal("einsum-of-one", "the equation does not fit the number of operands",
            single('Einsum<equation = "ij,jk->ik">(x)')),
    refusal("einsum-of-one", "the equation has other signs than letters", single('Einsum<equation = "1j->j1">(x)')),
    refusal("einsum-of-one", "the result has a letter that no operand has", single('Einsum<equation = "ij->ik">(x)')),
    refusal("einsum-of-two", "there are not two operands", single('Einsum<equation = "ij->ji">(x)')),
    refusal("einsum-of-two", "the equation does not fit the rank of an operand",
            single('Einsum<equation = "ij,jk->ik">(x, z)', "float[2,3,4] x, float[3,4] z")),
    refusal("einsum-of-two", "it would take more than three nodes",
            single('Einsum<equation = "ba,dc->abcd">(x, z)', "float[2,3] x, float[4,5] z", "float[A,B,C,D] y")),
]  # fmt: skip

EXPAND = [
    refusal("expand-after-elementwise", "the Expand does nothing",
            two("Expand(x, to)", "Relu(a)", to=ints(2, 3))),
    refusal("expand-after-elementwise", "Expand came with opset 8", single("Relu(x)", *SMALL, 7)),
]  # fmt: skip

NO_AXES = "noop_with_empty_axes = 1"
REDUCTIONS = [
    refusal("reduce-then-reshape", "nothing is reduced", two(f"ReduceSum<{NO_AXES}>(x)", "Flatten(a)")),
    refusal("sum-of-sum-reduction", "nothing is reduced", two(f"ReduceSum<{NO_AXES}>(x)", "ReduceSum(a)")),
    refusal("sum-of-sum-reduction", "the reductions share an axis",
            two("ReduceSum(x, one)", "ReduceSum(a, one)", one=ints(1))),
    refusal("mean-of-mean-reduction", "an integer mean drops the remainder",
            two("ReduceMean<axes = [1]>(x)", "ReduceMean<axes = [0]>(a)", "int32[2,3] x", "int32[A,B] y")),
    refusal("reduce-of-transpose", "nothing is reduced", two("Transpose(x)", f"ReduceSum<{NO_AXES}>(a)")),
    refusal("reduce-of-one", "an axis lies outside the rank", single("ReduceMean<axes = [5]>(x)")),
]  # fmt: skip

FLAT = "Flatten(x)"
RESHAPES = [
    refusal("squeeze-of-squeeze", "Squeeze 'a' does not say its axes",
            two("Squeeze(x)", "Squeeze(a, one)", "float[2,1,3] x", one=ints(1))),
    refusal("chain-to-own-shape", "before opset 5 Reshape has no shape input", two(FLAT, "Flatten(a)", *SMALL, 4)),
    refusal("chain-to-reshape", "before opset 5 Reshape has no shape input", two(FLAT, "Flatten(a)", *SMALL, 4)),
    refusal("reshape-of-reshape", "before opset 5 Reshape has no shape input",
            two(FLAT, "Reshape<shape = [3, 2]>(a)", *SMALL, 4)),
    refusal("reshape-of-reshape", "the target may hold a 0 that is meant as 0",
            two(FLAT, "Reshape<allowzero = 1>(a, to)", "float[2,3] x, int64[2] to")),
    refusal("chain-to-reshape", "another rule merges these",
            two("Squeeze(x, one)", "Squeeze(a, one)", "float[2,1,1,3] x", one=ints(1))),
    refusal("ones-before-broadcast", "the operator did not broadcast yet",
            single("Add<axis = 0, broadcast = 1>(x, z)", "float[2,3] x, float[2] z", "float[A,B] y", 6)),
    refusal("chain-to-reshape", "a dimension of 0 would have to be written as 0, which copies",
            two("Flatten<axis = 0>(x)", "Unsqueeze(a, zero)", "float[3,0] x", "float[A,B,C] y", zero=ints(0))),
]  # fmt: skip

MERGED_AXES = "r = Reshape(x, merged)  t = Transpose<perm = [0, 2, 1]>(r)  y = Reshape(t, parted)"


def merged(source: str, result: str, merged: tuple[int, ...], parted: tuple[int, ...]) -> onnx.ModelProto:
    """A Transpose between two Reshapes."""
    text = f"g (float[{source}] x) => (float[{result}] y) {{ {MERGED_AXES} }}"
    return build(text, merged=ints(*merged), parted=ints(*parted))


def softmax(then: str, opset: int = 17, axis: int = -1) -> onnx.ModelProto:
    """A Softmax of merged axes."""
    return build(f"""g (float[2,3,4,5] x) => (float[A,B,C] y) {{
        r = Reshape(x, merged)  s = Softmax<axis = {axis}>(r)  y = {then} }}""", opset, merged=ints(6, 4, 5),
        all=ints(0, 0, 0))  # fmt: skip


MERGED = [
    refusal("transpose-of-merged-axes", "the Reshape does more than merge leading axes",
            merged("2,3,8,5", "2,3,8,5", (6, 5, 8), (2, 3, 8, 5))),
    refusal("transpose-of-merged-axes", "the axes come back in other lengths",
            merged("2,3,4,5", "2,3,10,2", (6, 4, 5), (2, 3, 10, 2))),
    refusal("transpose-of-merged-axes", "the dims are not all written",
            build(f"""g (float[A,B,4,5] x) => (float[C,D,5,4] y) {{ b = Shape<start = 1, end = 2>(x)
                parted = Concat<axis = 0>(b, rest)  {MERGED_AXES} }}""", merged=ints(-1, 4, 5), rest=ints(-1, 5, 4))),
    refusal("softmax-of-merged-axes", "before opset 13 it runs over several axes", softmax("Reshape(s, all)", 12)),
    refusal("softmax-of-merged-axes", "it is over another axis", softmax("Reshape(s, all)", axis=1)),
    refusal("softmax-of-merged-axes", "the axes are not parted again behind it", softmax("Relu(s)")),
]  # fmt: skip

CUT = "Slice(x, {}, {}, zero)"
SLICES = [
    refusal("slice-of-slice", "an axis is sliced twice",
            two("Slice(x, zero, one, zero)", "Slice(a, both, end, both)", zero=ints(0), one=ints(1), both=ints(0, 0),
                end=ints(1, 1))),
    refusal("slice-of-slice", "an end counts from an end that is not known",
            two("Slice(x, zero, last, zero)", "Slice(a, zero, last, zero)", "float[N,3] x", zero=ints(0),
                last=ints(-1))),
    refusal("gather-of-unsqueeze", "the index is a vector, which keeps the dimension",
            two("Unsqueeze(x, zero)", "Gather(a, zero)", "float[2,3] x", "float[A,B,C] y", zero=ints(0))),
    refusal("gather-of-unsqueeze", "another axis is added than the one gathered from",
            two("Unsqueeze(x, zero)", "Gather<axis = 1>(a, none)", zero=ints(0), none=np.int64(0))),
    refusal("gather-of-concat", "the index is not one constant number",
            two("Concat<axis = 0>(x, x)", "Gather(a, zero)", zero=ints(0))),
    refusal("gather-of-concat", "Gather and Concat work on different axes",
            two("Concat<axis = 1>(x, x)", "Gather(a, none)", "float[2,3] x", "float[A] y", none=np.int64(0))),
    refusal("gather-of-concat", "the index lies outside",
            two("Concat<axis = 0>(x, x)", "Gather(a, far)", "float[2,3] x", "float[A] y", far=np.int64(9))),
    refusal("gather-of-concat", "the index counts from an end that is not known",
            two("Concat<axis = 0>(x, x)", "Gather(a, last)", "float[N,3] x", "float[A] y", last=np.int64(-1))),
    refusal("gather-of-concat", "the length of an operand is not known",
            two("Concat<axis = 0>(x, x)", "Gather(a, first)", "float[N,3] x", "float[A] y", first=np.int64(0))),
    refusal("concat-of-slices", "there is one piece only", single("Concat<axis = 0>(x)")),
    refusal("concat-of-slices", "the pieces are of different tensors",
            build("""g (float[2,3] x, float[2,3] z) => (float[A,B] y) { a = Slice(x, zero, one, zero)
                b = Slice(z, zero, one, zero) y = Concat<axis = 0>(a, b) }""", zero=ints(0), one=ints(1))),
    refusal("concat-of-slices", "a piece is cut in another way",
            two("Slice(x, zero, one, one)", "Concat<axis = 0>(a, a)", zero=ints(0), one=ints(1))),
    refusal("slice-of-slice", "a start is not constant",
            two("Slice(x, zero, one, zero)", "Slice(a, s, one, zero)", "float[2,3] x, int64[1] s", zero=ints(0),
                one=ints(1))),
]  # fmt: skip

TRANSPOSES = [
    refusal("transpose-of-transpose", "the permutations are of different rank",
            two("Transpose<perm = [1, 0]>(x)", "Transpose<perm = [0, 2, 1]>(a)")),
    refusal("transpose-across-elementwise", "the Transposes are next to each other, another rule merges them",
            two("Transpose(x)", "Transpose(a)")),
    refusal("transpose-across-elementwise", "before opset 8 the operands broadcast by attributes",
            two("Add(x, c)", "Transpose(a)", *SMALL, 7, c=ONE)),
    refusal("transpose-across-elementwise", "Max 'a' has not two operands",
            two("Max(x, x, x)", "Transpose(a)")),
    refusal("transposes-around-reshape", "before opset 5 Reshape has no shape input",
            two("Flatten(x)", "Transpose(a)", *SMALL, 4)),
]  # fmt: skip

LOGIC = [
    refusal("add-zero", "before opset 7 the operands broadcast by attributes",
            single("Add<broadcast = 1>(x, c)", *SMALL, 6, c=np.float32(0))),
    refusal("logic-with-constant", "before opset 7 the operands broadcast by attributes",
            single("And<broadcast = 1>(x, c)", "bool[2,3] x", "bool[A,B] y", 6, c=np.ones(1, bool))),
    refusal("logic-with-constant", "Expand came with opset 8",
            single("And(x, c)", "bool[2,3] x", "bool[1,2,3] y", 7, c=np.ones((1, 1, 1), bool))),
    refusal("negated-comparison", "GreaterOrEqual on integers exists from opset 12 on",
            two("Less(x, z)", "Not(a)", "int64[2,3] x, int64[2,3] z", "bool[A,B] y", 11)),
    refusal("regroup-sum", "before opset 7 the operands broadcast by attributes",
            two("Add<broadcast = 1>(x, c)", "Add<broadcast = 1>(a, c)", *SMALL, 6, c=np.float32(1))),
    refusal("regroup-sum", "all operands are constant",
            build("g (float[2,3] x) => (float[A,B] y) { a = Add(b, c)  d = Add(a, c)  y = Mul(x, d) }", b=ONE, c=ONE)),
    refusal("max-of-max", "before opset 8 Max and Min do not broadcast",
            two("Max(x, c)", "Max(a, c)", *SMALL, 7, c=np.ones((2, 3), np.float32))),
    refusal("max-of-max", "all operands are constant",
            build("g (float[2,3] x) => (float[A,B] y) { a = Max(b, c)  d = Max(a, c)  y = Mul(x, d) }", b=ONE, c=ONE)),
    refusal("max-of-max", "the merged constant would be larger",
            two("Max(x, c)", "Max(a, d)", "float[40,40] x", c=np.arange(40, dtype=np.float32).reshape(1, 40),
                d=np.arange(40, dtype=np.float32).reshape(40, 1))),
]  # fmt: skip

LOOKUPS = [
    refusal("lookup-of-everything", "before opset 5 Reshape has no shape input",
            single("Gather(x, i)", *SMALL, 4, i=ints(0, 1))),
    refusal("unsqueeze-of-lookup", "the indices are one repeated number",
            build("""g (float[2,3] x) => (float[A,B,C] y) { i = ConstantOfShape<value = int64[1] {1}>(many)
                a = Gather(x, i)  y = Unsqueeze(a, zero) }""", many=ints(200), zero=ints(0))),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "reason", "proto"),
    [*CLAMPS, *EINSUM, *EXPAND, *REDUCTIONS, *RESHAPES, *MERGED, *SLICES, *TRANSPOSES, *LOGIC, *LOOKUPS],
)
def test_it_says_which_condition_refuses(rule: str, reason: str, proto: onnx.ModelProto) -> None:
    refuses(rule, reason, proto)
