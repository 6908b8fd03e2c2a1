"""The equation of an Einsum: which dims of its operands and of its result are the same."""

from __future__ import annotations

from collections.abc import Sequence

Labels = list[str]  # of the dims of one tensor


def labels_of(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """The labels of each operand's dims, and of the result's.

    Dims behind an ellipsis are labelled "0", "1", ..., the last one "0". A result that is not said has the ellipsis
    first and then, in the order of the alphabet, the letters that stand once. Raises ValueError where operands do not
    fit the equation.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms: list[Labels] = []
    for text, rank in zip(inputs.split(","), ranks, strict=True):
        before, dots, behind = text.partition("...")
        hidden = rank - len(before) - len(behind)
        if hidden < 0 or (hidden and not dots):
            raise ValueError(f"'{text}' has other dims than an operand of rank {rank}")
        terms.append([*before, *(str(one) for one in reversed(range(hidden))), *behind])
    letters = [label for term in terms for label in term]
    hidden_labels = sorted({label for label in letters if label.isdigit()}, key=int, reverse=True)
    if arrow:
        before, dots, behind = output.partition("...")
        return terms, [*before, *(hidden_labels if dots else ()), *behind]
    once = sorted(label for label in set(letters) if not label.isdigit() and letters.count(label) == 1)
    return terms, [*hidden_labels, *once]


def read_equation(equation: str, shapes: Sequence[Sequence[int]]) -> tuple[list[Labels], Labels, dict[str, int]]:
    """The labels of each operand's dims and of the result's, and the size of each label; dims of one are broadcast."""
    terms, result = labels_of(equation, [len(shape) for shape in shapes])
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, size in zip(term, shape, strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    return terms, result, sizes
