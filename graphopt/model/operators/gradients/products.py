"""Gradients of matrix products."""

from __future__ import annotations

from string import ascii_letters

from graphopt.model.operators.gradients.backward import Backward, Gradients
from graphopt.model.operators.gradients.terms import Maker, NoGradient, Term


def product(
    maker: Maker, left: Term, right: Term, *, turn_left: bool = False, turn_right: bool = False, alpha: float = 1.0
) -> Term:
    """The product of two matrices, each of them turned where that is said."""
    operands = [left, right]
    if maker.opset < 11:  # the third operand must be there
        operands.append(left.number(0.0))
    attributes = {"transA": int(turn_left), "transB": int(turn_right), "alpha": float(alpha)}
    return maker.op("Gemm", *operands, attributes=attributes)


def matmul(back: Backward) -> Gradients:
    """dA = dY B^T, dB = A^T dY; one product where B is a matrix that all of A meet."""
    a, b, dy = back.x(0), back.x(1), back.dy
    rows, columns = a.rank == 1, b.rank == 1
    if columns:
        dy = dy.unsqueeze(dy.rank)
    if rows:
        dy = dy.unsqueeze(dy.rank - 1)
    left, right = (a.unsqueeze(0) if rows else a), (b.unsqueeze(1) if columns else b)
    if right.rank == 2 and left.rank > 2:
        to_left, to_right = _of_weights(back, left, right, dy)
    elif left.rank == right.rank == 2:
        to_left = product(back.maker, dy, right, turn_right=True) if back.wants(0) else None
        to_right = product(back.maker, left, dy, turn_left=True) if back.wants(1) else None
    else:
        to_left = (dy @ right.swapped()).sum_to(left) if back.wants(0) else None
        to_right = (left.swapped() @ dy).sum_to(right) if back.wants(1) else None
    if to_left is not None and rows:
        to_left = to_left.squeeze(0)
    if to_right is not None and columns:
        to_right = to_right.squeeze(1)
    return to_left, to_right


def _of_weights(back: Backward, a: Term, b: Term, dy: Term) -> tuple[Term | None, Term | None]:
    """As one product over all rows: [batch, rows, inner] as [batch rows, inner]."""
    flat = dy.reshape(back.maker.ints(-1), b.dim(1))
    to_left = product(back.maker, flat, b, turn_right=True).reshape_like(a) if back.wants(0) else None
    rows = a.reshape(back.maker.ints(-1), b.dim(0)) if back.wants(1) else None
    return to_left, None if rows is None else product(back.maker, rows, flat, turn_left=True)


def gemm(back: Backward) -> Gradients:
    """alpha A B + beta C, A and B turned where the node says so."""
    a, b, dy, maker = back.x(0), back.x(1), back.dy, back.maker
    alpha, beta = back.real("alpha", 1.0), back.real("beta", 1.0)
    turn_a, turn_b = bool(back.integer("transA", 0)), bool(back.integer("transB", 0))
    to_a = to_b = to_c = None
    if back.wants(0):
        to_a = (
            product(maker, b, dy, turn_left=turn_b, turn_right=True, alpha=alpha)
            if turn_a
            else product(maker, dy, b, turn_right=not turn_b, alpha=alpha)
        )
    if back.wants(1):
        to_b = (
            product(maker, dy, a, turn_left=True, turn_right=turn_a, alpha=alpha)
            if turn_b
            else product(maker, a, dy, turn_left=not turn_a, alpha=alpha)
        )
    if back.wants(2):
        to_c = dy if beta == 1 else dy * beta
    return to_a, to_b, to_c


def einsum(back: Backward) -> Gradients:
    """The einsum of the gradient and the other operands, labels that only one operand has put back by copies."""
    written = back.text("equation", "").replace(" ", "")
    terms, arrow, result = written.partition("->")
    operands = terms.split(",")
    if not arrow:
        labels = "".join(operands).replace(".", "")
        result = "..." * ("." in terms) + "".join(sorted(label for label in set(labels) if labels.count(label) == 1))
    if "." in written:
        operands, result = _written_out(back, operands, result)
    found: list[Term | None] = []
    for position, labels in enumerate(operands):
        if not back.wants(position):
            found.append(None)
            continue
        if len(set(labels)) != len(labels):
            raise NoGradient(f"'{labels}' reads a diagonal")
        others = [at for at in range(len(operands)) if at != position]
        there = set(result).union(*(operands[at] for at in others))
        kept = "".join(label for label in labels if label in there)
        equation = ",".join([result, *(operands[at] for at in others)]) + "->" + kept
        term = back.maker.op("Einsum", back.dy, *(back.x(at) for at in others), attributes={"equation": equation})
        x = back.x(position)
        alone = [at for at, label in enumerate(labels) if label not in there]
        found.append(term.unsqueeze(*alone).expand(x) if alone else term)
    return found


def _written_out(back: Backward, operands: list[str], result: str) -> tuple[list[str], str]:
    """Labels in place of the ellipsis: as many of the last ones as an operand has axes for."""
    ranks = [back.x(at).rank - len(labels.replace(".", "")) for at, labels in enumerate(operands) if "." in labels]
    free = [label for label in ascii_letters if label not in result + "".join(operands)][: max(ranks)]

    def whole(labels: str, rank: int) -> str:
        return labels.replace("...", "".join(free[len(free) - rank :]))

    found = [whole(labels, back.x(at).rank - len(labels.replace(".", ""))) for at, labels in enumerate(operands)]
    return found, whole(result, len(free))
