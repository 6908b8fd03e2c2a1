"""LSTM, GRU and RNN: one matrix product for all steps' inputs, then one kernel for the steps, or regions for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from graphopt.errors import NotLowered
from graphopt.lazy import Lazy
from graphopt.model.nodes import attribute_of, input_at, int_attribute, is_used, required_input, string_attribute
from graphopt.program.regions import buffer as program
from graphopt.program.regions.activations import UnknownActivation, activations
from graphopt.program.regions.copies import dense
from graphopt.program.regions.recurrent_steps import lower_steps
from graphopt.program.regions.region import Origin
from graphopt.program.regions.rounding import product_template
from graphopt.program.regions.scope import Scope
from graphopt.program.regions.view import View
from graphopt.program.regions.weights import weights_of
from kernels.dtype import DType
from kernels.kernel import Packing
from kernels.size import is_free
from kernels.templates.epilogue import ACCUMULATED, Epilogue
from kernels.templates.gemm_problem import Gemm
from kernels.templates.recurrent.build import RECURRENT
from kernels.templates.recurrent.problem import GATES, Cell, Recurrent
from kernels.templates.recurrent.step import RecurrentStep
from kernels.tensor.expression import Buffer, Expression
from kernels.tensor.scalars import narrow

if TYPE_CHECKING:
    from kernels.ptx.tasks import product as tasks
else:
    tasks = Lazy("kernels.ptx.tasks.product")

LONG_STEP = 150_000  # operations of a step, of which two workers save more than they wait for one another
MOST_STEPS = 512  # regions of a layer and direction
CELLS: dict[str, Cell] = {"LSTM": "lstm", "GRU": "gru", "RNN": "rnn"}
Array = npt.NDArray[np.float32]
Weights = tuple[npt.NDArray[np.generic], DType]  # and how they are stored
Direction = Literal["forward", "reverse"]


def lower_recurrent(scope: Scope, node: ir.Node) -> None:
    """The regions of a recurrent layer; raises NotLowered for what is not the common form."""
    cell = CELLS[node.op_type]
    w, r, bias = _weights(scope, node, cell)
    directions = _directions(node)
    x = dense(scope, required_input(node, 0))
    steps, batch, inputs = x.shape
    gates, hidden = GATES[cell], r[0].shape[-1]
    before_reset = bool(int_attribute(node, "linear_before_reset", 0))
    both = bias[:, 0] + bias[:, 1]
    if cell == "gru" and before_reset:
        both[:, 2] = bias[:, 0, 2]
    label = (
        f"{node.op_type}:{node.inputs[0].name if node.inputs[0] else ''}:{len(scope.regions)}"  # outputs may lack names
    )
    width = len(directions) * gates * hidden
    projected = scope.temporary("gates", label, 4 * steps * batch * width)
    _project(scope, node, x, (w[0].reshape(width, inputs).T, w[1]), both.reshape(width), label, projected)
    if _is_rounded(scope, node, r, x):
        r = narrow(np.asarray(r[0], np.float32), DType.BF16), DType.BF16
    lengths = input_at(node, 4)
    layer = Recurrent(
        cell, steps, batch, hidden, directions, before_reset, lengths is not None, input_at(node, 7) is not None,
        r[1], _activations(node, len(directions)),
    )  # fmt: skip
    buffers = {"gates": projected}
    for name, position in (("initial_h", 5), ("initial_c", 6), ("lengths", 4), ("peepholes", 7)):
        value = input_at(node, position)
        if value is not None:
            buffers[name] = dense(scope, value).buffer
        elif name.startswith("initial"):
            states = np.zeros((len(directions), batch, hidden), np.float32)
            buffers[name] = scope.keep("zero", label, states, DType.F32).buffer
    if cell == "gru":
        hidden_bias = np.ascontiguousarray(bias[:, 1, 2])
        buffers["hidden_bias"] = scope.keep("hidden bias", label, hidden_bias, DType.F32).buffer
    for number_of_output, name in enumerate(("y", "y_h", "y_c")):
        output = node.outputs[number_of_output] if number_of_output < len(node.outputs) else None
        if output is not None and is_used(output):
            buffers[name] = scope.result(output).buffer
    steps_of_layer = RecurrentStep.phases(layer) if scope.target.is_gpu or _shared(layer, scope) else ()
    if steps_of_layer:
        lower_steps(scope, node, layer, steps_of_layer, r[0], buffers)
    else:
        _whole(scope, node, layer, r[0], buffers, label)


def _is_rounded(scope: Scope, node: ir.Node, r: Weights, x: View) -> bool:
    """Whether R lies in half of its bytes: where it may, and one sequence waits for it to come out of far caches."""
    far = r[0][0].nbytes > scope.target.l2 // 2
    return r[1] is DType.F32 and x.shape[1] == 1 and far and scope.precision.rounds(Origin.of(node).name)


def _shared(layer: Recurrent, scope: Scope) -> bool:
    """Whether several workers share the hidden units of each step: where a layer is one tile of one direction.

    They meet after each step, so a step has to be long, and one of two products makes them meet twice. Two directions
    or tiles are shared without meeting. A program for a range of sizes has the same regions for all of them.
    """
    if scope.steady or is_free(layer.steps) or is_free(layer.batch) or not 2 <= layer.steps <= MOST_STEPS:
        return False
    phases = RecurrentStep.phases(layer)
    flops = 2 * layer.batch * layer.gates * layer.hidden * layer.hidden
    tiles = len(layer.directions) * -(-layer.batch // RECURRENT.candidates(layer, scope.target)[0].rows)
    return len(phases) == 1 and flops >= LONG_STEP and tiles == 1


def _whole(
    scope: Scope, node: ir.Node, layer: Recurrent, r: npt.NDArray[np.generic], given: dict[str, program.Buffer],
    label: str,
) -> None:  # fmt: skip
    """All steps as one region."""
    kernel = scope.kernel(RECURRENT, layer)
    buffers = {**given, "r": scope.weight("packed r", label, r, kernel.operand("r"))}
    for operand in kernel.operands:
        if operand.role == "output" and operand.name not in buffers:
            buffers[operand.name] = scope.temporary(operand.name, label, operand.bytes)
    scope.add(kernel, buffers, (node,))


def _project(
    scope: Scope, node: ir.Node, x: View, weights: Weights, bias: Array, label: str, projected: program.Buffer
) -> None:
    """W x + b of all steps and directions, of some steps at a time where the first may begin before x is complete."""
    (w, stored), (steps, batch, inputs) = weights, x.shape
    kept, packed = scope.keep("bias", label, bias, DType.F32).buffer, dict[Packing | None, program.Buffer]()
    row = x.dtype.bytes * batch * inputs, DType.F32.bytes * batch * w.shape[1]  # bytes of a step of x, and of gates
    together = _together(scope, x, steps, batch)
    for first in range(0, steps, together):
        rows = batch * min(together, steps - first)
        plain = Gemm(rows, w.shape[1], inputs)
        added = Buffer("bias", DType.F32, (w.shape[1],))[plain.column]
        problem = Gemm(rows, w.shape[1], inputs, epilogue=Epilogue(ACCUMULATED[()] + added), b_dtype=stored)
        kernel = scope.kernel(*product_template(scope, node, problem))
        operand = kernel.operand("b")
        if operand.packing not in packed:
            packed[operand.packing] = scope.weight("packed w", label, np.ascontiguousarray(w), operand)
        places = {"a": program.Place(x.buffer, first * row[0]), "c": program.Place(projected, first * row[1])}
        scope.add(kernel, {**places, "b": packed[operand.packing], "bias": kept}, (node,))


def _together(scope: Scope, x: View, steps: int, batch: int) -> int:
    """Steps of a product: all; on a GPU a few where x comes in pieces, as from the steps of a layer before."""
    pieces = sum(
        place.buffer == x.buffer and operand.role == "output"
        for region in scope.regions
        for operand, place in zip(region.kernel.operands, region.places, strict=True)
    )
    if not scope.target.is_gpu or pieces < 2:
        return max(1, steps)
    return min(steps, max(1, tasks.FEW_ROWS // max(1, batch)))


def _weights(scope: Scope, node: ir.Node, cell: Cell) -> tuple[Weights, Weights, Array]:
    """W [directions, gates * hidden, inputs], R [..., hidden], biases [directions, 2, gates, hidden]."""
    label = f"{node.op_type} '{node.name or node.outputs[0].name}'"
    w, r = (weights_of(scope.facts, required_input(node, position)) for position in (1, 2))
    if w is None or r is None or scope.dtype(required_input(node, 0)) is not DType.F32:
        raise NotLowered(f"{label} has weights that are computed, or not of float32.")
    directions, hidden = r[0].shape[0], r[0].shape[2]
    given = input_at(node, 3)
    bias = np.zeros((directions, 2 * GATES[cell] * hidden), np.float32) if given is None else scope.constant(given)
    if bias is None:
        raise NotLowered(f"{label} has a bias that is computed.")
    for name in ("clip", "input_forget", "layout"):
        set_to = attribute_of(node, name)
        if set_to is not None and set_to.value:
            raise NotLowered(f"{label} has the attribute {name}, which has no kernel yet.")
    shaped = np.array(bias, np.float32).reshape(directions, 2, GATES[cell], hidden)
    return w, r, shaped


def _activations(node: ir.Node, directions: int) -> tuple[Expression, ...]:
    """The activations, which are those of all directions; raises NotLowered."""
    given = node.attributes.get("activations")
    names = None if given is None else [str(one) for one in given.as_strings()]
    numbers = [attribute_of(node, f"activation_{one}") for one in ("alpha", "beta")]
    alphas, betas = ([] if one is None else [float(number) for number in one.value] for one in numbers)
    label = f"{node.op_type} '{node.name or node.outputs[0].name}'"
    try:
        found = activations(node.op_type, names, alphas, betas, directions)
    except UnknownActivation as unknown:
        raise NotLowered(f"{label} has the activation {unknown}, which is none of ONNX.") from unknown
    first, *others = [tuple(one(ACCUMULATED[()]) for one in each) for each in found]
    if any(other != first for other in others):
        raise NotLowered(f"{label} has other activations in each direction.")
    return first


def _directions(node: ir.Node) -> tuple[Direction, ...]:
    given = string_attribute(node, "direction", "forward")
    found: dict[str, tuple[Direction, ...]] = {
        "forward": ("forward",), "reverse": ("reverse",), "bidirectional": ("forward", "reverse"),
    }  # fmt: skip
    return found[given]
