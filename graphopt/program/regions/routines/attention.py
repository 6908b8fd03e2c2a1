"""Attention and its kin in every form: caches, windows, all masks, scores as results, 16-bit floats and f64.

Scores and sums are of f32, or of f64 where the operands are. The common forms of f32 have a template, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, prod, sqrt

from graphopt.errors import NotLowered
from graphopt.program.regions.routines.stage import Defined, Definition, Stage, counted, held
from graphopt.program.regions.routines.sums import largest_of, summed
from graphopt.program.regions.view import View
from kernels.dtype import DType
from kernels.routine.writer import (
    Grid,
    as_type,
    both,
    eq,
    ge,
    gt,
    integer,
    le,
    lt,
    number,
    pick,
    quotient,
)
from kernels.tensor.expression import Expression, Number, Unary

MOST_SCORES = 1 << 26  # bytes; more are not written out
Kept = Callable[[Expression], Expression]  # a value rounded to the type of the operands


@dataclass(frozen=True, slots=True)
class Heads:
    """A value as [batch, head, row, element]: of rank 4, or of rank 3 with heads side by side in its rows."""

    view: View
    batch: int
    heads: int
    rows: int
    size: int

    def start(self, batch: Expression, head: Expression) -> Expression:
        """Where the rows of a head begin."""
        if len(self.view.shape) == 4:
            return (batch * self.heads + head) * (self.rows * self.size)
        return batch * (self.rows * self.heads * self.size) + head * self.size

    def matrices(self, groups: int, *, turned: bool = False) -> View:
        """[batch, group, head of the group, row, element], or elements before rows; a group's one head for all."""
        each, head = self.heads // groups, self.rows * self.size if len(self.view.shape) == 4 else self.size
        whole, shared = self.rows * self.heads * self.size, head if each > 1 else 0
        dims, steps = (self.rows, self.size), (self.step, 1)
        dims, steps = (dims[::-1], steps[::-1]) if turned else (dims, steps)
        shape, strides = (self.batch, groups, each, *dims), (whole, each * head, shared, *steps)
        return View(self.view.buffer, self.view.dtype, shape, strides, self.view.offset)

    @property
    def step(self) -> int:
        """From one row of a head to the next."""
        return self.size if len(self.view.shape) == 4 else self.heads * self.size


def _heads(node: Defined, view: View, count: int) -> Heads:
    if len(view.shape) == 4:
        return Heads(view, *view.shape)
    batch, rows, width = view.shape
    if count < 1 or width % count:
        raise NotLowered(f"'{view.buffer.value}' of {list(view.shape)} has no {count} heads.")
    return Heads(view, batch, count, rows, width // count)


def attention(node: Defined) -> None:
    """Row by row: scores of all keys, their softmax, and the sum of the values by it.

    In f32 the sums of a head are matrix products, where all rows see as many keys.
    """
    q = _heads(node, node.input(0), node.integer("q_num_heads", 0))
    k, v = (_heads(node, node.input(at), node.integer("kv_num_heads", 0)) for at in (1, 2))
    past = node.shape(4)[2] if node.has(4) else 0
    if node.has(4) or node.wants(1) or node.wants(2):
        k, v = (_present(node, one, 4 + at, 1 + at) for at, one in enumerate((k, v)))
    fits = (q.batch, q.size) == (k.batch, k.size) and (k.batch, k.heads, k.rows) == (v.batch, v.heads, v.rows)
    if not fits or k.heads < 1 or q.heads % k.heads:
        shapes = ", ".join(str([one.batch, one.heads, one.rows, one.size]) for one in (q, k, v))
        raise node.refuse(f"has queries, keys and values of {shapes}, which do not fit one another")
    _require_mask(node, (q.batch, q.heads, q.rows, k.rows))
    kind, keys = held(q.view.dtype), k.rows
    root = number(sqrt(node.number("scale", 0.0) or 1 / sqrt(max(q.size, 1))), kind)

    def kept(x: Expression) -> Expression:
        """A value as it is between two operators of ONNX's definition: rounded to the type of the operands."""
        return as_type(as_type(x, q.view.dtype), kind)

    scored = _scored(node, q, k) if q.view.dtype is DType.F32 and not node.has(6) else None
    weights_at = None if scored is None else node.temporary(kind, scored.shape)
    softcap, mode = node.number("softcap", 0.0), node.integer("qk_matmul_output_mode", 0)
    with node.stage() as w:
        products = None if scored is None else w.reads(scored)
        query, key, value = (w.reads(one.view) for one in (q, k, v)) if products is None else (None, None, None)
        y = w.writes(node.output(0) if weights_at is None else weights_at)
        mask = w.reads(node.input(3)) if node.has(3) else None
        shown = w.writes(node.output(3)) if node.wants(3) else None
        lengths = w.reads(node.input(6)) if node.has(6) else None
        scaled, scores = w.scratch(kind, (max(q.size, 1),)), w.scratch(kind, (max(keys, 1),))
        sums = w.scratch(kind, (max(v.size, 1),))
        with w.shared(q.batch, q.heads, q.rows) as (batch, head, row):
            group = quotient(head, q.heads // k.heads)
            q_start = w.local(DType.I64, q.start(batch, head) + row * q.step)
            k_start, v_start = (w.local(DType.I64, one.start(batch, group)) for one in (k, v))
            length = integer(keys) if lengths is None else w.local(DType.I64, as_type(lengths.at(batch), DType.I64))
            offset = integer(past) if lengths is None or node.has(4) else length - q.rows
            here = w.local(DType.I64, row + offset)  # the query's place among the keys
            is_open = w.local(DType.BOOL, False)
            factor = w.local(kind, kept(root))
            if query is not None:
                with w.loop(q.size) as one:
                    scaled[one] = kept(as_type(query.at(q_start + one), kind) * factor)
            line = w.local(DType.I64, ((batch * q.heads + head) * q.rows + row) * keys)

            def show(wanted: int, at: Expression, score: Expression) -> None:
                if shown is not None and mode == wanted:
                    shown.put(line + at, as_type(score, shown.dtype))

            with w.loop(keys) as at:
                place = w.local(DType.I64, k_start + at * k.step)

                def term(one: Expression, place: Expression = place) -> Expression:
                    assert key is not None, "there are no products"
                    return scaled[one] * kept(as_type(key.at(place + one), kind) * factor)

                total = summed(w, kind, q.size, term) if products is None else products.at(line + at) * root * root
                score = w.local(kind, kept(total))
                show(0, at, score)
                if softcap:
                    w.set(score, kept(kept(Unary("tanh", kept(score / softcap))) * softcap))
                show(1, at, score)
                bias = _bias(node, w, mask, (batch, head, row, at), keys, kind)
                seen = _seen(node, at, here, length if lengths is not None else None)
                bias = w.local(kind, pick(seen, bias, number(-inf, kind)))
                w.set(is_open, pick(gt(bias, -inf), number(True, DType.BOOL), is_open))
                w.set(score, kept(score + bias))
                show(2, at, score)
                scores[at] = score
            largest = largest_of(w, kind, keys, lambda at: scores[at])
            _to_weights(w, scores, keys, largest, is_open, kept, stepwise=q.view.dtype is DType.BF16)
            result = Heads(node.output(0), q.batch, q.heads, q.rows, v.size)
            if value is None:
                with w.loop(keys) as at:
                    show(3, at, scores[at])
                    y.put(line + at, scores[at])
            else:
                with w.loop(v.size) as one:
                    sums[one] = number(0, kind)
                with w.loop(keys) as at:
                    weight, place = w.local(kind, scores[at]), w.local(DType.I64, v_start + at * v.step)
                    show(3, at, weight)
                    with w.when(gt(weight, 0)), w.loop(v.size) as one:
                        sums[one] = sums[one] + weight * as_type(value.at(place + one), kind)
                start = w.local(DType.I64, result.start(batch, head) + row * result.step)
                with w.loop(v.size) as one:
                    y.put(start + one, as_type(sums[one], y.dtype))
    if weights_at is not None:
        shared = View.dense(weights_at.buffer, kind, (q.batch, k.heads, q.heads // k.heads, q.rows, keys))
        node.product(shared, v.matrices(k.heads), result.matrices(k.heads))


def _scored(node: Defined, q: Heads, k: Heads) -> View | None:
    """The products of all queries and keys, [batch, head, row, key]; None where they take too much memory."""
    dims = (q.batch, q.heads, q.rows, k.rows)
    if 4 * prod(dims) > MOST_SCORES or 0 in (*dims, q.size):
        return None
    made = node.temporary(DType.F32, dims)
    shared = View.dense(made.buffer, DType.F32, (q.batch, k.heads, q.heads // k.heads, q.rows, k.rows))
    node.product(q.matrices(k.heads), k.matrices(k.heads, turned=True), shared)
    return made


def _require_mask(node: Defined, whole: tuple[int, ...]) -> None:
    """Raise NotLowered for a mask that is not broadcast to the scores; its last dim may be shorter."""
    given = node.shape(3) if node.has(3) else ()
    lead = len(whole) - len(given)
    if given and (
        lead < 0
        or given[-1] > whole[-1]
        or any(have not in (1, want) for have, want in zip(given[:-1], whole[lead:-1], strict=True))
    ):
        raise node.refuse(f"has a mask of {list(given)}, which does not fit scores of {list(whole)}")


def _present(node: Defined, new: Heads, past: int, result: int) -> Heads:
    """The rows of the cache and the new ones behind them, as [batch, head, row, element]."""
    before = node.shape(past)[2] if node.has(past) else 0
    if node.has(past) and node.shape(past) != (new.batch, new.heads, before, new.size):
        raise node.refuse(f"has a cache of {list(node.shape(past))}, which does not fit its operands")
    dims = (new.batch, new.heads, before + new.rows, new.size)
    aim = node.output(result) if node.wants(result) else node.temporary(new.view.dtype, dims)
    with node.stage() as w:
        old = w.reads(node.input(past)) if before else None
        added, joined = w.reads(new.view), w.writes(aim)
        with w.shared(new.batch, new.heads) as (batch, head):
            start = w.local(DType.I64, (batch * new.heads + head) * (dims[2] * new.size))
            if old is not None:
                with w.loop(before * new.size) as at:
                    joined.put(start + at, old.at((batch * new.heads + head) * (before * new.size) + at))
            with w.loops(new.rows, new.size) as (row, at):
                source = new.start(batch, head) + row * new.step + at
                joined.put(start + (row + before) * new.size + at, added.at(source))
    return Heads(View.dense(aim.buffer, aim.dtype, dims), *dims)


def _bias(node: Defined, w: Stage, mask: Grid | None, at: tuple[Expression, ...], keys: int, kind: DType) -> Expression:
    """What the mask adds to a score; a mask that is shorter than the keys shuts out the others."""
    if mask is None:
        return number(0, kind)
    shown = at[4 - len(mask.shape) :]
    width = mask.shape[-1]
    places = [integer(0) if size == 1 else one for one, size in zip(shown[:-1], mask.shape[:-1], strict=True)]
    found = w.local(kind, number(-inf, kind))
    with w.when(lt(at[3], width) if width < keys else number(True, DType.BOOL)):
        element = mask[(*places, at[3])]
        if mask.dtype is DType.BOOL:
            w.set(found, pick(element, number(0, kind), number(-inf, kind)))
        else:
            w.set(found, as_type(element, kind))
    return found


def _seen(node: Defined, at: Expression, here: Expression, length: Expression | None) -> Expression:
    """Whether a key is inside the window of a query, and none of the padding."""
    seen: Expression = Number(True, DType.BOOL)
    left, right = node.integer("left_window_size", -1), node.integer("right_window_size", -1)
    if node.integer("is_causal", 0):
        seen = both(seen, le(at, here))
    if left >= 0:
        seen = both(seen, ge(at, here - left))
    if right >= 0:
        seen = both(seen, le(at, here + right))
    return seen if length is None else both(seen, lt(at, length))


def _to_weights(
    w: Stage, scores: Grid, keys: int, largest: Expression, is_open: Expression, kept: Kept, *, stepwise: bool
) -> None:
    """The softmax of the scores in place; zeros where every key is shut out. `stepwise`: each addition is rounded."""
    kind = scores.dtype
    shift = w.local(kind, pick(eq(largest, -inf), number(0, kind), largest))
    with w.loop(keys) as at:
        scores[at] = kept(Unary("exp", kept(scores[at] - shift)))
    total = w.local(kind, number(0, kind))
    if stepwise:
        with w.loop(keys) as at:
            w.set(total, kept(total + scores[at]))
    else:
        w.set(total, kept(summed(w, kind, keys, lambda at: scores[at])))
    w.set(total, pick(eq(total, 0), number(1, kind), total))
    with w.loop(keys) as at:
        scores[at] = pick(is_open, kept(scores[at] / total), 0)


def rotary(node: Defined) -> None:
    """Pairs of elements of each head turned by the angle of their place: halves of a head, or neighbours."""
    x = _heads(node, node.input(0), node.integer("num_heads", 0))
    turned = node.integer("rotary_embedding_dim", 0) or x.size
    half, apart, kind = turned // 2, bool(node.integer("interleaved", 0)), held(x.view.dtype)
    with node.stage() as w:
        source, y = w.reads(x.view), w.writes(node.output(0))
        cosines, sines = w.reads(node.input(1)), w.reads(node.input(2))
        places = w.reads(node.input(3)) if node.has(3) else None
        with w.shared(x.batch, x.heads, x.rows) as (batch, head, row):
            start = w.local(DType.I64, x.start(batch, head) + row * x.step)
            place = batch * x.rows + row
            turn = place if places is None else counted(places.at(place), cosines.shape[0])
            line = w.local(DType.I64, turn * half)
            with w.loop(half) as at:
                first, second = (at * 2, at * 2 + 1) if apart else (at, at + half)
                a, b = (w.local(kind, as_type(source.at(start + one), kind)) for one in (first, second))
                cosine, sine = (w.local(kind, as_type(one.at(line + at), kind)) for one in (cosines, sines))
                y.put(start + first, as_type(a * cosine - b * sine, y.dtype))
                y.put(start + second, as_type(a * sine + b * cosine, y.dtype))
            with w.loop(x.size, 2 * half) as at:
                y.put(start + at, source.at(start + at))


def linear_attention(node: Defined) -> None:
    """A state of each head that is decayed, corrected, written and read at every step, in f32.

    state = exp(decay) state + k (beta (v - state k)); the result is scale q state.
    """
    heads, groups = node.integer("q_num_heads", 0), node.integer("kv_num_heads", 0)
    q = _heads(node, node.input(0), heads)
    k, v = (_heads(node, node.input(at), groups) for at in (1, 2))
    scale = node.number("scale", 0.0) or 1 / sqrt(max(k.size, 1))
    rule, shared, kind = node.text("update_rule", "gated_delta"), heads // groups, DType.F32
    with node.stage() as w:
        query, key, value = (w.reads(one.view) for one in (q, k, v))
        y = w.writes(node.output(0))
        past, decay, beta = (w.reads(node.input(at)) if node.has(at) else None for at in (3, 4, 5))
        present = w.writes(node.output(1)) if node.wants(1) else None
        state, row = w.scratch(kind, (k.size, v.size)), w.scratch(kind, (v.size,))
        with w.shared(q.batch, groups) as (batch, group):
            start = w.local(DType.I64, (batch * groups + group) * (k.size * v.size))
            with w.loop(k.size * v.size) as at:
                state.put(at, number(0, kind) if past is None else as_type(past.at(start + at), kind))
            q_start, k_start, v_start = (
                w.local(DType.I64, one.start(batch, group * (shared if one is q else 1))) for one in (q, k, v)
            )
            y_start = w.local(DType.I64, batch * (q.rows * heads * v.size) + group * (shared * v.size))
            with w.loop(q.rows) as step:
                if decay is not None and rule in ("gated", "gated_delta"):
                    _decay(w, decay, state, (batch * q.rows + step, group, groups), k.size, v.size)
                with w.loop(v.size) as c:
                    row[c] = as_type(value.at(v_start + step * v.step + c), kind)
                if beta is not None and rule in ("delta", "gated_delta"):
                    with w.loops(k.size, v.size) as (d, c):
                        row[c] = row[c] - state[d, c] * as_type(key.at(k_start + step * k.step + d), kind)
                    width = beta.shape[-1]
                    place = (batch * q.rows + step) * width + (group if width > 1 else 0)
                    factor = w.local(kind, as_type(beta.at(place), kind))
                    with w.loop(v.size) as c:
                        row[c] = row[c] * factor
                with w.loop(k.size) as d:
                    one = w.local(kind, as_type(key.at(k_start + step * k.step + d), kind))
                    with w.loop(v.size) as c:
                        state[d, c] = state[d, c] + one * row[c]
                with w.loop(shared) as head:
                    with w.loop(v.size) as c:
                        row[c] = number(0, kind)
                    with w.loop(k.size) as d:
                        place = q_start + head * q.size + step * q.step + d
                        one = w.local(kind, as_type(query.at(place), kind) * scale)
                        with w.loop(v.size) as c:
                            row[c] = row[c] + one * state[d, c]
                    with w.loop(v.size) as c:
                        y.put(y_start + step * (heads * v.size) + head * v.size + c, as_type(row[c], y.dtype))
            if present is not None:
                with w.loop(k.size * v.size) as at:
                    present.put(start + at, as_type(state.at(at), present.dtype))


def _decay(w: Stage, decay: Grid, state: Grid, at: tuple[Expression, Expression, int], size: int, width: int) -> None:
    """The state times e^decay, one number for a head or one for each of its rows."""
    line, group, groups = at
    each = decay.shape[-1] // groups
    with w.loop(size) as d:
        place = line * decay.shape[-1] + group * each + (d if each > 1 else integer(0))
        factor = w.local(DType.F32, Unary("exp", as_type(decay.at(place), DType.F32)))
        with w.loop(width) as c:
            state[d, c] = state[d, c] * factor


def causal_convolution(node: Defined) -> None:
    """Each channel with a filter of its own over what came before, whose last elements are kept for the next call."""
    batch, channels, length = node.shape(0)
    size, kind = node.shape(1)[2], held(node.dtype(0))
    activation, kept = node.text("activation", "none"), size - 1
    with node.stage() as w:
        x, weight, y = w.reads(node.input(0)), w.reads(node.input(1)), w.writes(node.output(0))
        bias, past = (w.reads(node.input(at)) if node.has(at) else None for at in (2, 3))
        present = w.writes(node.output(1)) if node.wants(1) else None
        line = w.scratch(kind, (kept + length,))
        with w.shared(batch, channels) as (n, c):
            row = w.local(DType.I64, n * channels + c)
            with w.loop(kept) as at:
                line[at] = number(0, kind) if past is None else as_type(past.at(row * kept + at), kind)
            with w.loop(length) as at:
                line[at + kept] = as_type(x.at(row * length + at), kind)
            first = number(0, kind) if bias is None else w.local(kind, as_type(bias.at(c), kind))
            with w.loop(length) as at:
                total = w.local(kind, first)
                with w.loop(size) as tap:
                    w.set(total, total + line[at + tap] * as_type(weight.at(c * size + tap), kind))
                found = total * Unary("sigmoid", total) if activation in ("silu", "swish") else total
                y.put(row * length + at, as_type(found, y.dtype))
            if present is not None:
                with w.loop(kept) as at:
                    present.put(row * kept + at, as_type(line[length + at], present.dtype))


DEFINITIONS: dict[str, Definition] = {
    "Attention": attention,
    "RotaryEmbedding": rotary,
    "LinearAttention": linear_attention,
    "CausalConvWithState": causal_convolution,
}
