"""Einsum that is a MatMul, a Mul, a Transpose or a ReduceSum, written as such."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from graphopt.model import dims, nodes
from graphopt.passes.operands import COMMON, inner_node, require_type
from graphopt.rewrite.rule import Match, Replacement, Rule, any_node

MOST_NODES = 3  # a Mul with both operands brought into its order; more would not be simpler than the Einsum


@dataclass(frozen=True, slots=True)
class Equation:
    """The letters of the operands and of the result."""

    operands: tuple[str, ...]
    result: str


def _parse(match: Match) -> Equation:
    """The equation; refuses ellipses and letters that repeat within an operand (diagonals)."""
    text = nodes.string_attribute(match.root, "equation", "").replace(" ", "")
    match.require("." not in text, "the equation has an ellipsis")
    left, arrow, result = text.partition("->")
    operands = tuple(left.split(","))
    if not arrow:
        # Without a result, the letters that occur once, in order of the alphabet.
        result = "".join(sorted(letter for letter in set(left) if letter.isalpha() and left.count(letter) == 1))
    match.require(len(operands) == len(match.root.inputs), "the equation does not fit the number of operands")
    for letters in (*operands, result):
        match.require(letters.isalpha() or not letters, "the equation has other signs than letters")
        match.require(len(set(letters)) == len(letters), "a letter repeats within one operand")
    match.require(set(result) <= set("".join(operands)), "the result has a letter that no operand has")
    return Equation(operands, result)


def _transposed(match: Match, value: ir.Value, letters: str, wanted: str) -> ir.Value:
    if letters == wanted:
        return value
    return match.op("Transpose", value, attributes={"perm": tuple(letters.index(letter) for letter in wanted)})


@any_node("Einsum", level=1)
def einsum_of_one(match: Match) -> Replacement:
    """Einsum("ij->ji")  -->  Transpose,  Einsum("ijk->ik")  -->  ReduceSum, or both"""
    equation = _parse(match)
    match.require(len(equation.operands) == 1, "there is more than one operand")
    letters, value = equation.operands[0], match.root.inputs[0]
    assert value is not None, "the operand of Einsum is present"
    require_type(match, value, COMMON, "numbers that ReduceSum takes everywhere")
    dropped = tuple(axis for axis, letter in enumerate(letters) if letter not in equation.result)
    if dropped:
        value = match.op("ReduceSum", value, attributes={"keepdims": 0, "axes": dropped})
        letters = "".join(letter for letter in letters if letter in equation.result)
    return _transposed(match, value, letters, equation.result)


@any_node("Einsum", level=1)
def einsum_of_two(match: Match) -> Replacement:
    """Einsum("ij,jk->ik")  -->  MatMul,  Einsum("bhid,bhjd->bhij")  -->  MatMul of a Transpose

    Also a product without sum as Mul. A Transpose is made only where it disappears again: of a constant, or below
    another Transpose. Leaves alone ellipses, diagonals, sums over a letter of one operand alone, several summed or
    several free letters of one operand beside common ones.
    """
    equation = _parse(match)
    match.require(len(equation.operands) == 2, "there are not two operands")
    first, second = match.root.inputs
    assert first is not None and second is not None, "the operands of Einsum are present"
    require_type(match, first, COMMON, "numbers that MatMul takes everywhere")
    left, right = equation.operands
    result = equation.result
    _require_equal_dims(match, (left, match.shape(first)), (right, match.shape(second)))
    for letters, other in ((left, right), (right, left)):
        alone = [letter for letter in letters if letter not in other and letter not in result]
        match.require(not alone, f"letter '{''.join(alone)}' of one operand is summed")
    summed = "".join(letter for letter in left if letter in right and letter not in result)
    if not summed:
        return _product(match, (first, left), (second, right), result)
    match.require(len(summed) == 1, "more than one letter is summed")
    for (a, a_letters), (b, b_letters) in (
        ((first, left), (second, right)),
        ((second, right), (first, left)),
    ):
        common = "".join(letter for letter in result if letter in a_letters and letter in b_letters)
        rows = "".join(letter for letter in result if letter in a_letters and letter not in b_letters)
        columns = "".join(letter for letter in result if letter in b_letters and letter not in a_letters)
        if result != common + rows + columns or len(columns) > 1:
            continue
        if common and (len(rows) != 1 or len(columns) != 1):
            continue
        # Without common letters MatMul takes a stack of rows against one matrix, and a vector on either side.
        order = (common + rows + summed, common + summed + columns)
        matrices = len(a_letters) == len(b_letters) == 2  # a Gemm transposes its operands itself
        for value, letters, wanted in ((a, a_letters, order[0]), (b, b_letters, order[1])):
            free = letters == wanted or matrices or _turns_for_nothing(match, value)
            match.require(free, f"a Transpose of '{value.name}' would come beside the MatMul")
        x = _transposed(match, a, a_letters, order[0])
        y = _transposed(match, b, b_letters, order[1])
        return match.op("MatMul", x, y)
    match.refuse("the result is not common letters, rows and columns in this order")


def _turns_for_nothing(match: Match, value: ir.Value) -> bool:
    """Whether a Transpose of the value disappears: into a constant, or into another Transpose."""
    return match.facts.is_constant(value) or inner_node(match, value, "Transpose") is not None


def _require_equal_dims(match: Match, *operands: tuple[str, dims.Dims]) -> None:
    """Einsum lets a dimension of 1 stretch; MatMul does not for the summed letter, so equal dims are asked for."""
    known: dict[str, dims.Dim] = {}
    for letters, shape in operands:
        match.require(len(letters) == len(shape), "the equation does not fit the rank of an operand")
        for letter, dim in zip(letters, shape, strict=True):
            earlier = known.setdefault(letter, dim)
            match.require(earlier == dim, f"letter '{letter}' may stand for dimensions of different length")


def _product(match: Match, left: tuple[ir.Value, str], right: tuple[ir.Value, str], result: str) -> ir.Value:
    """No letter is summed: both operands in the order of the result, missing letters as dims of 1, multiplied."""
    aligned = []
    for value, letters in (left, right):
        wanted = "".join(letter for letter in result if letter in letters)
        value = _transposed(match, value, letters, wanted)
        missing = [axis for axis, letter in enumerate(result) if letter not in letters]
        while missing and missing[0] == len(result) - len(wanted) - len(missing):
            missing.pop(0)  # leading dims of 1 come with broadcasting
        leading = len(result) - len(wanted) - len(missing)
        if missing:
            axes = tuple(axis - leading for axis in missing)
            value = match.op("Unsqueeze", value, attributes={"axes": axes})
        aligned.append(value)
    product = match.op("Mul", *aligned)
    match.require(len(match.new_nodes) <= MOST_NODES, "it would take more than three nodes")
    return product


RULES: tuple[Rule, ...] = (einsum_of_one, einsum_of_two)
