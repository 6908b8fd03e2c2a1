"""`simplify` and `slim`: `optimize` for code that was written for onnxsim and onnxslim."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from graphopt.errors import OptionError
from graphopt.flows.optimize import DEFAULT_LEVEL, optimize
from graphopt.model.load import Source, load
from graphopt.model.text import nearest
from graphopt.passes import pipeline

Shapes = Mapping[str, Sequence[int]] | Sequence[str]

# Options of onnxsim that say how it goes about its work, or ask for what is done here at any rate.
_HARMLESS = frozenset(
    (
        "import_custom_schemas", "check_atol", "input_fill", "providers", "gemm_fusion_backend", "certify",
        "external_data_threshold", "gradient_precision",
    )
)  # fmt: skip
# Others that are refused unless they ask for nothing.
_REFUSED = frozenset(
    (
        "extra_optimizers", "check_hazards", "check_gradients", "range_opt", "profile", "ort_profile",
        "merge_ort_profile", "custom_rewriter", "function_rewrite_rules", "initializers_as_constants",
    )
)  # fmt: skip


def simplify(
    model: Source,
    check_n: int = 0,
    perform_optimization: bool = True,
    skip_fuse_bn: bool = False,
    overwrite_input_shapes: Mapping[str, Sequence[int]] | None = None,
    test_input_shapes: Mapping[str, Sequence[int]] | None = None,
    skipped_optimizers: Sequence[str] | None = None,
    skip_constant_folding: bool = False,
    skip_shape_inference: bool = False,
    input_data: Mapping[str, np.ndarray] | None = None,
    dynamic_input_shape: bool = False,
    custom_lib: str | None = None,
    include_subgraph: bool = False,
    unused_output: Sequence[str] | None = None,
    tensor_size_threshold: str = "",
    mutable_initializer: bool = False,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inline_functions: bool = False,
    target_opset_version: int | str | None = None,
    check_rtol: float | None = None,
    output_path: str | os.PathLike[str] | None = None,
    **others: object,
) -> tuple[onnx.ModelProto, bool]:
    """What `onnxsim.simplify` gives: the optimized ModelProto and whether it was checked equal.

    Takes onnxsim's options, also by place. The check is always made, with `input_data` besides seeded feeds and
    `check_rtol` as the difference allowed; subgraphs are always worked on, and no folded tensor makes a file grow, so
    that `check_n`, `include_subgraph`, `tensor_size_threshold`, `skip_shape_inference` and `test_input_shapes` change
    nothing. `skipped_optimizers` may name rules and passes of graphopt; onnxsim's own names, which there are none of
    here, are left unheeded but for fuse_bn_into_conv. As with onnxsim, inputs with defaults become constants
    unless `mutable_initializer` is true.

    Raises OptionError for an option that asks for what is not done here, and for a name that onnxsim has not.
    """
    for name, value in {"custom_lib": custom_lib, **others}.items():
        known = _HARMLESS | _REFUSED | {"custom_lib"}
        if name not in known:
            raise OptionError(f"simplify has no option '{name}'; {nearest(name, sorted(known))}.")
        asked = value is False if name == "initializers_as_constants" else bool(value)
        if asked and name not in _HARMLESS:
            raise OptionError(f"simplify cannot do what '{name}' asks for; leave it out, or see graphopt.optimize.")
    start = load(model)
    _drop_outputs(start, unused_output or ())
    opset = onnx.defs.onnx_opset_version() if target_opset_version == "latest" else target_opset_version
    if isinstance(opset, str):
        raise OptionError(f"target_opset_version is a number or 'latest', not '{opset}'.")
    result = optimize(
        start, shapes=overwrite_input_shapes or input_shapes, skip=_skipped(
            skipped_optimizers or (), folding=skip_constant_folding, normalizations=skip_fuse_bn,
        ),
        level=DEFAULT_LEVEL if perform_optimization else 1, opset=opset, inline=inline_functions, feeds=input_data,
        fix_defaults=not mutable_initializer, tolerance=check_rtol,
    )  # fmt: skip
    if output_path is not None and result.unverified is None:
        result.save(output_path)
    return result.to_proto(), result.verification.passed


def slim(
    model: Source,
    output_model: str | os.PathLike[str] | None = None,
    *,
    model_check: bool = True,
    input_shapes: Shapes | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    no_shape_infer: bool = False,
    skip_optimizations: Sequence[str] | None = None,
    dtype: str | None = None,
    skip_fusion_patterns: Sequence[str] | None = None,
    size_threshold: int | None = None,
    save_as_external_data: bool = False,
    model_check_inputs: Sequence[str] | None = None,
    verbose: bool = False,
) -> onnx.ModelProto | None:
    """What `onnxslim.slim` gives: the optimized ModelProto; None where `output_model` names a file, which is written.

    Takes onnxslim's options. `input_shapes` is {"x": [1, 3, 224, 224]} or ["x:1,3,224,224"]. `outputs` keeps these
    outputs alone. `model_check=False` leaves the check out. Shape inference, thresholds and how the file is written
    need no choice here. `skip_optimizations` may name rules and passes of graphopt; onnxslim's own names are left
    unheeded. Raises OptionError for `inputs`, `dtype` and `model_check_inputs`: those ask for another model.
    """
    for name, value in (("inputs", inputs), ("dtype", dtype), ("model_check_inputs", model_check_inputs)):
        if value:
            raise OptionError(f"slim cannot do what '{name}' asks for; leave it out.")
    start = load(model)
    if outputs:
        wanted = {text.partition(":")[0] for text in outputs}
        _drop_outputs(start, [value.name or "" for value in start.graph.outputs if value.name not in wanted])
    skipped = _skipped((*(skip_optimizations or ()), *(skip_fusion_patterns or ())))
    result = optimize(start, shapes=_shapes(input_shapes), skip=skipped, verify=model_check)
    if output_model is None:
        return result.to_proto()
    result.save(output_model)
    return None


def _skipped(given: Sequence[str], *, folding: bool = False, normalizations: bool = False) -> tuple[str, ...]:
    """Our passes and rules for what a caller of another optimizer leaves out."""
    known = {*pipeline.names(), *(rule.name for rule in pipeline.rules())}
    own = [name for name in given if name in known]
    bn = normalizations or "fuse_bn_into_conv" in given
    return (*own, *(("folding",) if folding else ()), *(("weights",) if bn else ()))


def _drop_outputs(model: ir.Model, names: Sequence[str]) -> None:
    """Take outputs out of the signature; raises OptionError for a name that is none, and where none would be left."""
    known = [value.name or "" for value in model.graph.outputs]
    for name in names:
        if name not in known:
            raise OptionError(f"there is no output '{name}'; {nearest(name, known)}.")
    kept = [value for value in model.graph.outputs if value.name not in names]
    if not kept:
        raise OptionError("a model needs an output; keep one of " + ", ".join(known) + ".")
    model.graph.outputs.clear()
    model.graph.outputs.extend(kept)


def _shapes(given: Shapes | None) -> Mapping[str, Sequence[int]] | None:
    if given is None or isinstance(given, Mapping):
        return given
    found = {}
    for text in given:
        name, _, sizes = text.rpartition(":")
        if not name or not all(size.strip().isdigit() for size in sizes.split(",")):
            raise OptionError(f"'{text}' is not of the form x:1,3,224,224.")
        found[name] = [int(size) for size in sizes.split(",")]
    return found
